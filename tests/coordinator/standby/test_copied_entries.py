"""A standby says that it has entries once they are on its disk, and so are all before them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.jobs.journal import Entry
from coordinator.standby import events as ev
from coordinator.standby.following import Following, _Came
from wire.errors import NotDurable
from wire.standby.configuration import Ballot
from wire.system.tasks import Tasks


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), NotDurable("full")], ids=repr)
async def test_after_entries_that_could_not_be_copied_no_later_ones_are_acknowledged(fault: Exception) -> None:
    copied, told = list[Entry](), list[ev.Event]()

    async def copy(entries: list[Entry], fetch: object, whole: bool) -> None:
        if entries[0].job == "refused":
            raise fault
        copied.extend(entries)

    following = cast(Any, Following.__new__(Following))
    following._endpoint = SimpleNamespace(links={"a": SimpleNamespace(peer=SimpleNamespace(name="a"))})
    following._store, following._exchange = SimpleNamespace(copy=copy), SimpleNamespace(fetch=print)
    following._shell = SimpleNamespace(feed=told.append)
    following._writes = asyncio.Queue()
    for number, job in enumerate(("refused", "later"), 1):
        entries = ev.Entries("a", Ballot(1, "a"), 7, number, number)
        following._writes.put_nowait((entries, _Came([Entry(job, "accepted", b"{}")], ())))
    tasks = Tasks()
    tasks.keep("writing", following._write_all)
    async with asyncio.timeout(120):
        while not copied:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    tasks.cancel()
    assert told[0] == ev.NotStored(7), (
        "its machine asks for everything again, and later entries of this stream are none"
    )
