"""What a coordinator promised is on its disk before it says so, and its event loop waits for no disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk, SlowDisk

from coordinator.standby import events as ev
from coordinator.standby.shell import StandbyShell
from coordinator.standby.state import StandbyState
from wire.bounds import STANDBY_ACTIONS
from wire.errors import NotDurable
from wire.link.link import Link
from wire.protocol.messages import Vote, Voted
from wire.standby.configuration import Ballot, Configuration
from wire.standby.in_messages import vote_of
from wire.standby.standby_file import StandbyFile
from wire.standby.voter import Asked, Stage
from wire.system.atomic_files import Disk

HANGS_S = 120.0


class Standby:
    """The shell of the coordinator "second", and what it did."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.did: list[Any] = []
        self.broken: list[str] = []
        self.file = StandbyFile(folder, disk)
        self.shell = StandbyShell("second", ("first",), self.file, self.broken.append)
        self.shell.attach(cast(Any, None), dict.fromkeys((ev.Send, ev.Write, ev.Acknowledge), self.did.append))

    async def vote(self, stage: Stage, ballot: Ballot, configuration: Configuration | None = None) -> Voted:
        link = cast(Link, SimpleNamespace(peer=SimpleNamespace(node_id=ballot.node)))
        voted = await self.shell.vote(link, cast(Vote, vote_of(Asked(stage, ballot, configuration))))
        assert isinstance(voted, Voted)
        return voted


async def test_a_vote_is_said_once_it_is_on_the_disk_and_holds_up_no_loop(tmp_path: Path) -> None:
    disk, ballot = SlowDisk(), Ballot(7, "first")
    standby = Standby(tmp_path, disk)
    voting = asyncio.create_task(standby.vote(Stage.PROMISE, ballot))
    await disk.begins()
    asked = asyncio.create_task(standby.vote(Stage.WOULD, Ballot(6, "first")))  # changes nothing, but tells of it
    for _ in range(20):
        await asyncio.sleep(0)
    assert not voting.done() and not asked.done(), "its record would be told before it is kept"
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        assert (await voting).granted and not (await asked).granted
    assert StandbyFile(tmp_path).remembered.record.promised == ballot and not standby.broken


async def test_what_comes_meanwhile_is_done_afterwards_and_in_order(tmp_path: Path) -> None:
    disk = SlowDisk()
    standby = Standby(tmp_path, disk)
    voting = asyncio.create_task(standby.vote(Stage.PROMISE, Ballot(1, "first")))
    await disk.begins()
    told: list[str] = []
    standby.shell.feed(ev.Tick(), lambda: told.append("tick"))
    entries = ev.Entries("first", Ballot(1, "first"), standby.shell.state._stream, 0, 5, True)
    standby.shell.feed(entries, lambda: told.append("entries"))
    assert standby.did == [] and told == []
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        await voting
    assert [type(each) for each in standby.did] == [ev.Send, ev.Write] and told == ["tick", "entries"]


async def test_one_vote_whose_asker_gave_up_is_written_all_the_same_before_the_next(tmp_path: Path) -> None:
    disk = SlowDisk()
    standby = Standby(tmp_path, disk)
    first = asyncio.create_task(standby.vote(Stage.PROMISE, Ballot(3, "first")))
    await disk.begins()
    first.cancel()
    second = asyncio.create_task(standby.vote(Stage.PROMISE, Ballot(4, "first")))
    await asyncio.sleep(0)
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        assert (await second).granted
    assert first.cancelled() and StandbyFile(tmp_path).remembered.record.promised == Ballot(4, "first")


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_disk_that_refuses_ends_the_coordinator_before_it_says_anything(tmp_path: Path, step: int) -> None:
    standby = Standby(tmp_path, FaultyDisk(Fuse(fails_at=step)))
    with pytest.raises(NotDurable, match=r"standby.json cannot be written.*no space left"):
        await standby.vote(Stage.PROMISE, Ballot(7, "first"))
    assert len(standby.broken) == 1 and "no space left" in standby.broken[0]
    with pytest.raises(NotDurable, match="no space left"):
        await standby.vote(Stage.WOULD, Ballot(8, "first"))
    standby.shell.feed(ev.Tick())
    assert standby.did == []


async def test_a_disk_that_takes_nothing_for_minutes_ends_the_coordinator(tmp_path: Path) -> None:
    disk = SlowDisk()
    standby = Standby(tmp_path, disk)
    voting = asyncio.create_task(standby.vote(Stage.PROMISE, Ballot(1, "first")))
    await disk.begins()
    for number in range(STANDBY_ACTIONS.most):
        assert not standby.broken
        stale = ev.Entries("first", Ballot(0, "first"), 1, number, number)  # each is answered
        standby.shell.feed(stale)
    assert len(standby.broken) == 1 and standby.did == []
    with pytest.raises(NotDurable, match="for minutes"):
        await voting
    disk.goes_on.set()


async def test_an_action_that_fails_keeps_no_other_from_being_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    standby = Standby(tmp_path, QuickDisk())

    def fails(action: ev.Send) -> None:
        standby.did.append(action)
        raise ValueError("no one foresaw this")

    others = ("a", "b")
    shell = StandbyShell("second", others, standby.file, standby.broken.append)
    shell.attach(cast(Any, None), {ev.Send: fails})
    shell.feed(ev.Tick())
    assert [each.node for each in standby.did] == ["a", "b"]
    assert caplog.text.count("the standby's Send failed") == 2


async def test_a_fault_of_the_machine_after_a_promise_is_not_taken_for_one_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    standby = Standby(tmp_path, disk)
    voting = asyncio.create_task(standby.vote(Stage.PROMISE, Ballot(1, "first")))
    await disk.begins()
    real = StandbyState.handle

    def handle(machine: StandbyState, event: ev.Event, now: float) -> list[ev.Action]:
        if isinstance(event, ev.Named):
            raise ValueError("no one foresaw this")
        return real(machine, event, now)

    monkeypatch.setattr(StandbyState, "handle", handle)
    standby.shell.feed(ev.Tick(), lambda: standby.shell.feed(ev.Named(frozenset())))
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        assert (await voting).granted
        while standby.shell._inbox or standby.shell._due:
            await asyncio.sleep(0.01)
    assert not standby.broken
    assert (await standby.vote(Stage.PROMISE, Ballot(2, "first"))).granted
