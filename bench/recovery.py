"""Recovery from the death of a worker, by real processes: how soon the first part runs on a survivor.

python bench/recovery.py [--rounds 10] [--nodes 10000] [--workers 8] [--seed 0]

Every round is a new mesh on this machine with nothing cached, whose workers each compute a piece of a large graph, call
after call.  At a random moment one of them gets SIGKILL, or SIGSTOP (a hang).  Kills are made in turn with the plan for
that death made ahead and without; every answer is compared to the one before the fault.  It prints medians, 95th
percentiles and maxima beside their goals, and ends with 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cases.random_graphs import big_graph

from coordinator.plan_service.plan_service import MADE_AHEAD
from mesh import Mesh
from wire.ir.graph import WireGraph

STRATEGY = "pipeline"
READY_S = 240.0  # the process that plans ahead gets what others leave
MOMENT_S = 0.3  # some calls long


@dataclass(frozen=True, slots=True)
class Kind:
    """What befalls a worker, and the most that it may cost, in seconds: from detection and from the fault."""

    name: str
    signal: signal.Signals
    ahead: bool
    first_part_s: float
    resumed_s: float | None


KINDS = (
    Kind("kill -9, plan made ahead", signal.SIGKILL, True, 0.3, 0.5),
    Kind("kill -9, no plan", signal.SIGKILL, False, 1.5, None),
    Kind("SIGSTOP, plan made ahead", signal.SIGSTOP, True, 0.3, 2.5),
)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from the fault to its detection, and from there until the plan was there, until it was deployed
    everywhere, and until its first part ran."""

    detected_s: float
    planned_s: float
    deployed_s: float
    first_part_s: float
    ahead: bool

    @property
    def resumed_s(self) -> float:
        return self.detected_s + self.first_part_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    graph = big_graph(chosen.nodes)
    chance = random.Random(chosen.seed)
    found: dict[Kind, list[Recovery]] = {kind: [] for kind in KINDS}
    print(f"{len(graph)} nodes, {chosen.workers} workers, {os.cpu_count()} cores, load {load()}", flush=True)
    for number in range(chosen.rounds):
        for kind in KINDS:
            recovery = one_round(graph, chosen.workers, kind, chance)
            found[kind].append(recovery)
            print(f"round {number + 1}: {kind.name:26} first part after {recovery.first_part_s:.3f} s", flush=True)
    print(f"load {load()}")
    met = [report(kind, recoveries) for kind, recoveries in found.items()]
    return 0 if all(met) else 1


def one_round(graph: WireGraph, workers: int, kind: Kind, chance: random.Random) -> Recovery:
    """A fault on a new mesh."""
    arrays = made_up(graph)
    builder = Mesh.builder().local(workers, engine="cpu").plan_ahead(kind.ahead)
    with builder.build() as mesh:
        held = {name: mesh.put(array) if name in graph.param_types else array for name, array in arrays.items()}
        events: list[Mapping[str, Any]] = []
        mesh.watch(events.append)
        expected = mesh.run(graph, held, strategy=STRATEGY)
        deadline_s = time.monotonic() + READY_S
        while (
            kind.ahead
            and sum(death["rehearsed"] for death in mesh.plan(graph, held, strategy=STRATEGY).deaths) < workers
        ):
            assert time.monotonic() < deadline_s, "not every death was planned for and rehearsed"
            time.sleep(0.1)
        victim = chance.choice(mesh.nodes)
        struck_s: list[float] = []

        def strike() -> None:
            struck_s.append(time.monotonic())
            os.kill(victim.pid, kind.signal)

        timer = threading.Timer(chance.uniform(0.0, MOMENT_S), strike)
        timer.start()
        try:
            while (found := recovery_in(events, victim.name, struck_s)) is None:
                np.testing.assert_array_equal(mesh.run(graph, held, strategy=STRATEGY), expected)
        finally:
            timer.cancel()
            if struck_s and kind.signal == signal.SIGSTOP:
                os.kill(victim.pid, signal.SIGCONT)
        return found


def made_up(graph: WireGraph) -> dict[str, Any]:
    """A tensor for every input and param."""
    values = np.random.default_rng(0)
    types = {**graph.input_types, **graph.param_types}
    return {name: (values.standard_normal(each.shape) / 8).astype(np.float32) for name, each in types.items()}


def recovery_in(events: Sequence[Mapping[str, Any]], victim: str, struck_s: Sequence[float]) -> Recovery | None:
    """What the events after the fault say, or None if they do not say all of it yet."""
    dead = first(events, "dead", lambda event: event["node"] == victim and struck_s)
    planned = dead and first(events, "planned", lambda event: event["at_s"] > dead["at_s"])
    began = planned and first(events, "began", lambda event: event["generation"] >= planned["generation"])
    if not dead or not planned or not began:
        return None
    deployed = [event for event in events if event["kind"] == "deployed" and event["generation"] == began["generation"]]
    at_s = dead["at_s"]
    return Recovery(
        at_s - struck_s[0],
        planned["at_s"] - at_s,
        max(event["at_s"] for event in deployed) - at_s,
        began["at_s"] - at_s,
        MADE_AHEAD in planned["text"],
    )


def first(
    events: Sequence[Mapping[str, Any]], kind: str, wanted: Callable[[Mapping[str, Any]], object]
) -> Mapping[str, Any] | None:
    return next((event for event in tuple(events) if event["kind"] == kind and wanted(event)), None)


def report(kind: Kind, recoveries: Sequence[Recovery]) -> bool:
    """Print a row for every figure; whether the goals were met by the 95th percentile."""
    print(f"{kind.name}, n {len(recoveries)}, by a plan made ahead {sum(each.ahead for each in recoveries)}")
    rows: list[tuple[str, Callable[[Recovery], float], float | None]] = [
        ("fault to detection", lambda each: each.detected_s, None),
        ("detection to plan", lambda each: each.planned_s, None),
        ("detection to deployed everywhere", lambda each: each.deployed_s, None),
        ("detection to first part", lambda each: each.first_part_s, kind.first_part_s),
        ("fault to first part", lambda each: each.resumed_s, kind.resumed_s),
    ]
    met = True
    for what, figure, goal_s in rows:
        times_s = sorted(map(figure, recoveries))
        p95_s = times_s[math.ceil(0.95 * len(times_s)) - 1]
        goal = "" if goal_s is None else f"  goal {goal_s:g} s: {'met' if p95_s < goal_s else 'missed'}"
        met = met and (goal_s is None or p95_s < goal_s)
        print(f"  {what:34} p50 {statistics.median(times_s):6.3f}  p95 {p95_s:6.3f}  max {times_s[-1]:6.3f} s{goal}")
    return met


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
