"""What follows for one worker keeps no other from being heard of."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.calls import events as ev
from coordinator.runtime.health_watch import HealthWatch
from coordinator.workers.failure_detector import Cause, Health, Transition
from mesh.simulation.loop import VirtualLoop
from wire.errors import NodeLost
from wire.system.tasks import Tasks


@pytest.mark.parametrize("fault", [KeyError("bad"), NodeLost("its link is closed")], ids=repr)
def test_a_decision_that_cannot_be_carried_out_keeps_nobody_from_hearing_of_a_death(
    caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    heard: list[str] = []

    def changed(change: Transition) -> None:
        if change.node == "bad":
            raise fault
        heard.append(change.node)

    watch = cast(Any, HealthWatch.__new__(HealthWatch))
    watch._performers = {Transition: changed}
    row = Health.DEAD, Health.SUSPECT, 5.0, 5.0, "silent", Cause.TIMED_OUT, 1
    watch._judge([Transition(node, *row) for node in ("bad", "b", "c")])
    assert heard == ["b", "c"]
    assert "what follows of Transition failed" in caplog.text and str(fault) in caplog.text


def test_time_goes_on_for_calls_though_judging_workers_fails() -> None:
    """Calls that wait for a worker have an end, and those that failed are tried again."""
    fed: list[ev.Event] = []

    def tick(now: float, late_s: float) -> list[Transition]:
        raise KeyError("a worker")

    async def story() -> None:
        watch, tasks = cast(Any, HealthWatch.__new__(HealthWatch)), Tasks()
        watch.detector = SimpleNamespace(next_deadline=lambda: 0.1, tick=tick)
        watch._machine = SimpleNamespace(next_deadline=lambda: None)
        watch._runner = SimpleNamespace(feed=fed.append)
        watch._now, watch._wake = asyncio.get_running_loop().time, asyncio.Event()
        tasks.keep("watching", watch.run)
        await asyncio.sleep(5.5)
        tasks.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert 5 <= len(fed) < 20 and set(map(type, fed)) == {ev.Tick}, "and no more often than faults are tried again"
