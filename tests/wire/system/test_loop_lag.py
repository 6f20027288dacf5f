"""How long event loops stand still is measured to the turn, told in the log, and costs a loop that rests nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from wire.system import loop_lag
from wire.system.loop_lag import LAG_S_MAX, LINE_EVERY_S, WARNED_S, WINDOW_S, LoopLag, measure, recent_lag_s


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def turns(lag: LoopLag, clock: Clock) -> Callable[[float], None]:
    """A loop whose turns take so long."""
    select = lag.wrap(lambda wait_s: None)
    select(0.0)

    def turn(took_s: float) -> None:
        clock.now_s += took_s
        select(1.0)

    return turn


def test_the_longest_turn_of_late_is_told_and_forgotten_within_a_minute(clock: Clock) -> None:
    lag = LoopLag(clock)
    turn = turns(lag, clock)
    for took_s in (0.01, 0.2, 0.03):
        turn(took_s)
    assert lag.recent_s == pytest.approx(0.2)
    clock.now_s += WINDOW_S
    assert lag.recent_s == pytest.approx(0.2)
    clock.now_s += WINDOW_S
    assert lag.recent_s == 0.0


def test_time_in_which_a_loop_rests_does_not_count(clock: Clock) -> None:
    lag = LoopLag(clock)

    def rest(wait_s: float) -> None:
        clock.now_s += wait_s

    select = lag.wrap(rest)
    for _ in range(3):
        select(20.0)
    assert lag.recent_s == 0.0


@pytest.fixture
def unwatched() -> Iterator[None]:
    """No thread looks: what ran is not known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: None)
        yield


def test_a_turn_that_computes_for_long_is_a_warning(
    clock: Clock, unwatched: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, loop_lag.log.name)
    computed_s = iter([0.0, WARNED_S - 0.01, 1.0, 1.0 + WARNED_S, 9.0])
    lag = LoopLag(clock, lambda: next(computed_s))
    lag.tell()
    turn = turns(lag, clock)
    for took_s in (2.0, 5.0):
        turn(took_s)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.WARNING]


def test_the_log_has_one_line_for_many_long_turns(
    clock: Clock, unwatched: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, loop_lag.log.name)
    computed_s = itertools.count(0.0, 0.01)
    lag = LoopLag(clock, lambda: next(computed_s))
    lag.tell()
    turn = turns(lag, clock)
    for took_s in (0.04, 0.3, 0.2, 0.1, 0.7, 0.08, 0.09):
        turn(took_s)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the event loop stood still for 300 ms, and computed for 10 of them",
        "the event loop stood still for 700 ms, and computed for 10 of them",
    ]
    assert "; so did 2 turns before it" in caplog.records[-1].getMessage()
    clock.now_s += LINE_EVERY_S
    lag.wrap(lambda wait_s: None)(0.0)
    turn(0.06)
    assert "; so did 2 turns before it" in caplog.records[-1].getMessage() and len(caplog.records) == 3


def a_long_sum(stop: threading.Event) -> int:
    count = 0
    while not stop.is_set():
        count += 1
    return count


def test_a_real_loop_says_what_stopped_it(caplog: pytest.LogCaptureFixture) -> None:
    """The loop is stopped until the other thread has looked; how long that takes does not matter."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        lag = measure(loop)
        assert measure(loop) is lag
        lag.tell()
        await asyncio.sleep(0)
        seen = threading.Event()
        look = lag.look

        def looked(thread: int) -> None:
            look(thread)
            if "a_long_sum" in lag._doing[1]:
                lag._logged_s = -math.inf  # this machine may have stopped the loop before, which has a line of its own
                seen.set()

        lag.look = looked  # type: ignore[method-assign]
        loop.call_soon(a_long_sum, seen)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert recent_lag_s(loop) >= LAG_S_MAX

    with caplog.at_level(logging.DEBUG, loop_lag.log.name):
        asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records if record.name == loop_lag.log.name]
    assert all(line.startswith("the event loop stood still for ") for line in lines)
    assert sum("a_long_sum" in line for line in lines) == 1


def test_a_loop_that_is_not_measured_says_nothing() -> None:
    async def scenario() -> float:
        time.sleep(2 * LAG_S_MAX)
        await asyncio.sleep(0)
        return recent_lag_s(asyncio.get_running_loop())

    assert asyncio.run(scenario()) == 0.0
