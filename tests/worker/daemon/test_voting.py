"""A worker's word on who serves: on its disk before it is said, whatever the disk does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk, SlowDisk

from wire.errors import NotDurable
from wire.protocol.messages import Vote, Voted
from wire.standby.configuration import Ballot
from wire.standby.in_messages import vote_of
from wire.standby.standby_file import StandbyFile
from wire.standby.voter import Asked, Stage
from wire.system.atomic_files import Disk
from worker.daemon.machine_shell import MachineShell
from worker.daemon.voting import Voting
from worker.state import events as ev

HANGS_S = 120.0


def voting(folder: Path, disk: Disk) -> tuple[Voting, list[ev.Event]]:
    """With what the machine is told."""
    shell, told = MachineShell("desk"), list[ev.Event]()
    shell.feed = told.append  # type: ignore[method-assign]
    return Voting(shell, "desk", folder, disk), told


async def vote(voting: Voting, round: int, stage: Stage = Stage.PROMISE) -> Voted:
    link = cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="first")))
    voted = await voting.requests()[Vote](link, vote_of(Asked(stage, Ballot(round, "first"))))
    assert isinstance(voted, Voted)
    return voted


async def test_a_vote_is_said_once_it_is_on_the_disk_and_holds_up_no_loop(tmp_path: Path) -> None:
    disk = SlowDisk()
    voter, _ = voting(tmp_path, disk)
    promised = asyncio.create_task(vote(voter, 7))
    await disk.begins()
    asked = asyncio.create_task(vote(voter, 6, Stage.WOULD))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not promised.done() and not asked.done()
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        assert (await promised).granted and not (await asked).granted
    assert StandbyFile(tmp_path).remembered.record.promised == Ballot(7, "first")


async def test_whom_it_serves_is_written_by_a_thread_and_then_told(tmp_path: Path) -> None:
    disk = SlowDisk()
    voter, told = voting(tmp_path, disk)
    keep = voter.performers()[ev.KeepServed]
    keep(ev.KeepServed(9))
    await disk.begins()
    keep(ev.KeepServed(12))
    assert not told
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        while len(told) < 2:
            await asyncio.sleep(0.01)
    assert told == [ev.ServedKept(9), ev.ServedKept(12)] and Voting(MachineShell("desk"), "desk", tmp_path).served_epoch


async def test_a_disk_that_refuses_is_told_of_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    voter, told = voting(tmp_path, FaultyDisk(Fuse(fails_at=1)))
    with pytest.raises(NotDurable, match=r"standby.json cannot be written.*no space left"):
        await vote(voter, 7)
    for _ in range(3):
        voter.performers()[ev.KeepServed](ev.KeepServed(9))
    async with asyncio.timeout(HANGS_S):
        while len(told) < 3:
            await asyncio.sleep(0.01)
    assert {type(each) for each in told} == {ev.ServedNotKept}
    assert isinstance(told[0], ev.ServedNotKept) and isinstance(told[0].error, NotDurable)
    assert caplog.text.count("a coordinator that asks for this worker is refused") == 1
    assert Voting(MachineShell("desk"), "desk", tmp_path, QuickDisk()).served_epoch == 0
