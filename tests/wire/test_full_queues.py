"""Queues and stores that are filled to their bounds (wire/bounds.py), one after the other: what happens then."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.machines.coordinator_machine import Driver, of

from coordinator.calls import events as calls
from coordinator.standby import events as standby
from coordinator.standby.following import Following, _Came
from mesh.client.session import check_choices
from mesh.scripts import agent
from wire.bounds import (
    AGENT_ORDERS,
    CALL_STORY,
    CLOSED_STEPS,
    DROPPED_PLANS,
    EARLY_COUNT,
    EARLY_OF_ONE,
    EARLY_REFUSED,
    IDLE_PLANS,
    JOURNAL_COPIES,
    LOG_LINES,
    LOG_QUEUE,
    LOST_LINKS,
    SESSION_AHEAD,
    WORKER_LOG,
)
from wire.errors import InputError, NodeLost, QueueFull
from wire.protocol.messages import PlanKey
from wire.standby.configuration import Ballot
from wire.system.log_ring import LogRing
from worker.state.early_tensors import EarlyTensors
from worker.state.events import Inline, Log, Release
from worker.state.lost_links import LostLinks
from worker.state.plan import DroppedPlans
from worker.state.step import ClosedSteps

PLAN, OTHER_PLAN = PlanKey(7, 1), PlanKey(7, 2)


def test_so_many_steps_may_be_in_flight() -> None:
    check_choices("", 1, SESSION_AHEAD.most)
    with pytest.raises(InputError, match=f"{SESSION_AHEAD.most + 1}"):
        check_choices("", 1, SESSION_AHEAD.most + 1)


def test_an_agent_reads_no_more_orders_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    told: list[Any] = []

    def orders() -> Iterator[dict[str, Any]]:
        for number in range(3 * AGENT_ORDERS.most):
            read.append(number)
            yield {"note": number}

    class Obeys:
        """Ranks that obey nothing until all that can come has come."""

        def __init__(self, *_: object) -> None:
            return

        async def run(self, queue: asyncio.Queue[dict[str, Any]]) -> None:
            while not queue.full():
                await asyncio.sleep(0)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert len(read) == AGENT_ORDERS.most + 1, "one is on its way into the queue"
            while "signal" not in (order := await queue.get()):
                told.append(order["note"])

    monkeypatch.setattr(agent, "Ranks", Obeys)
    asyncio.run(agent._run({}, orders()))
    assert told == read == list(range(3 * AGENT_ORDERS.most))


def test_a_standby_with_a_slow_disk_asks_again() -> None:
    """Messages come faster than they are written: those that find no room are said to be not stored."""
    fed: list[standby.Event] = []
    follower = cast(Any, Following.__new__(Following))
    follower._writes = asyncio.Queue(JOURNAL_COPIES.most)
    follower._shell = SimpleNamespace(feed=fed.append)
    messages = [standby.Entries("a", Ballot(1, "a"), number, 0, 0) for number in range(JOURNAL_COPIES.most + 2)]
    follower._came = dict.fromkeys(messages, _Came([], ()))
    for message in messages:
        follower._write(standby.Write(message))
    assert follower._writes.qsize() == JOURNAL_COPIES.most
    assert fed == [standby.NotStored(JOURNAL_COPIES.most), standby.NotStored(JOURNAL_COPIES.most + 1)]


def test_so_many_plans_stay_deployed_without_a_call() -> None:
    drive = Driver("a")
    dropped: list[calls.SendDrop] = []
    for number in range(1, IDLE_PLANS.most + 3):
        dropped += of(calls.SendDrop, drive(calls.CallSubmitted(number, f"job {number}")))
        drive(calls.PlanMade(number, frozenset({"a"}), 0))
        drive(calls.DeployDone(number, "a"))
        drive(calls.NodeRan(number, 0, "a"))
    assert [drop.generation for drop in dropped] == [1], "the oldest"
    assert len(drive.machine.story) <= CALL_STORY.most


def test_what_is_there_for_people_is_the_latest() -> None:
    log = Log()
    for number in range(WORKER_LOG.most + 5):
        log.add(float(number), str(number))
    assert len(log) == WORKER_LOG.most and log[0].text == "5"
    drive = Driver("a")
    for number in range(CALL_STORY.most):
        drive(calls.NodeJoined(f"node {number}"))
    assert len(drive.machine.story) == CALL_STORY.most


def test_tensors_that_are_early_are_counted() -> None:
    early = EarlyTensors(1 << 40, EARLY_COUNT.most, 1 << 40)
    tensor = Inline("u8", (1,), b"a")
    assert not any(early.add(PLAN, 0, (0, slot), "node", tensor) for slot in range(EARLY_COUNT.most))
    assert early.add(PLAN, 1, (0, 0), "node", tensor) == [Release(tensor)]
    assert isinstance(early.refusal(PLAN, 1), QueueFull) and early.refusal(PLAN, 0) is None
    assert len(early.take(PLAN, 0)) == EARLY_COUNT.most
    assert early.add(PLAN, 2, (0, 0), "node", tensor) == [], "the room is free again"


def test_of_many_steps_without_room_all_between_are_refused() -> None:
    early = EarlyTensors(10, 10, 10)
    tensor = Inline("u8", (11,), bytes(11))
    assert early.add(PLAN, 3, (0, 0), "node", tensor) == [], "the plan needs it for the first step"
    for step in (*range(5, 5 + EARLY_REFUSED.most), 2000, 3000):
        assert early.add(PLAN, step, (0, 0), "node", tensor) == [Release(tensor)]
    early.validate()
    assert early.refusal(PLAN, 4) is None and early.refusal(PlanKey(7, 99), 9) is None
    assert isinstance(early.refusal(PLAN, 5), QueueFull)
    assert isinstance(early.refusal(PLAN, 2500), QueueFull), "it may be one of those that came later"
    assert early.refusal(PLAN, 3001) is None, "there is room again"
    early.release_all(lambda plan: plan == PLAN)
    assert early.refusal(PLAN, 5) is None, "the plan is over"


def test_who_has_most_gives_way_and_what_it_left_goes_with_its_link() -> None:
    early = EarlyTensors(100, 1000, EARLY_OF_ONE.most)
    hoard, small = Inline("u8", (30,), bytes(30)), Inline("u8", (20,), bytes(20))
    for step in range(4):
        assert early.add(PLAN, step, (0, 0), "hoarder", hoard) == []
    assert early.add(OTHER_PLAN, 0, (0, 0), "honest", small) == [], "its first step"
    assert early.add(OTHER_PLAN, 1, (0, 0), "honest", small) == [Release(hoard)], "of the hoarder's latest step"
    assert early.refusal(OTHER_PLAN, 1) is None and isinstance(early.refusal(PLAN, 3), QueueFull)
    assert early.add(PLAN, 7, (0, 0), "hoarder", hoard) == [Release(hoard)], "it would have most again"
    assert early.release_of("hoarder") == [Release(hoard)] * 3
    assert isinstance(early.refusal(PLAN, 0), NodeLost), "its Run would wait for ever"
    assert early.take(OTHER_PLAN, 0) == [((0, 0), small)]
    early.validate()


def test_no_sender_has_more_than_its_own_room() -> None:
    early = EarlyTensors(100, 1000, 50)
    half = Inline("u8", (30,), bytes(30))
    for step in (0, 1):
        assert early.add(PLAN, step, (0, 0), "node", half) == []
    assert early.room("node", (PLAN, 2)) == 20 and early.room("another", (PLAN, 2)) is None
    assert early.room("another", (PLAN, 2), {(PLAN, 2): 70}) is None
    assert early.room("another", (PLAN, 2), {(PLAN, 1): 70, (PLAN, 2): 10}) == 40
    assert early.add(PLAN, 2, (0, 0), "node", half) == [Release(half)]
    assert isinstance(early.refusal(PLAN, 2), QueueFull) and early.refusal(PLAN, 1) is None


def test_the_first_step_of_each_sender_has_what_it_takes() -> None:
    early = EarlyTensors(100, 1000, 50)
    large = Inline("u8", (400,), bytes(400))
    for part, node in enumerate(("one", "other")):
        for slot in (0, 1):
            assert early.add(PLAN, 4, (part, slot), node, large) == [], "more than the room of all"
        assert early.add(PLAN, 5, (part, 0), node, large) == [Release(large)]
    early.validate()
    assert len(early.take(PLAN, 4)) == 4


def test_a_worker_remembers_the_latest() -> None:
    plans = DroppedPlans()
    for number in range(DROPPED_PLANS.most + 3):
        plans.add(PlanKey(7, number))
    assert len(plans) == DROPPED_PLANS.most and PlanKey(7, 2) not in plans and PlanKey(7, 3) in plans

    closed = ClosedSteps()
    for number in range(CLOSED_STEPS.most + 1):
        closed.add(2 * number + 1)  # between them some that are not over
    assert len(closed.above) <= CLOSED_STEPS.most and 0 in closed and 2 * CLOSED_STEPS.most not in closed

    lost = LostLinks(1.0)
    for number in range(LOST_LINKS.most + 1):
        lost.ended(f"node {number}", (), float(number))
    late_s = LOST_LINKS.most + 10.0
    assert lost.refusal(["node 0"], late_s) is None and lost.refusal(["node 1"], late_s) is not None


def test_lines_that_nobody_reads_are_dropped_and_counted() -> None:
    written = io.StringIO()
    before, sys.stderr = sys.stderr, written
    try:
        ring = LogRing(as_json=False)
        ring._queue.put(None)
        ring._thread.join()  # nobody writes for now, as with a terminal that is stopped
        for number in range(LOG_QUEUE.most + 7):
            ring.emit(logging.LogRecord("test", logging.INFO, "", 0, f"line {number}", (), None))
        assert len(ring.lines) == LOG_LINES.most and ring.lines[-1].endswith(f"line {LOG_QUEUE.most + 6}")
        ring._queue.get()
        ring._queue.put(None)
        ring._write()
    finally:
        sys.stderr = before
    lines = written.getvalue().splitlines()
    assert lines[1] == "(7 lines before this one were dropped)" and len(lines) == LOG_QUEUE.most
