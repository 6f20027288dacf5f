"""Sleep as systemd-logind tells it, and as others pretend: who says it is what the bus says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.processes.fake_logind import MISSING, FakeLogind

from worker.daemon.system_sleep import SleepWatch

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
SOON_S = 60.0


class Heard:
    """What a watch heard, in order."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[str] = asyncio.Queue()

    async def sleeps(self) -> None:
        self.said.put_nowait("sleeps")

    def wakes(self) -> None:
        self.said.put_nowait("wakes")

    async def next(self) -> str:
        return await asyncio.wait_for(self.said.get(), SOON_S)


@asynccontextmanager
async def watching(logind: FakeLogind, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Heard]:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", logind.address)
    heard = Heard()
    task = asyncio.create_task(SleepWatch(heard.sleeps, heard.wakes).run())
    await asyncio.to_thread(logind.grant)
    yield heard
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_another_program_says_of_sleep_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeLogind(tmp_path) as logind:
        async with watching(logind, monkeypatch) as heard:
            for begins in (True, False):
                await asyncio.to_thread(logind.lie, begins)
            await asyncio.to_thread(logind.tell, True)
            assert await heard.next() == "sleeps"
            await asyncio.to_thread(logind.tell, False)
            await asyncio.to_thread(logind.grant)
            assert await heard.next() == "wakes"
            assert heard.said.empty(), "it was told of one sleep"


async def test_logind_is_believed_after_it_was_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeLogind(tmp_path) as logind:
        async with watching(logind, monkeypatch) as heard:
            await asyncio.to_thread(logind.restart)
            await asyncio.to_thread(logind.grant)
            assert logind.held
            await asyncio.to_thread(logind.tell, True)
            assert await heard.next() == "sleeps"
