"""The guard before a handler: what the table does not allow does not get through, and is counted against its sender."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.machines.links import Recorder, node
from support.messages import MESSAGES

from wire.bounds import LINES_OF_ONE, REFUSED_MESSAGES
from wire.errors import Busy, MeshError, NotTrusted, ProtocolError, StaleGeneration
from wire.link.guard import Guard, Test
from wire.link.link import Link
from wire.protocol.messages import AskNodes, AskTokens, Ballast, Beat, Deploy, Done, Drop, Message, PlanKey, Push, Value
from wire.protocol.permissions import TABLE, Receiver, Relation, Way
from wire.system.log_limit import LogLimit

BEAT = Beat(1, 0, 0.0, 0)
PUSH = Push(PlanKey(7, 1), 0, 0, 0, Value("f32", (), b"1234"))
ALONE: dict[Relation, Test] = dict.fromkeys(Relation, lambda link, body: False)


class Sender(SimpleNamespace):
    """The link to a node, as the guard sees it."""

    def __init__(self, role: str, name: str = "them") -> None:
        super().__init__(peer=node(name, role=role), closed=False, why=None)

    __hash__ = object.__hash__

    def fail(self, why: MeshError) -> None:
        self.closed, self.why = True, why


def sender(role: str) -> Any:
    return cast(Link, Sender(role))


class RecordingHandler(Recorder):
    """Knows what came, in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Message] = []
        self.opened: list[Message] = []

    async def on_request(self, link: Link, body: Message) -> Message:
        self.asked.append(body)
        return Done()

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        self.opened.append(header)
        return super().on_stream_open(link, header, size_bytes)

    @property
    def nothing(self) -> bool:
        return not self.asked and not self.opened and self.notes.empty()


async def tried(guard: Guard, link: Link, body: Message, way: Way) -> MeshError | None:
    """Send something in a way; the error that it got, None for one that came through or was dropped."""
    try:
        match way:
            case Way.REQUEST:
                await guard.on_request(link, body)
            case Way.NOTIFICATION:
                guard.on_notify(link, body)
            case Way.STREAM:
                guard.on_stream_open(link, body, 1 << 40)
    except MeshError as error:
        return error
    return None


@pytest.mark.parametrize("receiver", Receiver)
@pytest.mark.parametrize("way", Way)
async def test_whoever_has_no_relation_gets_nothing_through(receiver: Receiver, way: Way) -> None:
    """Every message there is, in every way, to every kind of node; a stream of a terabyte takes no memory."""
    for role in ("client", "worker", "coordinator", "operator"):
        handler = RecordingHandler()
        guard = Guard(handler, receiver, ALONE)
        for body in MESSAGES:
            error = await tried(guard, sender(role), body, way)
            known = receiver in TABLE[way].get(type(body), {})
            assert isinstance(error, NotTrusted | StaleGeneration if known else ProtocolError) or (
                known and way is Way.NOTIFICATION and error is None
            ), (role, body, error)
        assert handler.nothing


@pytest.mark.parametrize("receiver", Receiver)
@pytest.mark.parametrize("way", Way)
async def test_each_relation_gets_through_what_its_row_has_and_nothing_else(receiver: Receiver, way: Way) -> None:
    for relation in Relation:
        handler = RecordingHandler()
        guard = Guard(handler, receiver, ALONE | {relation: lambda link, body: True})
        expected = [body for body in MESSAGES if relation in TABLE[way].get(type(body), {}).get(receiver, ())]
        for body in MESSAGES:
            if way is not Way.STREAM or body in expected:
                await tried(guard, sender("nobody"), body, way) if way is not Way.STREAM else guard.on_stream_open(
                    sender("nobody"), body, 1
                )
        notes = [handler.notes.get_nowait() for _ in range(handler.notes.qsize())]
        assert {Way.REQUEST: handler.asked, Way.NOTIFICATION: notes, Way.STREAM: handler.opened}[way] == expected


async def test_a_request_is_answered_with_what_is_wrong() -> None:
    guard = Guard(RecordingHandler(), Receiver.COORDINATOR, ALONE | {Relation.CLIENT: lambda link, body: False})
    with pytest.raises(NotTrusted, match="them is a worker: only clients submit jobs"):
        await guard.on_request(sender("worker"), AskNodes())


async def test_a_role_that_is_too_low_is_told() -> None:
    guard = Guard(RecordingHandler(), Receiver.COORDINATOR, ALONE | {Relation.ADMIN: lambda link, body: False})
    with pytest.raises(NotTrusted, match="them has the role operator: to list tokens needs the role admin"):
        await guard.on_request(sender("operator"), AskTokens())


async def test_a_coordinator_that_does_not_own_the_worker_learns_that_it_must_join() -> None:
    guard = Guard(RecordingHandler(), Receiver.WORKER, ALONE)
    with pytest.raises(StaleGeneration, match="does not belong to you"):
        await guard.on_request(sender("coordinator"), Drop(PlanKey(1, 1)))
    with pytest.raises(NotTrusted, match="only the coordinator of a worker sends Drop"):
        await guard.on_request(sender("worker"), Drop(PlanKey(1, 1)))


async def test_a_standby_says_that_it_is_one() -> None:
    guard = Guard(RecordingHandler(), Receiver.STANDBY, ALONE, Busy("this coordinator is a standby"))
    with pytest.raises(Busy, match="standby"):
        await guard.on_request(sender("client"), AskNodes())
    guard.on_notify(sender("worker"), BEAT)


async def test_who_goes_on_has_its_link_ended(caplog: pytest.LogCaptureFixture) -> None:
    guard, bad, good = Guard(RecordingHandler(), Receiver.COORDINATOR, ALONE), sender("client"), sender("client")
    for _ in range(REFUSED_MESSAGES.most - 1):
        guard.on_notify(bad, PUSH)
    assert not bad.closed
    guard.on_notify(good, PUSH)
    guard.on_notify(bad, PUSH)
    assert bad.closed and isinstance(bad.why, NotTrusted) and not good.closed


async def test_what_is_refused_is_told_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    guard, bad = Guard(RecordingHandler(), Receiver.COORDINATOR, ALONE), sender("client")
    with caplog.at_level(logging.WARNING, "graph_mesh.link"):
        for _ in range(500):
            guard.on_notify(bad, PUSH)
    assert [record.getMessage() for record in caplog.records] == [
        "refused: them is a client: only the worker that the plan names sends Push"
    ]
    assert guard.refused_of == {"id-them": 500}


def test_a_limit_on_lines_says_how_many_it_left_out() -> None:
    limit = LogLimit()
    assert limit.admit(0.0) == 0
    assert [limit.admit(second) for second in (0.0, 1.0, 9.9)] == [None] * 3
    assert limit.admit(60 / LINES_OF_ONE.most) == 3


async def test_counts_go_with_the_link() -> None:
    guard, bad = Guard(RecordingHandler(), Receiver.COORDINATOR, ALONE), sender("client")
    guard.on_notify(bad, PUSH)
    guard.on_unlinked(bad, None)
    assert guard.refused_of == {} and not guard._ledgers


async def test_a_stream_of_the_wrong_kind_ends_the_link_and_one_of_the_wrong_sender_is_refused() -> None:
    guard = Guard(RecordingHandler(), Receiver.WORKER, ALONE)
    with pytest.raises(ProtocolError, match="a worker does not take Deploy as a stream"):
        guard.on_stream_open(sender("worker"), Deploy(PlanKey(1, 1), (), {}, (), {}), 1 << 40)
    with pytest.raises(NotTrusted):
        guard.on_stream_open(sender("client"), Ballast(1), 1 << 40)
    await asyncio.sleep(0)
