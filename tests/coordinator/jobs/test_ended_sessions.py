"""A session that is ended leaves nothing behind, whatever becomes of the client that asked for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.jobs.client_session import ClientSession, Terms
from coordinator.jobs.journal import FORGOTTEN
from coordinator.jobs.session_service import SessionService
from coordinator.sessions.state import Policy
from wire.errors import Cancelled
from wire.system.tasks import Tasks


async def test_one_whose_client_goes_while_workers_let_go_of_it_is_forgotten_all_the_same() -> None:
    """The answer to a request is cancelled as its link ends, and workers may take seconds to drop what they hold."""
    terms = Terms("client", "auto", (), 0, 2, Policy("buddy"), "run7")
    opened, dropped = ClientSession("id", "token", "client", "client", terms), asyncio.Event()
    opened.session = cast(Any, SimpleNamespace(close=dropped.wait, next_number=0))
    forgotten, released = list[str](), list[bytes]()

    async def save(entry: str, kind: str, fields: dict[str, Any]) -> None:
        assert kind == FORGOTTEN
        forgotten.append(entry)

    service = cast(Any, SessionService.__new__(SessionService))
    service._store, service._doing, service._ending = SimpleNamespace(save=save), Tasks(), Tasks()
    service._contents = SimpleNamespace(release=lambda owner, addresses: released.extend(addresses))
    service._sessions, service._tokens = {"id": opened}, {("client", "token"): "id"}
    answered = asyncio.get_running_loop().create_future()
    answered.set_result(None)
    opened.requests.answers[0], opened.requests.blobs[0] = cast(Any, answered), [b"an output"]
    later = asyncio.get_running_loop().create_future()
    opened.requests.turns[2] = later
    ending = asyncio.create_task(service._end(opened))
    await asyncio.sleep(0.01)
    ending.cancel()  # as its link ends
    with pytest.raises(asyncio.CancelledError):
        await ending
    dropped.set()
    await asyncio.gather(*service._ending)
    assert forgotten == ["@session id", "@session-record id", "@session-driver id"]
    assert released == [b"an output"] and isinstance(later.exception(), Cancelled)


async def test_a_fault_in_one_session_of_a_client_that_went_keeps_no_other_from_its_end() -> None:
    """It would hold its workers' memory for ever."""
    left: list[str] = []

    def fails(away: bool) -> None:
        raise ValueError("no one foresaw this")

    def opened(name: str, went: Any) -> Any:
        session = SimpleNamespace(client_went=went)
        return SimpleNamespace(id=name, client="laptop", over=False, session=session, terms=SimpleNamespace(name=name))

    service = cast(Any, SessionService.__new__(SessionService))
    service._sessions = {name: opened(name, went) for name, went in (("bad", fails), ("good", lambda away: None))}
    service._keep_s = service._keep_named_s = 1.0
    service._linked = lambda client: False
    service._leave = lambda session, keep_s: left.append(session.id)
    service._client_gone(cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="laptop"))), None)
    assert left == ["bad", "good"], "each has so long to be taken up again, and no longer"
