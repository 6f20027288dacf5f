"""A program that asks a mesh again and again until it is told to end, for tests that stop it: `stopped_caller.py WHAT
ADDRESS`, with WHAT "calls" or "texts".

It has the workers of the coordinator at ADDRESS.  One line per answer: its number, what came, and the monotonic clock.
Once stdin is closed, it ends.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from support.cases.language import golden_model

import mesh.numpy as mnp
from mesh import Mesh

REST_S = 0.01
TOKENS = 24


def asked(x: Any) -> Any:
    return mnp.tanh(x @ x) @ x


def argument(number: int) -> Any:
    return np.random.default_rng(number).standard_normal((48, 48)).astype(np.float32)


def calls(mesh: Mesh, mode: str) -> Iterator[str]:
    """The digest of each answer."""
    number = 0
    while True:
        yield hashlib.blake2b(mesh.run(asked, argument(number), mode=mode, strategy="single").tobytes()).hexdigest()
        number += 1


def texts(mesh: Mesh, mode: str) -> Iterator[str]:
    """The tokens of each text, one after another: a stop falls into the middle of one."""
    model = golden_model("llama")
    while True:
        there = None if mode == "off" else mesh
        for token in model.generate([1, 2, 3], max_new_tokens=TOKENS, ends=(), stream=True, mesh=there):
            yield str(token)


ASK: dict[str, Callable[[Mesh, str], Iterator[str]]] = {"calls": calls, "texts": texts}


def main(what: str, address: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with Mesh.builder().node(address).build() as mesh:
        for number, said in enumerate(ASK[what](mesh, "on")):
            print(number, said, time.monotonic(), flush=True)
            if over.is_set():
                return
            time.sleep(REST_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
