"""An engine that takes its time: as another one, but a part takes at least its work divided by a rate.

The work is that of the op table, as the planner counts it.  What is left of a part's time once it is computed is slept,
so that many throttled workers fit on one machine.  A part of a gang is paced from collective to collective: one is
started when the work before it is done at that rate, and waiting for other ranks is no work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from wire.errors import Cancelled
from wire.ir.graph import WireGraph
from wire.ir.ops import COLLECTIVES
from wire.ir.types import Attrs, TensorType
from wire.passes.collective_order import stages
from worker.engine.kernel_rows import KernelRows, Spans
from worker.engine.protocol import (
    Collectives,
    Engine,
    EngineInfo,
    Executable,
    Measured,
    Pending,
    Stopped,
    explained,
    free_spare,
    held_bytes,
    lend_room,
    moved_bytes,
    never,
    readback_s,
    spare_bytes,
    takes_lent,
)

NAP_S = 0.01  # between two looks at whether the run was stopped


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is, and how it passes."""

    now_s: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class _Paced:
    """A compiled part: what it is to the engine, its flops, and how many of them come before each collective."""

    inner: Executable
    flops: int
    before: tuple[int, ...]

    @property
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes

    @property
    def kept_bytes(self) -> int:
        return self.inner.kept_bytes

    @property
    def from_cache(self) -> bool:
        return self.inner.from_cache


class ThrottledEngine:
    """Engine (worker/engine/protocol.py) over another one."""

    def __init__(self, engine: Engine, flops_per_s: float, clock: Clock | None = None) -> None:
        self._engine = engine
        self._flops_per_s = flops_per_s
        self._clock = clock or Clock()
        self.info: EngineInfo = engine.info

    @property
    def readback_s(self) -> float:
        return readback_s(self._engine)

    @property
    def moved_bytes(self) -> tuple[int, int]:
        return moved_bytes(self._engine)

    @property
    def held_bytes(self) -> int:
        return held_bytes(self._engine)

    @property
    def spare_bytes(self) -> int:
        return spare_bytes(self._engine)

    def lend_room(self, has_room: Callable[[int], bool]) -> None:
        lend_room(self._engine, has_room)

    def free_spare(self) -> None:
        free_spare(self._engine)

    @property
    def takes_lent(self) -> bool:
        return takes_lent(self._engine)

    def measure(self) -> Measured:
        """Measure the device: matrix products keep the throttle's pace, the other two figures are the device's own."""
        return paced(self._engine.measure(), self._flops_per_s)

    def compile(self, graph: WireGraph, force: bool = False) -> _Paced:
        return _Paced(self._engine.compile(graph, force), graph.flops, _before_collectives(graph))

    def load(self, array: NDArray[Any]) -> Any:
        return self._engine.load(array)

    def unload(self, handle: Any) -> None:
        self._engine.unload(handle)

    def read(self, handle: Any) -> NDArray[Any]:
        return self._engine.read(handle)

    def run(
        self,
        executable: _Paced,
        inputs: Sequence[Any],
        stopped: Stopped = never,
        collectives: Collectives | None = None,
        keep: Collection[int] = (),
    ) -> list[Any]:
        """Run the part, no faster than the rate allows; the rest is as of the engine."""
        pace = _Pace(self._flops_per_s, self._clock, stopped)
        paced_ranks = None if collectives is None else _PacedCollectives(collectives, pace, executable.before)
        results = self._engine.run(executable.inner, inputs, stopped, paced_ranks, keep)
        pace.until(executable.flops)
        return results

    def explain(self, executable: _Paced, texts: bool = False) -> KernelRows:
        """The kernels as the engine has them; graphs inside a kernel are not paced by themselves."""
        inner = executable.inner if isinstance(executable, _Paced) else executable
        return explained(self._engine, inner, texts)

    def watch(self, spans: Spans | None) -> None:
        self._engine.watch(spans)

    def close(self) -> None:
        self._engine.close()


def paced(figures: Measured, flops_per_s: float) -> Measured:
    """The figures of a device that computes no faster than that."""
    return replace(figures, gflops=min(figures.gflops, flops_per_s / 1e9))


class _Pace:
    """The time of one run."""

    def __init__(self, flops_per_s: float, clock: Clock, stopped: Stopped) -> None:
        self._flops_per_s = flops_per_s
        self._clock = clock
        self._stopped = stopped
        self._began_s = clock.now_s()  # later by what was waited

    def until(self, flops: int) -> None:
        """Return once so much work may be done; Cancelled soon after the run was stopped."""
        due_s = self._began_s + flops / self._flops_per_s
        while (left_s := due_s - self._clock.now_s()) > 0:
            if self._stopped():
                raise Cancelled("the run was stopped")
            self._clock.sleep(min(left_s, NAP_S))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What passes meanwhile is no time to work."""
        began_s = self._clock.now_s()
        try:
            yield
        finally:
            self._began_s += self._clock.now_s() - began_s


class _PacedCollectives:
    """Collectives (worker/engine/protocol.py) that start when the work before them is done."""

    def __init__(self, inner: Collectives, pace: _Pace, before: Sequence[int]) -> None:
        self._inner = inner
        self._pace = pace
        self._left = iter(before)

    @property
    def oversubscribed(self) -> bool:
        """What this engine waits for takes no core."""
        return False

    def allocate(self, kind: TensorType) -> NDArray[Any] | None:
        return self._inner.allocate(kind)

    def start(self, op: str, attrs: Attrs, operand: NDArray[Any] | None, meanwhile: bool = True) -> Pending:
        self._pace.until(next(self._left, 0))  # 0: inside a loop, whose turns are not counted one by one
        return _PacedPending(self._inner.start(op, attrs, operand, meanwhile), self._pace)


@dataclass(frozen=True, slots=True)
class _PacedPending:
    inner: Pending
    pace: _Pace

    def result(self) -> NDArray[Any]:
        with self.pace.waiting():
            return self.inner.result()


def _before_collectives(graph: WireGraph) -> tuple[int, ...]:
    """The flops of what engines compute before each collective, in the order in which they start them."""
    if not any(node.op in COLLECTIVES for node in graph.nodes):
        return ()
    again = {index for first, group in graph.siblings.items() for index in group if index != first}
    stage = stages(graph.nodes)
    segments, flops = [], 0
    for index in sorted(range(len(graph.nodes)), key=stage.__getitem__):
        if graph.nodes[index].op in COLLECTIVES:
            segments.append(flops)
        flops += 0 if index in again else graph.flops_of(index)
    return tuple(segments)
