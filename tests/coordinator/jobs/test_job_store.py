"""Entries and values of jobs on the disk: together or not at all, and gone when nothing holds them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk, quick_connect

from coordinator.jobs.job_store import IN_ENTRY_BYTES_MAX, Content, JobStore, StoredEntry
from coordinator.jobs.journal import FORGOTTEN, Entry
from coordinator.jobs.stored_program import ProgramContent
from wire.errors import BlobCorrupt, BlobMissing, LimitExceeded, NodeLost, NotDurable
from wire.ir.codec import hash_array, hash_bytes
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages.standby import JOURNAL_BYTES_MAX
from wire.system.atomic_files import Data, Disk

LONG = bytes(range(256)) * 17
SHORT = b"short"
assert len(SHORT) <= IN_ENTRY_BYTES_MAX < len(LONG)


def opened(folder: Path, disk: Disk | None = None, **most: int) -> tuple[JobStore, list[StoredEntry]]:
    return JobStore.open(folder, 1, disk or QuickDisk(), quick_connect, **most)


def values(*contents: bytes) -> dict[str, Any]:
    return {
        "outputs": [{"name": f"{place}", "content": Content(memoryview(data))} for place, data in enumerate(contents)]
    }


class RoomFor(QuickDisk):
    """A disk with room for so many contents."""

    def __init__(self, count: int) -> None:
        self._count = count

    def write_whole(self, path: str | Path, parts: Sequence[Data]) -> None:
        folder = Path(path).parent
        if folder.name == "content" and len(list(folder.iterdir())) >= self._count:
            raise OSError(errno.ENOSPC, "no space left on the test's device")
        super().write_whole(path, parts)


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "content").iterdir()}


async def loaded(store: JobStore, kept: Any) -> list[bytes]:
    return [bytes(await store.load(each["content"])) for each in kept["outputs"]]


async def test_values_come_back_long_ones_from_files(tmp_path: Path) -> None:
    store, found = opened(tmp_path)
    assert found == []
    kept = await store.save("a", "ended", {"state": "done"}, values(SHORT, LONG, b""))
    assert await loaded(store, kept) == [SHORT, LONG, b""]
    assert files(tmp_path) == {hash_bytes(LONG).hex()}
    await store.close()
    store, (entry,) = opened(tmp_path)
    assert (entry.job, entry.kind, entry.fields["state"]) == ("a", "ended", "done")
    assert await loaded(store, entry.fields["values"]) == [SHORT, LONG, b""]
    await store.close()


async def test_content_that_a_job_has_is_found_by_its_address_while_it_is_whole(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    address = hash_bytes(LONG)
    assert await store.find(address, len(LONG)) is None
    await store.save("a", "accepted", {}, values(LONG))
    assert bytes(await store.find(address, len(LONG)) or b"") == LONG
    assert await store.find(address, len(LONG) + 1) is None
    (tmp_path / "content" / address.hex()).write_bytes(LONG[::-1])
    assert await store.find(address, len(LONG)) is None, "whoever has it is asked"
    await store.save("a", "forgotten", {})
    assert await store.find(address, len(LONG)) is None
    await store.close()


async def test_weights_stay_a_while_for_whoever_sends_them_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, recent_bytes_max=3 * len(LONG))
    kinds = [LONG, LONG[::-1], LONG[1:] + LONG[:1]]
    for number, data in enumerate(kinds):
        for turn in range(2):
            await store.save(f"{number}.{turn}", "accepted", {}, {"w": Content(memoryview(data), hash_bytes(data))})
            await store.save(f"{number}.{turn}", "forgotten", {})
    assert files(tmp_path) == {hash_bytes(data).hex() for data in kinds}
    assert bytes(await store.find(hash_bytes(LONG), len(LONG)) or b"") == LONG
    last = LONG[2:] + LONG[:2]
    await store.save("last", "accepted", {}, {"w": Content(memoryview(last), hash_bytes(last))})
    assert files(tmp_path) == {hash_bytes(data).hex() for data in (*kinds[1:], last)}, "the latest"
    await store.close()
    store, _ = opened(tmp_path)
    assert files(tmp_path) == {hash_bytes(last).hex()}, "which its job needs"
    await store.close()


async def test_the_state_of_a_session_that_ended_does_not_stay_as_its_weights_do(tmp_path: Path) -> None:
    """The caches of texts that move to another replica are another state each time, of megabytes."""
    store, _ = opened(tmp_path)
    builder = GraphBuilder()
    arrays = {name: np.full(len(LONG), number, np.float32) for number, name in enumerate(("cache", "weights"))}
    both = builder.add("add", *(builder.param(name, array.shape, F32) for name, array in arrays.items()))
    program = ProgramContent(builder.build([both]), {name: (hash_array(a), a) for name, a in arrays.items()}, {})
    await store.save("session", "accepted", {}, program.values({"cache": 0}))
    assert files(tmp_path) == {hash_array(array).hex() for array in arrays.values()}
    await store.save("session", "forgotten", {})
    assert files(tmp_path) == {hash_array(arrays["weights"]).hex()}
    await store.close()


async def test_weights_of_before_make_room_when_the_disk_is_full(tmp_path: Path) -> None:
    disk = RoomFor(1)
    store, _ = opened(tmp_path, disk)
    await store.save("a", "accepted", {}, {"w": Content(memoryview(LONG), hash_bytes(LONG))})
    await store.save("a", "forgotten", {})
    other = LONG[::-1]
    await store.save("b", "accepted", {}, {"w": Content(memoryview(other), hash_bytes(other))})
    assert files(tmp_path) == {hash_bytes(other).hex()}
    with pytest.raises(NotDurable):
        await store.save("c", "accepted", {}, values(LONG))
    await store.close()


async def test_files_go_when_no_entry_speaks_of_them(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    other = LONG[::-1]
    await store.save("a", "accepted", {}, values(LONG))
    await store.save("b", "accepted", {}, values(LONG, other))
    await store.save("b", "ended", {}, values(other))
    assert files(tmp_path) == {hash_bytes(LONG).hex(), hash_bytes(other).hex()}
    await store.save("a", "forgotten", {})
    assert files(tmp_path) == {hash_bytes(other).hex()}
    (tmp_path / "content" / "rubbish.writing").touch()
    await store.close()
    store, _ = opened(tmp_path)
    assert files(tmp_path) == {hash_bytes(other).hex()}
    await store.save("b", "forgotten", {})
    assert files(tmp_path) == set()
    await store.close()


async def test_a_note_goes_with_the_next_entry_in_its_place(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    await store.save("a", "accepted", {})
    store.save_later("a", "started")
    await store.save("b", "accepted", {})
    store.save_later("b", "started")
    await store.close()
    store, found = opened(tmp_path)
    assert [(entry.job, entry.kind) for entry in found] == [
        ("a", "accepted"),
        ("a", "started"),
        ("b", "accepted"),
        ("b", "started"),
    ]
    await store.close()


async def test_entries_that_come_together_share_a_commit(tmp_path: Path) -> None:
    fuse = Fuse()
    store, _ = opened(tmp_path, FaultyDisk(fuse))
    before = fuse.steps
    await store.save("alone", "accepted", {})
    alone = fuse.steps - before
    await asyncio.gather(*(store.save(f"{number}", "accepted", {}) for number in range(100)))
    assert fuse.steps - before <= 4 * alone
    await store.close()


@pytest.mark.parametrize("lasts", [1, 3, 0], ids=["once", "three times", "for good"])
async def test_each_step_may_fail_and_what_failed_does_not_count(tmp_path: Path, lasts: int) -> None:
    for number in range(1, 200):
        folder = tmp_path / f"{number}"
        store, _ = opened(folder)
        await store.close()
        fuse = Fuse(number, number + lasts if lasts else 0)
        sure, tried = set(), set()
        try:
            store, _ = opened(folder, FaultyDisk(fuse))
        except NotDurable:
            continue
        for job in "abc":
            tried.add(job)
            try:
                await store.save(job, "ended", {}, values(job.encode() + LONG))
            except NotDurable:
                continue
            sure.add(job)
        await store.close()
        store, found = opened(folder)
        assert sure <= {entry.job for entry in found} <= tried
        for entry in found:
            assert await loaded(store, entry.fields["values"]) == [entry.job.encode() + LONG]
        await store.close()
        if not fuse.blown:
            return
    raise AssertionError("it never went through without a failure")


async def test_damage_to_a_value_is_said_with_its_file_and_the_next_step(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    kept = await store.save("a", "ended", {}, values(LONG))
    (path,) = (tmp_path / "content").iterdir()
    for damaged in (LONG[:-1], LONG + b"x", b"", bytes([LONG[0] ^ 1]) + LONG[1:]):
        path.write_bytes(damaged)
        with pytest.raises(BlobCorrupt, match=f"altered: .*{path.name}.* submit the job again under another id"):
            await loaded(store, kept)
    path.unlink()
    with pytest.raises(BlobMissing, match=f"missing: .*{path.name}"):
        await loaded(store, kept)
    await store.close()


@pytest.mark.parametrize("damaged", [LONG[::-1], LONG[:-1], None])
@pytest.mark.parametrize("arrives", [False, True])
async def test_content_that_is_sent_again_replaces_a_damaged_file(
    tmp_path: Path, damaged: bytes | None, arrives: bool
) -> None:
    store, _ = opened(tmp_path)
    address = hash_bytes(LONG)
    await store.save("a", "accepted", {}, values(LONG))
    path = tmp_path / "content" / address.hex()
    path.write_bytes(damaged) if damaged is not None else path.unlink()
    assert await store.find(address, len(LONG)) is None

    async def fill(handle: int) -> None:
        os.pwrite(handle, LONG, 0)

    if arrives:
        assert bytes(await store.receive(address, len(LONG), fill)) == LONG
    kept = await store.save("b", "accepted", {}, values(LONG))
    assert await loaded(store, kept) == [LONG]
    for job in "ab":
        await store.save(job, FORGOTTEN, {})
    if arrives:
        await store.release([address])
    assert files(tmp_path) == set()
    await store.close()


async def copied(store: JobStore, copy: JobStore, fetched: list[bytes], whole: bool = True) -> None:
    async def fetch(address: bytes, size_bytes: int) -> memoryview:
        fetched.append(address)
        found = store.view(address)
        assert found is not None and found.nbytes == size_bytes
        return found

    await copy.copy(await store.entries(), fetch, whole)


async def test_a_copy_has_what_the_store_has_and_fetches_content_once(tmp_path: Path) -> None:
    store, _ = opened(tmp_path / "one")
    copy, _ = opened(tmp_path / "two")
    fetched: list[bytes] = []
    await store.save("a", "ended", {"state": "done"}, values(SHORT, LONG))
    await store.save("b", "accepted", {}, values(LONG))
    await copied(store, copy, fetched)
    assert fetched == [hash_bytes(LONG)]
    await store.save("a", FORGOTTEN, {})
    await copied(store, copy, fetched)
    assert fetched == [hash_bytes(LONG)]
    await store.close()
    await copy.close()
    (_, ours), (reopened, theirs) = opened(tmp_path / "one"), opened(tmp_path / "two")
    assert theirs == ours and [entry.job for entry in theirs] == ["b"]
    assert await loaded(reopened, theirs[0].fields["values"]) == [LONG]
    await reopened.save("b", FORGOTTEN, {})
    assert files(tmp_path / "two") == set()
    await reopened.close()


async def test_a_whole_journal_is_read_by_a_thread_as_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that stood still for it would neither vote nor be heard of."""
    store, _ = opened(tmp_path / "one")
    copy, _ = opened(tmp_path / "two")
    for number in range(3):
        await store.save(f"{number}", "accepted", {}, values(LONG, LONG))
    readers: set[threading.Thread] = set()
    loads = json.loads

    def read(text: bytes) -> Any:
        readers.add(threading.current_thread())
        return loads(text)

    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", read)
        await copied(store, copy, [])
    assert readers and threading.main_thread() not in readers
    for number in range(3):
        assert files(tmp_path / "two") == {hash_bytes(LONG).hex()}
        await copy.save(f"{number}", FORGOTTEN, {})
    assert files(tmp_path / "two") == set()
    await store.close()
    await copy.close()


async def test_content_that_cannot_be_fetched_leaves_the_copy_as_it_was(tmp_path: Path) -> None:
    store, _ = opened(tmp_path / "one")
    copy, _ = opened(tmp_path / "two")
    await store.save("a", "ended", {}, values(LONG))

    async def gone(address: bytes, size_bytes: int) -> memoryview:
        raise BlobMissing("it is gone")

    with pytest.raises(BlobMissing):
        await copy.copy(await store.entries(), gone, whole=True)
    assert await copy.entries() == [] and files(tmp_path / "two") == set()
    await store.close()
    await copy.close()


async def test_an_entry_is_kept_once_it_is_replicated_too(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen: list[str] = []

    async def replicate(entries: Sequence[Entry]) -> None:
        seen.extend(entry.job for entry in entries)
        await confirmed

    store.replicate = replicate
    saving = asyncio.ensure_future(store.save("a", "accepted", {}))
    while not seen:
        await asyncio.sleep(0)
    assert not saving.done()
    confirmed.set_result(None)
    await saving
    await store.close()


async def test_content_that_arrives_in_a_file_is_held_and_not_written_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    address = hash_bytes(LONG)

    async def fill(handle: int) -> None:
        os.pwrite(handle, LONG, 0)

    data = await store.receive(address, len(LONG), fill)
    assert bytes(data) == LONG and files(tmp_path) == {address.hex()}
    before = (tmp_path / "content" / address.hex()).stat().st_ino
    tree = {"inputs": {"x": Content(data, address, again=False)}}
    await store.save("a", "accepted", {}, tree)
    await store.release([address])
    assert (tmp_path / "content" / address.hex()).stat().st_ino == before
    await store.save("a", FORGOTTEN, {})
    assert files(tmp_path) == set(), "an input need not stay for whoever sends it again"
    await store.close()


@pytest.mark.parametrize("what", ["other bytes", "half of it", "an error", "a full disk"])
async def test_of_content_that_does_not_arrive_nothing_stays(tmp_path: Path, what: str) -> None:
    store, _ = opened(tmp_path)
    address = hash_bytes(LONG)

    async def fill(handle: int) -> None:
        if what == "an error":
            raise NodeLost("the client went away")
        if what == "a full disk":
            raise OSError(errno.ENOSPC, "no space left on the test's device")
        os.pwrite(handle, LONG[:-1] + b"?" if what == "other bytes" else LONG[: len(LONG) // 2], 0)

    expected = {"an error": NodeLost, "a full disk": NotDurable}.get(what, BlobCorrupt)
    with pytest.raises(expected):
        await store.receive(address, len(LONG), fill)
    assert files(tmp_path) == set()
    assert await store.find(address, len(LONG)) is None
    await store.close()


class HeldUp(QuickDisk):
    """A disk that writes and syncs content only once it is let go."""

    def __init__(self) -> None:
        self.at_work, self.go_on = threading.Event(), threading.Event()
        self.holds = False

    def write_whole(self, path: str | Path, parts: Sequence[Data]) -> None:
        if Path(path).parent.name == "content":
            self._wait()
        super().write_whole(path, parts)

    def sync(self, fd: int) -> None:
        self._wait()
        super().sync(fd)

    def _wait(self) -> None:
        if self.holds and not self.go_on.is_set():
            self.at_work.set()
            assert self.go_on.wait(120)


async def test_content_that_is_whole_as_its_sender_goes_is_let_go_again(tmp_path: Path) -> None:
    disk = HeldUp()
    store, _ = opened(tmp_path, disk)
    disk.holds, address = True, hash_bytes(LONG)

    async def fill(handle: int) -> None:
        os.pwrite(handle, LONG, 0)

    receiving = asyncio.create_task(store.receive(address, len(LONG), fill))
    assert await asyncio.to_thread(disk.at_work.wait, 120)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert files(tmp_path), "it is written still"
    disk.go_on.set()
    async with asyncio.timeout(120):
        while files(tmp_path) or store._tasks:
            await asyncio.sleep(0.01)
    assert await store.find(address, len(LONG)) is None
    await store.close()


async def test_who_looks_for_content_does_not_wait_while_other_content_is_written(tmp_path: Path) -> None:
    disk = HeldUp()
    store, _ = opened(tmp_path, disk)
    disk.holds = True
    saving = asyncio.create_task(store.save("a", "ended", {}, values(LONG)))
    assert await asyncio.to_thread(disk.at_work.wait, 120)
    looked = threading.Event()

    def look() -> None:
        store.view(hash_bytes(LONG))
        looked.set()

    threading.Thread(target=look, daemon=True).start()
    try:
        assert await asyncio.to_thread(looked.wait, 120)
    finally:
        disk.go_on.set()
    await saving
    await store.close()


async def test_content_of_a_copied_entry_that_may_be_on_the_disk_all_the_same_stays(tmp_path: Path) -> None:
    """A journal that cannot say any more how long it is has its rows still, and the next start believes them."""

    class CannotAcknowledge(QuickDisk):
        refuses = False

        def replace(self, old: str | Path, new: str | Path) -> None:
            if self.refuses and Path(new).name == "acknowledged":
                raise OSError(errno.ENOSPC, "no space left on the test's device")
            super().replace(old, new)

    store, _ = opened(tmp_path / "a")
    await store.save("a", "accepted", {}, values(LONG))
    disk = CannotAcknowledge()
    copy, _ = opened(tmp_path / "b", disk)

    async def fetch(address: bytes, size_bytes: int) -> memoryview:
        return store.view(address) or memoryview(b"")

    disk.refuses = True
    with pytest.raises(NotDurable):
        await copy.copy(await store.entries(), fetch)
    copy._journal.close()  # as a kill does
    copy, (entry,) = opened(tmp_path / "b")
    assert await loaded(copy, entry.fields["values"]) == [LONG]
    await copy.save("a", "forgotten", {})
    assert files(tmp_path / "b") == set()
    await copy.close()
    await store.close()


class Slow(QuickDisk):
    """A disk on which one content takes as long as the test wants, to be written or removed."""

    def __init__(self, content: bytes) -> None:
        self.name, self.began, self.goes_on = hash_bytes(content).hex(), threading.Event(), threading.Event()

    def _wait(self, path: str | Path) -> None:
        if Path(path).name == self.name:
            self.began.set()
            assert self.goes_on.wait(120)

    def write_whole(self, path: str | Path, parts: Sequence[Data], writer: str = "") -> None:
        self._wait(path)
        super().write_whole(path, parts, writer)

    def remove(self, path: str | Path) -> None:
        self._wait(path)
        super().remove(path)


@pytest.mark.parametrize("removes", [False, True])
async def test_who_writes_or_releases_content_waits_for_nobody_with_other_content(
    tmp_path: Path, removes: bool
) -> None:
    """A disk takes seconds for what is large, or where it is a network's."""
    disk, other = Slow(LONG), LONG[::-1]
    store, _ = opened(tmp_path, disk)
    await store.save("before", "accepted", {}, values(LONG[1:] + b"x"))
    if removes:
        disk.goes_on.set()
        await store.save("slow", "accepted", {}, values(LONG))
        disk.goes_on.clear()
        disk.began.clear()
    slow = asyncio.create_task(
        store.save("slow", FORGOTTEN, {}) if removes else store.save("slow", "accepted", {}, values(LONG))
    )
    assert await asyncio.to_thread(disk.began.wait, 120)
    same = asyncio.create_task(store.save("same", "accepted", {}, values(LONG)))
    async with asyncio.timeout(120):
        await store.save("quick", "accepted", {}, values(other))
        await store.save("before", FORGOTTEN, {})
    assert files(tmp_path) >= {hash_bytes(other).hex()} and not slow.done() and not same.done()
    disk.goes_on.set()
    kept = await same
    await slow
    assert await loaded(store, kept) == [LONG]
    assert files(tmp_path) == {hash_bytes(content).hex() for content in (LONG, other)}
    await store.close()


async def test_many_small_values_are_in_one_file_and_their_entry_is_no_longer_than_a_standby_takes(
    tmp_path: Path,
) -> None:
    store, _ = opened(tmp_path / "one")
    copy, _ = opened(tmp_path / "two")
    contents = [number.to_bytes(4, "big") * (IN_ENTRY_BYTES_MAX // 4 - number % 7) for number in range(2300)]
    kept = await store.save("a", "accepted", {}, values(*contents, LONG))
    (entry,) = await store.entries()
    assert len(entry.body) <= JOURNAL_BYTES_MAX
    assert len(files(tmp_path / "one")) == 2, "each file costs two syncs"
    assert await loaded(store, kept) == [*contents, LONG]
    fetched: list[bytes] = []
    await copied(store, copy, fetched)
    assert {address.hex() for address in fetched} == files(tmp_path / "one")
    await store.save("a", FORGOTTEN, {})
    assert files(tmp_path / "one") == set()
    await store.close()
    await copy.close()
    copy, (found,) = opened(tmp_path / "two")
    assert await loaded(copy, found.fields["values"]) == [*contents, LONG]
    await copy.save("a", FORGOTTEN, {})
    assert files(tmp_path / "two") == set()
    await copy.close()


async def test_an_entry_that_no_standby_takes_is_refused_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    long = {"record": "x" * JOURNAL_BYTES_MAX}
    with pytest.raises(LimitExceeded, match=r"entry of a is .* and at most 8.* fit.*fewer inputs"):
        await store.save("a", "accepted", long, values(LONG))
    assert files(tmp_path) == set() and await store.entries() == []
    await store.save("b", "accepted", {})
    await store.close()
