"""Overhead of a call: a trivial graph through one local worker, a chain over three, and the start of a worker.

    python bench/overhead.py [--calls 2000]

Beside it, in the same run, an aiohttp WebSocket echo between two processes: what the wire itself costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import mesh.numpy as mnp
from mesh import Mesh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    x = np.ones(16, np.float32)
    report("worker ready (start to joined)", [timed(start_and_stop) for _ in range(5)], 1500.0)
    with Mesh.builder().local(1, engine="cpu").build() as one:
        trivial = one.compile(lambda x: x + 1.0, x)
        report("trivial graph, one local worker", sampled(lambda: trivial(x), calls), 1.0)
    with Mesh.builder().local(3, engine="cpu").build() as three:
        chain = three.compile(lambda x: mnp.exp(mnp.tanh(mnp.sin(x))), x, strategy="pipeline")
        report("chain of three parts, three workers", sampled(lambda: chain(x), calls), 2.5)


def start_and_stop() -> None:
    Mesh.builder().local(1, engine="cpu").build().close()


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def sampled(work: Callable[[], object], calls: int) -> list[float]:
    for _ in range(calls // 10 + 1):
        work()
    return [timed(work) for _ in range(calls)]


def report(what: str, seconds: list[float], goal_ms: float) -> None:
    ordered = sorted(second * 1e3 for second in seconds)
    p90 = ordered[int(len(ordered) * 0.9)]
    middle = statistics.median(ordered)
    print(f"{what:40} median {middle:8.3f} ms  p90 {p90:8.3f} ms  goal {goal_ms:g} ms  n {len(ordered)}")


if __name__ == "__main__":
    main()
