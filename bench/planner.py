"""Planning a large graph: medians beside their goal.

python bench/planner.py [--nodes 10000] [--workers 8] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.profiles import device, near, random_profiles, worker
from support.random_graphs import big_graph, random_graph

from coordinator.planner import make_plan
from wire.graph import WireGraph
from wire.ops import inner_graphs
from wire.strategies import FOR_ANY_GRAPH

GOAL_S = 2.0


def nodes_of(graph: WireGraph) -> int:
    """All nodes, those inside branches and loops too: they are planned with the others."""
    inner = (body for node in graph.nodes for body in inner_graphs(node.op, node.attrs))
    return len(graph) + sum(map(nodes_of, inner))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    graphs = {"tower": big_graph(chosen.nodes), "random": random_graph(0, chosen.nodes, chosen.nodes).graph}
    machines = {
        "alike": near(*(worker(n, device(0, 50.0, 10.0)) for n in range(chosen.workers))),
        "mixed": random_profiles(np.random.default_rng(0), chosen.workers),
    }
    for shape, graph in graphs.items():
        for kind, profiles in machines.items():
            for strategy in FOR_ANY_GRAPH:
                times_s = []
                for _ in range(chosen.rounds):
                    began_s = time.perf_counter()
                    plan = make_plan(graph, profiles, strategy)
                    times_s.append(time.perf_counter() - began_s)
                what = f"{nodes_of(graph)} nodes ({shape}), {chosen.workers} workers ({kind}), {strategy}"
                print(
                    f"{what:58} median {statistics.median(times_s):5.2f} s  max {max(times_s):5.2f} s  "
                    f"goal {GOAL_S:g} s  n {chosen.rounds}  {len(plan.parts)} parts"
                )


if __name__ == "__main__":
    main()
