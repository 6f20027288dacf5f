"""A part that is explained in place of a step: it takes its device as a run does, and ends as one."""

from __future__ import annotations

import pytest
from support.machines.worker_machine import (
    COORD,
    GRAPH,
    KEY,
    ONE_PART,
    PEER,
    SMALL,
    TO_COORD,
    Driver,
    deploy,
    made,
    of,
    one,
    part,
)

from wire.errors import Cancelled, DeviceLost, ExecuteFailed, InputError, StaleGeneration
from wire.protocol.messages import Explain, Explained, Gang, Member, PartSpec, PlanKey
from worker.state import events as ev

ANSWER = Explained((), "a clock", 3, 0.5)


def explain(drive: Driver, step: int = 0, part: int = 0, node: str = COORD, plan: PlanKey = KEY) -> list[ev.Action]:
    return drive(ev.ExplainRequested(node, drive.request(), Explain(plan, step, part, True, 4)))


def test_a_part_is_explained_on_its_device_and_answered() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    asked = one(ev.ExplainPart, actions := explain(drive))
    assert (asked.device, asked.texts, asked.kernel) == (0, True, 4)
    assert of(ev.SendBegan, actions) == [], "nothing of a call has begun"
    assert drive.machine.queue_depth == 1
    assert drive(ev.PartExplained(asked.run, ANSWER)) == [ev.Reply(drive.requests, ANSWER)]
    assert drive.machine.queue_depth == 0


def test_it_waits_for_the_run_before_and_others_wait_for_it() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [], [TO_COORD]), plan=KEY))
    other = PlanKey(7, 2)
    drive.deployed(deploy(ONE_PART, plan=other))
    run = one(ev.Execute, drive.run()).run
    assert of(ev.ExplainPart, explain(drive, plan=other)) == []
    asked = one(ev.ExplainPart, drive(ev.PartExecuted(run, made(SMALL), 0.1)))
    assert of(ev.Execute, drive.run(1)) == []
    assert of(ev.Execute, drive(ev.PartExplained(asked.run, ANSWER))) != []


def test_whoever_gives_it_up_stops_it_and_the_device_goes_on() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    asked = one(ev.ExplainPart, explain(drive))
    assert one(ev.StopRun, drive(ev.RequestGone(drive.requests))).run == asked.run
    assert drive(ev.ExecuteFailed(asked.run, Cancelled("the run was stopped"))) == []
    assert of(ev.ExplainPart, explain(drive, step=1))


def test_what_fails_and_a_lost_host_are_told() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    asked = one(ev.ExplainPart, explain(drive))
    refused = one(ev.Refuse, drive(ev.ExecuteFailed(asked.run, ExecuteFailed("no luck"))))
    assert (refused.request, refused.error.part) == (drive.requests, "0")
    explain(drive, step=1)
    refused = one(ev.Refuse, drive(ev.HostLost(0, DeviceLost("no luck"))))
    assert isinstance(refused.error, DeviceLost) and refused.request == drive.requests


RANK = PartSpec(
    0, 0, GRAPH, (), (), gang=Gang(("dp",), (2,), 0, (Member("me", 0, 0), Member(PEER, 0, 0)))
)  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda drive: explain(drive, node="other"), StaleGeneration, "does not belong to you"),
        (lambda drive: explain(drive, plan=PlanKey(7, 9)), StaleGeneration, "not deployed here"),
        (lambda drive: explain(drive, part=3), InputError, "has no part 3"),
        (lambda drive: [explain(drive), explain(drive)][1], StaleGeneration, "is over or in flight"),
    ],
    ids=["of another", "unknown", "no such part", "twice"],
)
def test_what_cannot_be_explained_is_refused(ask: object, error: type, said: str) -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    refusal = one(ev.Refuse, ask(drive)).error  # type: ignore[operator]
    assert isinstance(refusal, error) and said in str(refusal)


def test_a_rank_of_several_cannot_be_explained() -> None:
    drive = Driver()
    message = deploy(RANK)
    drive.deployed(
        type(message)(message.plan, message.parts, message.graphs, message.blobs, message.peers, False, True)
    )
    refusal = one(ev.Refuse, explain(drive)).error
    assert isinstance(refusal, InputError) and "runs with the others only" in str(refusal)
