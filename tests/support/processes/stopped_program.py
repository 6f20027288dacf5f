"""A program that trains until it is told to end, for tests that stop it: `stopped_program.py COPIES [ADDRESS [NAME
[HOW]]]`.

It has three local workers, or those of the coordinator at ADDRESS.  One line per step: its number, its loss in
hexadecimal, and the monotonic clock.  Once stdin is closed: a line with the digest of the state, and it ends.

Its session may have a NAME; with HOW "attach" or "take" it goes on with that of another program, and says first how
many steps are done.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from support.cases.training import batch, first_state, train

from mesh import Mesh, tree

AHEAD = 3  # steps that are asked for before the first of them is waited for
REST_S = 0.01


def digest(state: Any) -> str:
    return hashlib.blake2b(b"".join(np.asarray(leaf).tobytes() for leaf in tree.leaves(state))).hexdigest()


def main(copies: str, address: str = "", name: str = "", how: str = "open") -> None:
    builder = Mesh.builder().node(address) if address else Mesh.builder().local(3, engine="cpu")
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with builder.build() as mesh:
        options = {"copies": copies, "every": 3, "strategy": "pipeline"}
        if how == "open":
            opened = mesh.session(train, first_state(), *batch(0), name=name, **options)
        else:
            opened = mesh.attach(name, take=how == "take")
            print("attached", opened.steps_done, flush=True)
        with opened as session:
            asked, told, waiting = session.steps_done, session.steps_done, deque[Any]()
            while waiting or not over.is_set():
                while len(waiting) < AHEAD and not over.is_set():
                    waiting.append(session.step(*batch(asked)))
                    asked += 1
                if waiting:
                    loss = float(waiting.popleft().result())
                    print(told, loss.hex(), time.monotonic(), flush=True)
                    told += 1
                time.sleep(REST_S)
            print("state", digest(session.state()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
