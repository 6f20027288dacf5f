"""What an engine host does to explain a part: runs that are watched and runs that are not, and inputs of its own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from wire.errors import Cancelled, OutOfMemory
from wire.ir.dtypes import DTYPES, F32, I8, DType
from wire.ir.graph import GraphBuilder
from wire.ir.types import TensorType
from worker.engine.kernel_rows import KernelRow, KernelRows, Span, Spans
from worker.engine.protocol import EngineInfo, Stopped
from worker.engine_host.explanation import RUNS, Texts, explanation, random_input

BUILDER = GraphBuilder()
GRAPH = BUILDER.build([BUILDER.input("x", (2, 3), F32), BUILDER.input("y", (4,), F32)])
KEY = (1, 0)


class Scripted:
    """An engine with one kernel, whose runs are Cancelled from the one numbered `ends` on.  A run that is watched tells
    `spans_given`."""

    info = EngineInfo("wgsl", "", "", "", False, 0, {}, {})

    def __init__(self, spans_given: Sequence[Span], ends: int = 1 << 30, room: int = 2) -> None:
        self.spans_given, self.ends, self.room = spans_given, ends, room
        self.runs, self.loaded = 0, list[Any]()
        self.spans: Spans | None = None

    def explain(self, executable: object, texts: bool = False) -> KernelRows:
        return KernelRows([KernelRow("row", (3,), 64, 32, 300, (KEY,), "text")], "a clock")

    def watch(self, spans: Spans | None) -> None:
        self.spans = spans

    def load(self, array: Any) -> object:
        if len(self.loaded) == self.room:
            raise OutOfMemory("no room")
        self.loaded.append(handle := object())
        return handle

    def unload(self, handle: object) -> None:
        self.loaded.remove(handle)

    def run(self, executable: object, inputs: Sequence[object], stopped: Stopped) -> list[object]:
        self.runs += 1
        if self.runs >= self.ends or stopped():
            raise Cancelled("the run was stopped")
        for span in self.spans_given if self.spans else ():
            self.spans(span)  # type: ignore[misc]
        return []


class OnProcessor(Scripted):
    info = EngineInfo("native", "", "", "", True, 0, {}, {})

    def run(self, executable: object, inputs: Sequence[object], stopped: Stopped) -> list[object]:
        assert [isinstance(given, np.ndarray) for given in inputs] == [True, False]
        return super().run(executable, inputs, stopped)


def test_in_the_hosts_memory_params_alone_are_weights() -> None:
    """An input is another one in each run, so a kernel has no form of it beforehand."""
    builder, engine = GraphBuilder(), OnProcessor([], room=1)
    graph = builder.build([builder.input("x", (2, 3), F32), builder.param("w", (4,), F32)])
    explanation(engine, object(), graph, Texts(), lambda: False)  # type: ignore[arg-type]
    assert engine.runs == 2 * (RUNS + 1) and engine.loaded == []


def explained(engine: Scripted, usual: Spans | None = None) -> Any:
    return explanation(engine, object(), GRAPH, Texts(), lambda: False, usual)  # type: ignore[arg-type]


def span(began_s: float, ended_s: float, joins: bool = False) -> Span:
    return Span(KEY, "a thread", began_s, ended_s, joins)


@pytest.mark.parametrize(
    ("spans_given", "seconds", "runs"),
    [
        ([span(1.0, 1.5)], 0.5, 1),
        ([span(1.0, 1.5), span(2.0, 2.25)], 0.75, 2),
        ([span(2.0, 3.0), span(1.5, 2.5, True)], 1.5, 1),  # the second thread began first
        ([span(1.0, 4.0), span(2.0, 3.0, True), span(6.0, 7.0), span(8.0, 9.0, True)], 5.0, 2),
    ],
    ids=["one", "two runs", "threads that overlap", "threads of two runs"],
)
def test_what_threads_do_at_the_same_time_counts_once(spans_given: list[Span], seconds: float, runs: int) -> None:
    (kernel,), clock, evaluations, whole_s = explained(Scripted(spans_given))
    assert (kernel.seconds, kernel.runs, clock, evaluations) == (seconds, runs, "a clock", RUNS)
    assert whole_s is not None and whole_s >= 0


@pytest.mark.parametrize(
    ("ends", "evaluations", "seconds"), [(1, 0, None), (2, 0, 0.5), (3, 1, 0.5), (4, 1, 0.5), (6, 1, 0.5), (7, 2, 0.5)]
)
def test_what_ended_in_time_counts(ends: int, evaluations: int, seconds: float | None) -> None:
    """Runs take turns, and the first of each kind only counts if it is the only one."""
    engine = Scripted([span(1.0, 1.5)], ends)
    (kernel,), _, ended, whole_s = explained(engine)
    assert (ended, kernel.seconds, whole_s is None) == (evaluations, seconds, evaluations == 0)
    assert engine.loaded == []


def test_whoever_watched_before_does_afterwards() -> None:
    engine, usual = Scripted([]), [].append
    explained(engine, usual)
    assert engine.spans is usual


def test_where_inputs_find_no_room_nothing_of_them_stays() -> None:
    engine, usual = Scripted([], room=1), [].append
    with pytest.raises(OutOfMemory):
        explained(engine, usual)
    assert engine.loaded == [] and engine.spans is usual and engine.runs == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (1025, 1024)], ids=str)
def test_inputs_are_small_random_numbers(dtype: DType, shape: tuple[int, ...]) -> None:
    made = random_input(TensorType(shape, dtype), np.random.default_rng(0))
    assert made.shape == shape and made.dtype == dtype.numpy
    if len(shape) == 2 and shape[0]:
        values = made.astype(np.complex128 if dtype.kind == "c" else np.float64)
        assert 0 <= values.real.min() < 0.5 < values.real.max() < 4
        assert not (values[0] == values[-1]).all(), "no two rows are equal"


def test_inputs_take_little_more_memory_than_they_have() -> None:
    tracemalloc.start()
    made = random_input(TensorType((1 << 13, 1 << 13), I8), np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * made.nbytes  # 8-byte numbers of as many would be 8 times it
