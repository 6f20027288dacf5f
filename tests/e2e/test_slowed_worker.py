"""A worker whose engine host gets a tenth of its time: its work goes elsewhere, and comes back once it is well again.

`python tests/e2e/test_slowed_worker.py` prints how many calls and seconds that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from support.processes.faults import tower
from support.processes.slowing import slowed

from mesh import Mesh

WORKERS = 3
WIDTH, DEPTH = 640, 8  # of each of three towers, which is some 60 ms of work
STOPPED = 0.9
USUAL = 20  # calls that show what is usual
WITHIN_CALLS, WITHIN_S = 4000, 400.0  # of a stream until something has happened, on a machine that does other things
pytestmark = pytest.mark.long


def towers(layers: list[list[Any]], x: Any) -> Any:
    """As much to do as there are workers, side by side."""
    return sum((tower(each, x) for each in layers[1:]), start=tower(layers[0], x))


@dataclass
class Stream:
    """Calls one after another, each with the answer of one machine alone."""

    mesh: Mesh
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        layers = [[(rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32) for _ in range(DEPTH)]
                  for _ in range(WORKERS)]  # fmt: skip
        self.x: NDArray[np.float32] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        self.expected = self.mesh.run(towers, layers, self.x, mode="off").tobytes()
        self.held = self.mesh.put(layers)

    def call(self) -> dict[str, int]:
        """How many nodes each worker computed; the answer is right, and nothing failed."""
        began_s = time.monotonic()
        assert self.mesh.run(towers, self.held, self.x).tobytes() == self.expected
        self.seconds.append(time.monotonic() - began_s)
        report = self.mesh.report()
        assert len(report.generations) == 1
        return {name: sum(part.nodes for part in worker.parts) for name, worker in report.workers.items()}

    def until(self, holds: Callable[[dict[str, int]], bool]) -> str:
        """Calls and seconds until one's nodes by worker are as wanted."""
        began_s = time.monotonic()
        for count in range(1, WITHIN_CALLS + 1):
            nodes = self.call()
            took_s = time.monotonic() - began_s
            if holds(nodes):
                return f"{count} calls, {took_s:.1f} s"
            assert took_s < WITHIN_S, f"{count} calls of {self.median_s():.3f} s, at last {nodes}"
        raise AssertionError(f"not within {WITHIN_CALLS} calls of {self.median_s():.3f} s, at last {nodes}")

    def median_s(self, last: int = USUAL) -> float:
        return float(np.median(self.seconds[-last:]))


@contextmanager
def stream(watch: Callable[[Any], None] = lambda event: None) -> Iterator[Stream]:
    with Mesh.builder().mesh("slowed").local(WORKERS, "cpu").build() as mesh:
        mesh.watch(watch)
        yield Stream(mesh)


def host_of(mesh: Mesh, name: str) -> int:
    """The process that computes for a worker."""
    (daemon,) = (node.pid for node in mesh.nodes if node.name == name)
    (host,) = psutil.Process(daemon).children()
    return host.pid


def slow_down(watch: Callable[[Any], None] = lambda event: None) -> str:
    """One worker is slowed and is well again; what came of it, in words."""
    with stream(watch) as calls:
        usual: dict[str, int] = {}
        for _ in range(USUAL):
            usual = calls.call()
        assert len(usual) == WORKERS
        usual_s = calls.median_s()
        victim = min(usual)
        with slowed(host_of(calls.mesh, victim), STOPPED):
            moved = calls.until(lambda nodes: nodes.get(victim, 0) < 0.7 * usual[victim])
            slowed_s = max(calls.seconds[USUAL:])
            for _ in range(USUAL):
                calls.call()
            moved_s = calls.median_s()
        back = calls.until(lambda nodes: nodes.get(victim, 0) >= 0.9 * usual[victim])
        for _ in range(USUAL):
            calls.call()
        times = [f"{each * 1e3:.0f} ms" for each in (usual_s, slowed_s, moved_s, calls.median_s())]
        return f"{times[0]} a call, {times[1]} slowed; moved after {moved}: {times[2]}; back after {back}: {times[3]}"


def test_work_leaves_a_worker_that_became_slow_and_comes_back() -> None:
    print(slow_down())


if __name__ == "__main__":
    began_s = time.monotonic()

    def tell(event: Any) -> None:
        if event["kind"] in ("pace", "moved", "planned"):
            print(f"{time.monotonic() - began_s:8.1f} {event['kind']} {event['node']} {event['text']}", flush=True)

    print(slow_down(tell))
