"""A session is handed over as a whole: the journal and this process name the same client, whatever becomes of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.jobs.client_session import ClientSession, Terms
from coordinator.jobs.session_service import SessionService
from coordinator.sessions.state import Policy
from wire.system.tasks import Tasks


@pytest.mark.parametrize("linked", [False, True])
async def test_a_client_that_goes_while_the_journal_is_written_has_the_session_all_the_same(linked: bool) -> None:
    terms = Terms("first", "auto", (), 0, 2, Policy("buddy"), "run7")
    opened = ClientSession("id", "of first", "first", "first", terms)
    away, write = list[bool](), asyncio.Event()
    opened.session = cast(
        Any, SimpleNamespace(client_went=away.append, ended=asyncio.get_running_loop().create_future())
    )

    async def save(entry: str, kind: str, fields: dict[str, Any]) -> None:
        written.append(fields["client"])
        await write.wait()

    written: list[str] = []
    service = cast(Any, SessionService.__new__(SessionService))
    links = {"second": SimpleNamespace(closed=False)} if linked else {}
    service._coordinator = SimpleNamespace(endpoint=SimpleNamespace(links=links))
    service._store, service._doing, service._ending = SimpleNamespace(save=save), Tasks(), Tasks()
    service._sessions, service._tokens = {"id": opened}, {("first", "of first"): "id"}
    service._keep_s = service._keep_named_s = 60.0
    handing = asyncio.create_task(service._hand_over(opened, "second", "second", "of second"))
    await asyncio.sleep(0.01)
    handing.cancel()  # as the link of the second ends
    await asyncio.sleep(0.01)
    write.set()
    with pytest.raises(asyncio.CancelledError):
        await handing
    assert written == [opened.client] == ["second"]
    assert (opened.token, opened.former) == ("of second", ("of first",))
    assert away == ([] if linked else [True])
    if opened.leaving is not None:
        opened.leaving.cancel()
