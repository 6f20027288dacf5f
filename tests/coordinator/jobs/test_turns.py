"""The turns of what a client asks of a session: nobody waits for one that does not come any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.jobs.client_session import Requests
from coordinator.jobs.session_service import SessionService
from wire.errors import Busy, Cancelled, MeshError


def in_turn(opened: Any, requests: Requests, number: int) -> asyncio.Task[Any]:
    """The answer to what a client asks by this number of a session that is over."""

    def ask() -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(Cancelled("the session is closed"))
        return future

    service = cast(Any, SessionService.__new__(SessionService))
    return asyncio.create_task(service._in_turn(opened, requests, number, ask, dict.items))


@pytest.mark.parametrize("taken", [False, True])
async def test_what_arrives_after_the_end_of_a_session_does_not_wait_for_what_was_to_come_before(taken: bool) -> None:
    """The arguments of a step are large, and come as another client takes the session, or after it was closed.  Those
    of the step before never come, since the link ended."""
    requests = Requests()
    session = SimpleNamespace(next_number=0)
    opened = SimpleNamespace(session=session, requests=requests, terms=SimpleNamespace(name="run"), client="", token="")
    before = in_turn(opened, requests, 2)
    await asyncio.sleep(0)
    requests.end(Cancelled("the session was closed"))
    if taken:
        opened.requests = Requests()
    for late in (before, in_turn(opened, requests, 1), in_turn(opened, requests, 3)):
        with pytest.raises(MeshError):
            async with asyncio.timeout(120):
                await late


async def test_sessions_whose_values_arrive_at_the_same_time_are_no_more_than_may_be() -> None:
    service = cast(Any, SessionService.__new__(SessionService))
    service._sessions_max, service._sessions_of_client_max = 8, 1
    mine = SimpleNamespace(owner="client", terms=SimpleNamespace(name=""))
    service._sessions, service._tokens = {"other": mine}, {}
    link = SimpleNamespace(peer=SimpleNamespace(node_id="client", name="client"))
    with pytest.raises(Busy):
        await service._open_with(link, SimpleNamespace(name="", session="t"), "t", None, "auto")
