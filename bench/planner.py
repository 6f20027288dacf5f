"""Planning: large graphs, beside their goals, and what a crowd of workers costs.

    python bench/planner.py [--rounds 2] [--crowd 1000]

10,000 nodes on 8 workers and 100,000 nodes on 16, by every strategy for any graph; graphs of 90,000 nodes of other
kinds on 16 unlike workers; a small program on 1,000 workers; what each plan is predicted to cost;
and the CPU seconds of a coordinator per heartbeat of a simulated crowd, in which nothing is asked for and no link is
measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cases.large_graphs import LARGE
from support.cases.random_graphs import big_graph, random_graph
from support.machines.profiles import device, near, random_profiles, worker
from support.simulated.crowd import heartbeat_round

from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import make_plan
from wire.errors import MeshError
from wire.ir.codec import decode_graph
from wire.ir.graph import WireGraph
from wire.ir.ops import inner_graphs
from wire.policy.strategies import FOR_ANY_GRAPH
from wire.units import time_text

GOALS_S = {10_000: 1.0, 100_000: 4.0}
CROWD_GOAL_S = 0.4
LARGE_NODES = 90_000  # of graphs of other kinds; a graph may have 100,000


def nodes_of(graph: WireGraph) -> int:
    """All nodes, those inside branches and loops too: they are planned with the others."""
    inner = (body for node in graph.nodes for body in inner_graphs(node.op, node.attrs))
    return len(graph) + sum(map(nodes_of, inner))


def alike(count: int) -> Profiles:
    return near(*(worker(n, device(0, 50.0, 10.0)) for n in range(count)))


def unlike(count: int) -> Profiles:
    return random_profiles(np.random.default_rng(0), count)


def measure(what: str, graph: WireGraph, profiles: Profiles, strategy: str, rounds: int, goal_s: float) -> None:
    wall_s, cpu_s = [], []
    for _ in range(rounds):
        fresh = decode_graph(graph.encoded)  # a graph remembers its simple form
        began_s, worked_s = time.perf_counter(), time.process_time()
        try:
            plan = make_plan(fresh, profiles, strategy)
        except MeshError as error:
            print(f"{what}, {strategy:9} {error}", flush=True)
            return
        wall_s.append(time.perf_counter() - began_s)
        cpu_s.append(time.process_time() - worked_s)
    goal = f"goal {goal_s:g} s  " if goal_s else ""
    print(
        f"{what}, {strategy:9} median {statistics.median(wall_s):6.2f} s  max {max(wall_s):6.2f} s  "
        f"cpu {statistics.median(cpu_s):6.2f} s  {goal}n {rounds}  {len(plan.parts)} parts, {time_text(plan.seconds)}",
        flush=True,
    )


def crowd(workers: int) -> None:
    found = heartbeat_round(workers, probing=False)
    print(
        f"{workers} simulated workers: a coordinator takes {found.cpu_s * 1e3:.2f} ms of a core per heartbeat of all "
        f"({found.beat_s:g} s), {found.cpu_s / workers * 1e6:.0f} us and {found.calls / workers:.1f} calls per worker",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--crowd", type=int, default=1000)
    chosen = parser.parse_args()
    for nodes, workers, rounds in ((10_000, 8, chosen.rounds), (100_000, 16, 1)):
        graph = big_graph(nodes)
        for kind, profiles in (("alike", alike(workers)), ("unlike", unlike(workers))):
            what = f"{nodes_of(graph)} nodes on {workers} workers ({kind})"
            for strategy in FOR_ANY_GRAPH:
                measure(what, graph, profiles, strategy, rounds, GOALS_S[nodes])
    for name, make in LARGE.items():
        graph = make(LARGE_NODES)
        what = f"{name} of {nodes_of(graph)} nodes on 16 workers (unlike)"
        measure(what, graph, unlike(16), "auto", 1, GOALS_S[100_000])
    for kind, profiles in (("alike", alike(1000)), ("unlike", unlike(1000))):
        what = f"24 nodes on 1000 workers ({kind})"
        measure(what, random_graph(8, 6, 24).graph, profiles, "auto", chosen.rounds, CROWD_GOAL_S)
    for workers in sorted({30, chosen.crowd}):
        crowd(workers)


if __name__ == "__main__":
    main()
