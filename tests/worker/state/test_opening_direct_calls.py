"""Direct calls of a part: who may have them, and of what."""

from __future__ import annotations

import pytest
from support.machines.worker_machine import COORD, GRAPH, KEY, ONE_PART, PEER, Driver, deploy, of, one

from wire.errors import InputError, MeshError, StaleGeneration
from wire.protocol.messages import Gang, Member, PartSpec, PlanKey
from worker.state import events as ev

RANK = PartSpec(
    0, 0, GRAPH, (), (), gang=Gang(("dp",), (2,), 0, (Member("me", 0, 0), Member(PEER, 0, 0)))
)  # fmt: skip


def ask(drive: Driver, node: str = COORD, plan: PlanKey = KEY, part: int = 0) -> list[ev.Action]:
    return drive(ev.DirectRequested(node, drive.request(), plan, part, "/dev/shm/theirs", "name"))


def test_the_host_of_a_deployed_part_is_connected() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    opened = one(ev.OpenDirect, ask(drive))
    assert (opened.request, opened.device) == (drive.requests, 0)
    assert (opened.directory, opened.name) == ("/dev/shm/theirs", "name")
    assert opened.prepared == drive.machine._plans[KEY].prepared[0]


@pytest.mark.parametrize(
    ("node", "plan", "part", "error"),
    [
        (PEER, KEY, 0, StaleGeneration),
        (COORD, PlanKey(KEY.epoch - 1, KEY.generation), 0, StaleGeneration),
        (COORD, PlanKey(KEY.epoch, KEY.generation + 1), 0, StaleGeneration),
        (COORD, KEY, 1, InputError),
    ],
    ids=["another node", "an earlier epoch", "another plan", "another part"],
)
def test_nobody_else_and_nothing_else_is(node: str, plan: PlanKey, part: int, error: type[MeshError]) -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    actions = ask(drive, node, plan, part)
    assert of(ev.OpenDirect, actions) == []
    assert isinstance(one(ev.Refuse, actions).error, error)


def test_a_dropped_plan_has_none_and_its_part_is_taken_back() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    prepared = one(ev.OpenDirect, ask(drive)).prepared
    dropped = drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert [action.prepared for action in of(ev.Unprepare, dropped)] == [prepared]
    assert isinstance(one(ev.Refuse, ask(drive)).error, StaleGeneration)


def test_a_rank_of_a_gang_has_none() -> None:
    drive = Driver()
    message = deploy(RANK)
    drive.deployed(
        type(message)(message.plan, message.parts, message.graphs, message.blobs, message.peers, False, True)
    )
    assert isinstance(one(ev.Refuse, ask(drive)).error, InputError)
