"""Encoding and decoding a large graph: medians beside their goals.

python bench/codec.py [--nodes 10000] [--rounds 100]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.cases.random_graphs import big_graph

from wire.ir.codec import decode_graph, decode_structure, encode_graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    graph = big_graph(chosen.nodes)
    data, address = graph.encoded, graph.hash
    print(f"{len(graph)} nodes, {len(set(graph.nodes))} of them distinct, {sum(len(n.inputs) for n in graph)} edges")
    print(f"{'size':40} {len(data) / 1e3:8.1f} kB  goal 200 kB")
    report("encode", lambda: encode_graph(graph), chosen.rounds, 3.0)
    report("decode and structural check", lambda: decode_structure(data), chosen.rounds, 8.0)
    report("decode, types derived", lambda: decode_graph(data), chosen.rounds, 25.0)
    report(
        "decode, types derived, address checked", lambda: decode_graph(data, expected_hash=address), chosen.rounds, 25.0
    )


def report(what: str, work: Callable[[], object], rounds: int, goal_ms: float) -> None:
    """Print the best, the median and the 90th percentile of `rounds` timings, each begun with no garbage waiting."""
    times_ms = []
    work()
    for _ in range(rounds):
        gc.collect()
        began_s = time.perf_counter()
        made = work()  # kept, so that freeing it is not timed
        times_ms.append((time.perf_counter() - began_s) * 1e3)
        del made
    times_ms.sort()
    middle, p90 = statistics.median(times_ms), times_ms[int(rounds * 0.9)]
    print(
        f"{what:40} best {times_ms[0]:6.2f}  median {middle:6.2f}  p90 {p90:6.2f} ms  goal {goal_ms:g} ms  n {rounds}"
    )


if __name__ == "__main__":
    main()
