"""Milliseconds of a linear layer: coded over five workers with none, one and two of them dead, and on one worker.

    python bench/coding.py [--width 2048] [--rows 64] [--calls 200]

The calls in whose middle a worker is killed are shown apart: the latency that a death costs.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mesh import Coding, Mesh, nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--calls", type=int, default=200)
    args = parser.parse_args()
    chance = np.random.default_rng(0)
    layer = nn.Linear(chance.standard_normal((args.width, args.width)).astype(np.float32))
    x = chance.standard_normal((args.rows, args.width)).astype(np.float32)
    mesh = Mesh.builder().local(5, engine="cpu").node_timeout(20).build()  # a busy machine is not a dead one
    try:
        held = mesh.put(layer)
        whole = mesh.compile(lambda layer, x: layer(x), held, x, strategy="single")
        report("on one worker", lambda: whole(held, x), args.calls)
        coding = Coding(mesh, 5, 3)
        coded = coding.layers(layer)
        report("3 of 5 shares, none dead", lambda: coded(x), args.calls)
        for dead in (1, 2):
            pid = next(node.pid for node in mesh.nodes if node.name == coding.workers[dead])
            threading.Timer(0.002, os.kill, (pid, signal.SIGKILL)).start()
            report(f"3 of 5 shares, death {dead} in the middle", lambda: coded(x), 1)
            while coding.workers[dead] in coding.healthy():
                time.sleep(0.05)
            report(f"3 of 5 shares, {dead} dead", lambda: coded(x), args.calls)
    finally:
        mesh.close()


def report(what: str, call: Callable[[], Any], calls: int) -> None:
    for _ in range(min(calls // 10, 10)):
        call()
    took_ms = []
    for _ in range(calls):
        began_s = time.perf_counter()
        call()
        took_ms.append((time.perf_counter() - began_s) * 1e3)
    print(f"{what:<36} median {statistics.median(took_ms):7.1f} ms   worst {max(took_ms):7.1f} ms")


if __name__ == "__main__":
    main()
