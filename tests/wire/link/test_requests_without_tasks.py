"""Requests whose answers are Outcomes, on either side of a link: answers, refusals, withdrawals, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.machines.links import node

from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from wire.errors import Busy, MeshError, NodeLost, OutOfMemory, RemoteError
from wire.limits import Limits
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import AskNodes, Done, Message, decode_message
from wire.system.outcome import Outcome


class End:
    """One end of a link, which notes what happens in order; `answer` answers requests."""

    def __init__(self, answer: Callable[[], Outcome[Message]] = Outcome) -> None:
        self.happened: list[Any] = []
        self._answer = answer

    def on_request(self, link: Link, body: Message) -> Outcome[Message]:
        self.happened.append("asked")
        return self._answer()

    def on_answer(self, answer: Message | None, error: MeshError | None) -> None:
        self.happened.append(answer or type(error))

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        self.happened.append("unlinked")

    def on_linked(self, link: Link) -> None: ...

    def on_notify(self, link: Link, body: Message) -> None: ...

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        raise NodeLost("no streams here")

    def on_stream_done(self, *args: Any) -> None: ...


def linked(asks: End, answers: End, scenario: Callable[[Link], Awaitable[None]]) -> None:
    """Have one end dial the other, and do something over their link."""

    async def main() -> None:
        network = SimulatedNetwork(0)
        there = Endpoint(node("b", host_id="b"), answers, network.carrier("b"), Limits())
        here = Endpoint(node("a", host_id="a"), asks, network.carrier("a"), Limits())
        link = await here.dial("b", await there.listen("", 0, 0))
        await scenario(link)
        await here.close()
        await there.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_an_answer_that_comes_later_is_told_once() -> None:
    asks, waiting = End(), Outcome[Message]()
    answers = End(lambda: waiting)

    async def scenario(link: Link) -> None:
        link.outcome_of(AskNodes()).then(asks.on_answer)
        await asyncio.sleep(1)
        assert not asks.happened
        waiting.set_result(Done())
        await asyncio.sleep(1)
        assert asks.happened == [Done()]

    linked(asks, answers, scenario)


def test_refusals_and_faults_are_told_as_errors() -> None:
    def busy() -> Outcome[Message]:
        raise Busy("not now")

    def broken() -> Outcome[Message]:
        raise KeyError("a bug")

    for answer, error in ((busy, Busy), (broken, RemoteError)):
        asks = End()

        async def scenario(link: Link, asks: End = asks, error: type[MeshError] = error) -> None:
            link.outcome_of(AskNodes()).then(asks.on_answer)
            await asyncio.sleep(1)
            assert asks.happened == [error] and not link.closed

        linked(asks, End(answer), scenario)


def test_who_withdraws_a_request_hears_nothing_and_whoever_answers_hears_that() -> None:
    asks, withdrawn = End(), list[str]()
    answers = End(lambda: Outcome(lambda: withdrawn.append("it")))

    async def scenario(link: Link) -> None:
        outcome = link.outcome_of(AskNodes())
        outcome.then(asks.on_answer)
        await asyncio.sleep(1)
        outcome.cancel()
        await asyncio.sleep(1)
        assert withdrawn == ["it"] and not asks.happened

    linked(asks, answers, scenario)


def test_the_end_of_a_link_is_told_before_what_it_did_to_requests() -> None:
    """What follows from the end of a node is decided by that, as with futures, and not by the first failed request."""
    asks, withdrawn = End(), list[str]()
    answers = End(lambda: Outcome(lambda: withdrawn.append("it")))

    async def scenario(link: Link) -> None:
        link.outcome_of(AskNodes()).then(asks.on_answer)
        await asyncio.sleep(1)
        link.fail(NodeLost("cut"))
        await asyncio.sleep(1)
        assert asks.happened == ["unlinked", NodeLost]
        assert answers.happened == ["asked", "unlinked"] and withdrawn == ["it"]

    linked(asks, answers, scenario)


@pytest.mark.parametrize("by_future", [False, True])
def test_whoever_waits_for_an_answer_that_there_is_no_memory_to_read_hears_of_it(
    by_future: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, answered = End(), Outcome[Message]()
    answers = End(lambda: answered)

    def decode(data: bytes) -> Message:
        body = decode_message(data)
        if isinstance(body, Done):
            raise MemoryError
        return body

    async def scenario(link: Link) -> None:
        monkeypatch.setattr("wire.link.link.decode_message", decode)
        waiting = asyncio.ensure_future(link.request(AskNodes(), None)) if by_future else None
        if waiting is None:
            link.outcome_of(AskNodes()).then(asks.on_answer)
        await asyncio.sleep(1)
        answered.set_result(Done())
        await asyncio.sleep(1)
        if waiting is not None:
            assert waiting.done() and isinstance(waiting.exception(), OutOfMemory)
        else:
            assert asks.happened == [OutOfMemory]
        assert not link.closed

    linked(asks, answers, scenario)
