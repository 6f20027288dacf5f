"""What is over leaves nothing: calls, steps, sessions, deaths and pauses of a simulated mesh, and what stays of each.

All of the mesh is in this process: a coordinator and three workers.  What is bounded (wire/bounds.py) fills up before
anything is counted, and the least growth of some rounds counts, since timers that were cancelled go in crowds.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mesh import Mesh
from mesh.client.mesh import Session
from worker.engine_host.host import Host

ROUNDS = 3
X = np.ones(4, np.float32)


def add(state: Any, x: Any) -> Any:
    return {"sum": state["sum"] + x, "product": state["product"] * x}, state["sum"]


def double(x: Any) -> Any:
    return x * 2


class Work:
    """A mesh with an open session, and what is done on it again and again."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.session = self.opened(every=1)
        self.times = 0

    def opened(self, every: int) -> Session:
        return self.mesh.session(add, {"sum": X, "product": X}, X, every=every)

    @property
    def one(self) -> str:
        self.times += 1
        return f"sim-{self.times % 3}"

    def step(self) -> None:
        self.session.step(X).result()

    def call(self) -> None:
        self.mesh.run(double, X)

    def whole_session(self) -> None:
        with self.opened(every=2) as session:
            for _ in range(3):
                session.step(X).result()
            session.state()

    def death(self) -> None:
        name = self.one
        self.mesh.simulation.kill(name)
        self.step()
        self.call()
        self.mesh.simulation.start(name)
        self.mesh.simulation.wait(2.0)
        self.step()

    def pause(self) -> None:
        name = self.one
        self.mesh.simulation.pause(name)
        self.mesh.simulation.wait(1.0)
        self.step()
        self.mesh.simulation.resume(name)
        self.mesh.simulation.wait(1.0)


def _held() -> tuple[int, Counter[str]]:
    gc.collect()
    return sys.getallocatedblocks(), Counter(type(each).__qualname__ for each in gc.get_objects())


@pytest.mark.parametrize(
    ("work", "warm", "times", "most"),  # the most blocks of Python's memory that may stay of each
    [
        (Work.step, 1100, 150, 5.0),
        (Work.call, 500, 150, 5.0),
        (Work.whole_session, 60, 40, 60.0),
        (Work.death, 30, 15, 60.0),
        (Work.pause, 30, 15, 60.0),
    ],
    ids=["step", "call", "session", "death", "pause"],
)
def test_nothing_stays_of(work: Callable[[Work], None], warm: int, times: int, most: float) -> None:
    with Mesh.builder().simulate(3).build() as mesh:
        mine = Work(mesh)
        for _ in range(warm):
            work(mine)
        grown = []
        for _ in range(ROUNDS):
            blocks, objects = _held()
            for _ in range(times):
                work(mine)
            blocks_then, objects_then = _held()
            more = {name: count for name, count in (objects_then - objects).most_common(9) if count > times // 4}
            grown.append(((blocks_then - blocks) / times, more))
        assert min(grown, key=lambda each: each[0])[0] < most, grown


def _called(mesh: Mesh, factor: float) -> None:
    mesh.run(lambda x: x * factor, X)


def _session(mesh: Mesh, factor: float) -> None:
    with mesh.session(lambda state, x: (state * factor + x, state), X, X) as session:
        session.step(X).result()


@pytest.mark.parametrize(("use", "times"), [(_session, 40), (_called, 110)], ids=["session", "call"])
def test_a_program_that_was_used_once_leaves_no_graph(use: Callable[[Mesh, float], None], times: int) -> None:
    """Plans of the latest calls are remembered, and nothing else that has a graph."""
    with Mesh.builder().simulate(2).build() as mesh:
        counts = []
        for first in (2, 2 + times):
            for number in range(first, first + times):
                use(mesh, float(number))
            for host in [each for each in gc.get_objects() if isinstance(each, Host)]:
                host._executables.clear()  # what workers have compiled has a test of its own
            counts.append(_held()[1]["WireGraph"])
    assert counts[1] - counts[0] < times // 8, counts
