"""A worker that works already looks for its membership without holding up its event loop, and only while it is idle."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from worker.daemon.daemon import AGAIN, Daemon

HANGS_S = 120.0


async def test_a_lock_that_another_command_holds_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    """As `mesh-coord join` does that was stopped with Ctrl-Z.  Whoever joins the worker meanwhile keeps it."""
    asked, free = threading.Semaphore(0), threading.Semaphore(0)

    def find(folder: Path, name: str) -> str:
        asked.release()
        assert free.acquire(timeout=HANGS_S)
        return "credentials"

    async def is_asked() -> None:
        async with asyncio.timeout(HANGS_S):
            while not asked.acquire(blocking=False):
                await asyncio.sleep(0.01)

    daemon, machine = cast(Any, Daemon.__new__(Daemon)), SimpleNamespace(served=False)
    daemon._environment = SimpleNamespace(credentials=find)
    daemon._folder, daemon._config = SimpleNamespace(path=tmp_path, name="desk"), SimpleNamespace(mesh_name="home")
    daemon.shell = SimpleNamespace(machine=machine)
    daemon._stopped = asyncio.get_running_loop().create_future()
    looking = asyncio.create_task(daemon._look_for_membership())
    await is_asked()
    machine.served = True
    free.release()
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not daemon._stopped.done(), "a coordinator needs it now"
    machine.served = False
    await is_asked()
    free.release()
    async with asyncio.timeout(HANGS_S):
        await looking
    assert daemon._stopped.result() == AGAIN
