"""A throttled engine keeps its pace, by a clock that only sleeping and pretended work move; and what a flag may say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mesh.commands.worker import THROTTLE
from mesh.simulation.throttle import Throttle, parse_throttle
from mesh.simulation.throttled_engine import Clock, ThrottledEngine
from mesh.simulation.throttled_host import throttled
from wire.errors import Cancelled, ConfigError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import Attrs
from wire.protocol.throttled_adapters import throttle_in, throttled_name
from worker.cpu.engine import CpuEngine
from worker.engine.protocol import Measured, Pending

FLOPS_PER_S = 1e6


@dataclass
class Time:
    now_s: float = 5.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, self.sleep)


class Slow:
    """The cpu engine, whose every run takes some of the pretended time."""

    def __init__(self, time: Time, takes_s: float) -> None:
        self._engine, self._time, self._takes_s = CpuEngine(), time, takes_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, *arguments: Any) -> list[NDArray[Any]]:
        self._time.now_s += self._takes_s
        return self._engine.run(*arguments)


class Others:
    """The other ranks: they answer after a time, with what they were given."""

    oversubscribed = True

    def __init__(self, time: Time, answer_s: float) -> None:
        self._time, self._answer_s, self.started_s = time, answer_s, list[float]()

    def start(self, op: str, attrs: Attrs, operand: NDArray[Any] | None, meanwhile: bool = True) -> Pending:
        self.started_s.append(self._time.now_s)
        return _Answer(operand, lambda: self._time.sleep(self._answer_s))


@dataclass
class _Answer:
    value: Any
    wait: Callable[[], None]

    def result(self) -> Any:
        self.wait()
        return self.value


def product(rows: int = 50) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (rows, 10), F32)
    return builder.build([builder.add("dot", x, builder.input("y", (10, 10), F32), lhs_contract=(1,), rhs_contract=(0,),
                                      lhs_batch=(), rhs_batch=())])  # fmt: skip


def ranks() -> WireGraph:
    """1000 additions, a collective of those, 1000 more that need it, and another collective."""
    builder = GraphBuilder()
    both = {"axes": ("n",), "sizes": (2,), "reduction": "sum"}
    x = builder.input("x", (1000,), F32)
    y = builder.add("all_reduce", builder.add("add", x, x), **both)
    return builder.build([builder.add("all_reduce", builder.add("add", y, y), **both)])


def made(time: Time, takes_s: float = 0.0) -> ThrottledEngine:
    return ThrottledEngine(Slow(time, takes_s), FLOPS_PER_S, time.clock())


def given(graph: WireGraph) -> Sequence[Any]:
    return [np.ones(kind.shape, np.float32) for kind in graph.input_types.values()]


@pytest.mark.parametrize("takes_s", [0.0, 0.004, 0.5])
def test_a_part_takes_its_flops_by_the_rate_and_what_it_computes_counts(takes_s: float) -> None:
    time, graph = Time(), product()
    engine = made(time, takes_s)
    executable = engine.compile(graph)
    (found,) = engine.run(executable, given(graph))
    assert found[0, 0] == 10 and graph.flops == 2 * 50 * 10 * 10
    assert time.now_s - 5.0 == pytest.approx(max(graph.flops / FLOPS_PER_S, takes_s))
    assert sum(time.slept) == pytest.approx(max(graph.flops / FLOPS_PER_S - takes_s, 0.0))


def test_ranks_start_collectives_when_the_work_before_is_done_and_waiting_is_no_work() -> None:
    time, graph = Time(), ranks()
    engine, others = made(time), Others(time, answer_s=3.0)
    engine.run(engine.compile(graph), given(graph), lambda: False, others)
    adding_s = 1000 / FLOPS_PER_S
    own_s = graph.flops / FLOPS_PER_S
    assert others.started_s[0] == pytest.approx(5.0 + adding_s)
    assert time.now_s == pytest.approx(5.0 + own_s + 2 * 3.0)
    assert others.started_s[1] <= 5.0 + own_s + 3.0 + 1e-9


def test_a_run_that_was_stopped_does_not_sleep_on() -> None:
    time, graph = Time(), product(100_000)
    engine = made(time)
    executable = engine.compile(graph)
    with pytest.raises(Cancelled):
        engine.run(executable, given(graph), lambda: time.now_s > 5.1)
    assert sum(time.slept) < 0.2


def test_the_planner_is_told_the_pace_and_the_measurement_is_of_the_device() -> None:
    figures = Measured(50.0, 10.0, 1e-5)
    engine, device = throttled(CpuEngine(), figures, parse_throttle("flops=2e9"))
    assert device.figures == Measured(2.0, 10.0, 1e-5) and isinstance(engine, ThrottledEngine)
    assert throttle_in(device.info.adapter) == "flops=2e9"
    engine, device = throttled(CpuEngine(), figures, parse_throttle("delay=1ms"))
    assert device.figures == figures and isinstance(engine, CpuEngine)
    assert throttle_in(device.info.adapter) == "delay=1ms"
    _, device = throttled(CpuEngine(), figures, parse_throttle("flops=1e15"))
    assert device.figures == figures, "no faster than it is"


def test_what_a_flag_says() -> None:
    text = "flops=2e9,rate=20Mbit/s,delay=5ms"
    assert parse_throttle(text) == Throttle(text, 2e9, 2.5e6, 0.005)
    assert parse_throttle(THROTTLE) == parse_throttle(text), "the help's example"
    assert parse_throttle("delay=250us").delay_s == pytest.approx(0.00025)
    assert parse_throttle(" rate=1.5Gbit/s").bytes_per_s == pytest.approx(1.5e9 / 8)
    assert throttle_in(throttled_name("A processor (4 cores)", text)) == text and throttle_in("A card") == ""


@pytest.mark.parametrize(
    "text",
    ["flops", "flops=", "flops=fast", "flops=0", "flops=-1", "flops=1e30", "speed=3", "rate=20", "rate=20MB", ",",
     "delay=5", "delay=99s", "", "flops=1,flops=2", "flops=1e9;delay=1ms"],
)  # fmt: skip
def test_what_it_may_not_say(text: str) -> None:
    with pytest.raises(ConfigError, match="not a throttle") as raised:
        parse_throttle(text)
    assert "flops=2e9" in raised.value.next_step
