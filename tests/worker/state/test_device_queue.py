"""What an engine host does now, and since when: it takes what it is asked one by one."""

from __future__ import annotations

from wire.protocol.messages import PlanKey, Working
from worker.state.device_queue import DeviceQueue

PLAN, OTHER = PlanKey(1, 1), PlanKey(1, 2)
RUNS = {7: (PLAN, 3, 0), 3: (PLAN, 3, 0)}


def test_parts_are_prepared_one_after_another() -> None:
    device = DeviceQueue()
    assert device.working(RUNS, 0.0) == []
    device.prepare(1, PLAN, 4, 10.0)
    device.prepare(2, PLAN, 5, 11.0)
    assert device.working(RUNS, 15.0) == [Working(PLAN, 0, 4, 5.0, preparing=True)]
    device.prepare_ended(1, 16.0)
    assert device.working(RUNS, 17.0) == [Working(PLAN, 0, 5, 1.0, preparing=True)]
    device.prepare_ended(2, 18.0)
    assert device.working(RUNS, 19.0) == []


def test_a_run_begins_when_what_was_asked_before_it_is_done() -> None:
    device = DeviceQueue()
    device.prepare(1, OTHER, 4, 10.0)
    device.start(7, (), 11.0)
    assert device.working(RUNS, 15.0) == [Working(OTHER, 0, 4, 5.0, preparing=True)]
    device.prepare_ended(1, 16.0)
    assert device.working(RUNS, 17.0) == [Working(PLAN, 3, 0, 1.0)]


def test_a_part_is_prepared_when_the_run_before_it_is_done() -> None:
    device = DeviceQueue()
    device.start(3, (), 10.0)
    device.prepare(4, OTHER, 4, 11.0)
    assert device.working(RUNS, 15.0) == [Working(PLAN, 3, 0, 5.0)]
    device.end(3, 16.0)
    assert device.working(RUNS, 17.0) == [Working(OTHER, 0, 4, 1.0, preparing=True)]
    device.prepare_ended(9, 18.0)
    assert device.working(RUNS, 19.0) == [Working(OTHER, 0, 4, 3.0, preparing=True)], "another device's"
