"""Explanations: the kernels of a compiled part, each measured over a few runs with random inputs.

Runs alternate: one in which the engine measures when each kernel runs, and one in which it does not, since measuring
takes time, too.  The first two warm up, and count only if there is no time for others.  All of it ends after `LIMIT_S`;
what has not ended by then has no time.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import Cancelled, InputError, LimitExceeded, Unsupported
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.limits import DEFAULT, KERNEL_TEXTS_CHARS_MAX
from wire.protocol.engine_names import ON_CPU
from wire.protocol.messages import KernelReport, with_fields
from wire.units import counted

from ..engine.kernel_rows import KernelRow, KernelRows, Key, Span, Spans, graphs_inside
from ..engine.protocol import Engine, Executable, Stopped, explained
from .kernel_trace import KernelTrace

RUNS = 7  # of each kind, after one that warms up
ENOUGH_S = 2.0  # of runs: no more are begun after it
LIMIT_S = 8.0  # of everything: a session whose step waits behind it gives the step up after 10 s, and loops may not end
COUNT_MAX = 1 << 53
INTEGERS_BELOW = 4  # of random inputs: most are indices or small numbers
DISTINCT = 1_048_573  # random numbers that are made for an input, and repeated: a prime, so that no two rows are equal


@dataclass(frozen=True, slots=True)
class Texts:
    """Whether the kernels' texts are wanted, and of which kernel, or of all."""

    wanted: bool = False
    kernel: int | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """A row, the kernel that it runs inside of, and by which graph of that."""

    row: KernelRow
    inside: int | None = None
    body: str = ""


Measurements = tuple[tuple[KernelReport, ...], str, int, float | None]
"""The kernels, how they were measured, how many evaluations ended, and the median seconds of one."""


def explanation(
    engine: Engine, executable: Executable, graph: WireGraph, texts: Texts, stopped: Stopped,
    usual: Spans | None = None,
) -> Measurements:  # fmt: skip
    """The report of an engine on what it compiled `graph` to; Cancelled once `stopped()`.  `usual` watches the engine
    before and afterwards."""
    places, clock = _flattened(engine, executable, graph, texts.wanted)
    _check(places, texts)
    until_s = time.perf_counter() + LIMIT_S
    random, inputs, loaded = np.random.default_rng(0), list[Any](), list[Any]()
    uploads = engine.info.engine not in ON_CPU  # inputs are loaded, too: otherwise every run would bring them there
    try:
        for index in (*graph.inputs, *graph.params):
            inputs.append(random_input(graph.types[index], random))
            if uploads or index in graph.params:
                inputs[-1] = engine.load(inputs[-1])
                loaded.append(inputs[-1])
        runs = _Runs(engine, executable, inputs, stopped, until_s)
        runs.measure()
    finally:
        engine.watch(usual)
        for handle in loaded:
            engine.unload(handle)
    shared = Counter(key for place in places for key in place.row.keys)
    reports = [_report(place, number, runs, shared, texts) for number, place in enumerate(places)]
    whole_s = median(runs.whole_s) if runs.whole_s else None
    return _with_sums(reports), clock, len(runs.whole_s), whole_s


def know(trace: KernelTrace, engine: Engine, executable: Executable, graph: WireGraph) -> None:
    """Tell a trace which kernels an executable has, those of graphs inside it included."""

    def know_rows(inner: Executable, of: WireGraph | None) -> None:
        rows = explained(engine, inner).rows
        trace.know(rows, {index: node.op for index, node in enumerate(of.nodes)} if of is not None else {}, graph.hash)
        for row in rows:
            for _, body, known in graphs_inside(of, row):
                know_rows(body, known)

    try:
        know_rows(executable, graph)
    except Unsupported as error:
        print(f"kernels of {graph.name or 'a graph'} are traced without names: {error}", file=sys.stderr, flush=True)


def random_input(kind: TensorType, random: np.random.Generator) -> NDArray[Any]:
    """A tensor of this type: floats from 0 to 1, small integers."""
    size, makes = min(kind.size, DISTINCT), kind.dtype.kind
    numbers: NDArray[Any] = random.random(size)
    if makes in "iub":
        numbers = numbers * (2 if makes == "b" else INTEGERS_BELOW) // 1
    elif makes == "c":
        numbers = numbers + 1j * random.random(size)
    return np.resize(numbers.astype(kind.dtype.numpy), kind.shape)


def _check(places: Sequence[_Place], texts: Texts) -> None:
    count = len(places)
    if count > DEFAULT.graph_nodes_max:
        raise LimitExceeded(f"{count} kernels are more than an answer has room for: {DEFAULT.graph_nodes_max}")
    if texts.kernel is not None and texts.kernel >= count:
        raise InputError(
            f"there is no kernel {texts.kernel}", next_step=f"There are {counted(count, 'kernel')}, from 0"
        )
    wanted = range(count) if texts.kernel is None else (texts.kernel,)
    total = sum(len(places[number].row.text) for number in wanted)
    if total > KERNEL_TEXTS_CHARS_MAX:
        raise LimitExceeded(
            f"the texts of {counted(len(wanted), 'kernel')} have {total} characters, the limit is "
            f"{KERNEL_TEXTS_CHARS_MAX}",
            next_step="Ask for the text of one kernel, by its number",
        )


def _flattened(engine: Engine, executable: Executable, graph: WireGraph, texts: bool) -> tuple[list[_Place], str]:
    """The rows of an executable, those of graphs inside a kernel after it; and how their times are measured."""
    places: list[_Place] = []

    def place(table: KernelRows, of: WireGraph | None, inside: int | None, body: str) -> None:
        for row in table.rows:
            places.append(_Place(row if of is not None else replace(row, nodes=()), inside, body))
            own = len(places) - 1
            for name, inner, known in graphs_inside(of, row):
                place(explained(engine, inner, texts), known, own, name)

    table = explained(engine, executable, texts)
    place(table, graph, None, "")
    return places, table.clock


class _Runs:
    """Runs of an executable.  `times` has for each run that was watched what each kernel took in it and how often it
    ran, and `whole_s` the seconds of the others."""

    def __init__(
        self, engine: Engine, executable: Executable, inputs: Sequence[Any], stopped: Stopped, until_s: float
    ) -> None:
        self._engine, self._executable, self._inputs = engine, executable, inputs
        self._stopped, self._until_s = stopped, until_s
        self.times: list[dict[Key, tuple[float, int]]] = []
        self.whole_s: list[float] = []

    def measure(self) -> None:
        """Measure; Cancelled once nobody wants to know."""
        try:
            began_s = self._turn()
            while len(self.whole_s) <= RUNS and time.perf_counter() - began_s < ENOUGH_S:
                self._turn()
        except Cancelled:
            if self._stopped():
                raise
        self.times, self.whole_s = self.times[1:] or self.times, self.whole_s[1:] or self.whole_s

    def _turn(self) -> float:
        """A run of each kind; returns the time at which they ended."""
        self.times.append(self._watched())
        self.whole_s.append(self._plain())
        return time.perf_counter()

    def _watched(self) -> dict[Key, tuple[float, int]]:
        kernels: dict[Key, _Tally] = defaultdict(_Tally)
        self._engine.watch(lambda span: kernels[span.key].add(span))
        try:
            self._plain()
        finally:
            self._engine.watch(None)
        return {key: (tally.seconds, tally.runs) for key, tally in kernels.items()}

    def _plain(self) -> float:
        began_s = time.perf_counter()
        self._engine.run(self._executable, self._inputs, self._is_over)
        return time.perf_counter() - began_s

    def _is_over(self) -> bool:
        return time.perf_counter() > self._until_s or self._stopped()


class _Tally:
    """What a kernel took in one run of a part, and how often it ran: what its threads do at the same time counts once.
    A loop may run it millions of times."""

    def __init__(self) -> None:
        self.runs = 0
        self._before_s = 0.0  # of all runs but the latest
        self._latest: list[Span] = []  # one of each thread

    def add(self, span: Span) -> None:
        """Spans of one run follow each other."""
        if not span.joins:
            self._before_s = self.seconds
            self._latest = []
            self.runs += 1
        self._latest.append(span)

    @property
    def seconds(self) -> float:
        total_s, end_s = self._before_s, 0.0
        for span in sorted(self._latest, key=lambda span: span.began_s):
            total_s += max(0.0, span.ended_s - max(span.began_s, end_s))
            end_s = max(end_s, span.ended_s)
        return total_s


def _report(place: _Place, number: int, runs: _Runs, shared: Counter[Key], texts: Texts) -> KernelReport:
    """A kernel whose key another one has as well, being the same, is counted half with each."""
    row = place.row
    measured = [[taken[key] for key in row.keys if key in taken] for taken in runs.times]
    seconds = None
    if any(measured):
        seconds = median(sum(taken[key][0] / shared[key] for key in row.keys if key in taken) for taken in runs.times)
    return KernelReport(
        row.name,
        row.nodes,
        min(row.read_bytes, COUNT_MAX),
        min(row.written_bytes, COUNT_MAX),
        min(row.flops, COUNT_MAX),
        max((count for taken in measured for _, count in taken), default=0),
        seconds,
        place.inside,
        place.body,
        row.text if texts.wanted and texts.kernel in (None, number) else "",
    )


def _with_sums(reports: list[KernelReport]) -> tuple[KernelReport, ...]:
    """A branch or a loop that was not measured itself takes what the kernels inside it take."""
    for number in reversed(range(len(reports))):
        inner = [report.seconds for report in reports if report.inside == number and report.seconds is not None]
        if reports[number].seconds is None and inner:
            reports[number] = with_fields(reports[number], seconds=sum(inner), runs=1)
    return tuple(reports)
