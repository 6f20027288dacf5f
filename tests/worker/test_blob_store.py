"""The blob store: what it keeps, what it evicts, and what it does when the disk lies or is full."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wire.errors import BlobError, BlobMissing
from wire.ir.codec import hash_bytes
from wire.system import mapped_files
from wire.system.memory import default_budget
from worker.config import WorkerConfig
from worker.daemon import blob_store
from worker.daemon.blob_fetcher import BlobFetcher, RemoteBlobs
from worker.daemon.blob_store import BlobStore
from worker.state import events as ev

MIB = 1 << 20
pytestmark = pytest.mark.asyncio


def content(number: int, size_bytes: int = 1000) -> tuple[bytes, memoryview]:
    data = bytes([number]) * size_bytes
    return hash_bytes(data), memoryview(data)


def store(tmp_path: Path, disk_bytes_max: int = 1 << 30, memory_bytes_max: int = 1 << 30) -> BlobStore:
    return BlobStore(tmp_path / "disk", tmp_path / "memory", disk_bytes_max, memory_bytes_max)


async def put(into: BlobStore, number: int, keep: bool = True, size_bytes: int = 1000) -> bytes:
    blob, data = content(number, size_bytes)
    await into.put(blob, data, keep)
    return blob


async def test_kept_content_is_there_for_the_next_process_and_other_content_is_not(tmp_path: Path) -> None:
    first = store(tmp_path)
    kept, passing = await put(first, 1), await put(first, 2, keep=False)
    assert await first.find(kept) == "resident" and await first.find(passing) == "resident"
    second = BlobStore(tmp_path / "disk", tmp_path / "other-memory")
    assert await second.find(kept, 1000) == "disk"
    assert await second.find(kept, 1000) == "resident", "checked once per process"
    assert await second.find(passing) is None


async def test_content_is_read_back_as_it_was_through_the_file_and_the_view(tmp_path: Path) -> None:
    held = store(tmp_path)
    blob, data = content(7, 3 * MIB)
    await held.put(blob, data, keep=True)
    assert Path(held.path(blob)).read_bytes() == data
    assert held.view(blob) == data


@pytest.mark.parametrize("keep", [True, False], ids=["disk", "memory"])
async def test_a_folder_that_somebody_removed_is_made_again(keep: bool, tmp_path: Path) -> None:
    held = store(tmp_path)
    gone = await put(held, 1, keep)
    held.pin((gone,))
    shutil.rmtree(Path(held.path(gone)).parent)
    after = await put(held, 2, keep)
    assert Path(held.path(after)).parent == tmp_path / ("disk" if keep else "memory")
    assert await held.find(gone) is None and held.used_bytes == 1000
    assert await held.find(await put(held, 1, keep)) == "resident"
    shutil.rmtree(tmp_path / "memory")
    held.keep_memory()
    assert (tmp_path / "memory").stat().st_mode & 0o777 == 0o700


async def test_an_empty_blob_is_content_too(tmp_path: Path) -> None:
    held = store(tmp_path)
    blob = await put(held, 0, size_bytes=0)
    again = BlobStore(tmp_path / "disk", tmp_path / "m2")
    assert await again.find(blob, 0) == "disk"
    assert again.view(blob) == b""


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"\xff" + path.read_bytes()[1:]),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["flipped", "truncated", "emptied", "removed"],
)
async def test_damaged_content_is_removed_and_can_be_stored_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    blob = await put(store(tmp_path), 1, size_bytes=2 * MIB)
    damage(tmp_path / "disk" / blob.hex())
    held = store(tmp_path)
    assert await held.find(blob) is None
    assert not (tmp_path / "disk" / blob.hex()).exists() and held.used_bytes == 0
    with pytest.raises(BlobMissing):
        held.path(blob)
    await put(held, 1, size_bytes=2 * MIB)
    assert await held.find(blob) == "resident"


async def test_content_of_another_size_than_announced_is_not_used(tmp_path: Path) -> None:
    held = store(tmp_path)
    blob = await put(held, 1)
    assert await held.find(blob, 999) is None


async def test_the_least_recently_used_content_goes_first_and_pinned_content_stays(tmp_path: Path) -> None:
    held = store(tmp_path, disk_bytes_max=3000, memory_bytes_max=0)
    first, second, third = [await put(held, number) for number in (1, 2, 3)]
    held.pin([first])
    await held.find(second)
    await put(held, 4)
    assert await held.find(third) is None
    assert await held.find(first) and await held.find(second)
    assert held.used_bytes <= 3000
    held.unpin([first])
    await held.find(second)
    await put(held, 5), await put(held, 6)
    assert await held.find(first) is None


async def test_where_memory_is_short_what_nobody_uses_goes_from_memory_and_stays_on_the_disk(tmp_path: Path) -> None:
    held = BlobStore(None, tmp_path / "memory")
    unused, pinned, about_to_be = await put(held, 1), await put(held, 2), await put(held, 3, keep=False)
    held.pin([pinned])
    held.free_memory()
    assert await held.find(unused) is None and held.used_bytes == 2000
    assert await held.find(pinned) and await held.find(about_to_be)
    on_disk = store(tmp_path / "with a disk")
    blob = await put(on_disk, 1)
    on_disk.free_memory()
    assert await on_disk.find(blob)


async def test_the_bound_holds_for_what_an_earlier_process_left(tmp_path: Path) -> None:
    first = store(tmp_path)
    old, new = await put(first, 1), await put(first, 2)
    os.utime(tmp_path / "disk" / old.hex(), (1, 1))
    held = store(tmp_path, disk_bytes_max=1500)
    assert await held.find(old) is None and await held.find(new) == "disk"


async def test_held_lists_the_most_recent_first(tmp_path: Path) -> None:
    held = store(tmp_path)
    first, second = await put(held, 1), await put(held, 2)
    assert held.held() == (second, first)
    await held.find(first)
    assert held.held() == (first, second)


async def test_what_the_disk_share_cannot_take_goes_to_memory(tmp_path: Path) -> None:
    held = store(tmp_path, disk_bytes_max=500)
    blob = await put(held, 1)
    assert Path(held.path(blob)).parent == tmp_path / "memory"


async def test_no_room_anywhere_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    held = store(tmp_path, disk_bytes_max=500, memory_bytes_max=500)
    with pytest.raises(BlobError, match="--cache-dir"):
        await put(held, 1)
    assert held.used_bytes == 0


class FullDisk:
    """Fails the writes whose numbers are given with ENOSPC, after half of the bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, str], bool]) -> None:
        self.writes = 0
        self._fails = fails
        self._write = blob_store._write_file
        monkeypatch.setattr(blob_store, "_write_file", self)

    def __call__(self, temporary: str, final: str, data: memoryview) -> None:
        self.writes += 1
        if self._fails(self.writes, final):
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(temporary, final, data)


async def test_a_full_disk_makes_room_by_forgetting_unused_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = store(tmp_path)
    old = await put(held, 1)
    FullDisk(monkeypatch, lambda write, _: write == 1)
    new = await put(held, 2)
    assert await held.find(old) is None
    assert await held.find(new) == "resident" and Path(held.path(new)).parent == tmp_path / "disk"


async def test_a_disk_that_stays_full_costs_the_caching_and_not_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = store(tmp_path)
    FullDisk(monkeypatch, lambda _, final: Path(final).parent.name == "disk")
    blob = await put(held, 1)
    assert Path(held.path(blob)).parent == tmp_path / "memory"


async def test_disk_and_memory_full_is_a_clean_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = store(tmp_path)
    FullDisk(monkeypatch, lambda *_: True)
    with pytest.raises(BlobError, match="no room"):
        await put(held, 1)
    assert not any((tmp_path / "disk").iterdir()) and not any((tmp_path / "memory").iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
async def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "temporary").symlink_to("/dev/full")
    with pytest.raises(OSError):
        blob_store._write_file(str(tmp_path / "temporary"), str(tmp_path / "final"), memoryview(b"x" * 100))
    assert not (tmp_path / "final").exists()


async def test_old_half_written_files_go_and_strange_files_stay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    abandoned, fresh, strange = disk / "writing-1-0", disk / "writing-2-0", disk / "notes.txt"
    for path in (abandoned, fresh, strange):
        path.write_bytes(b"half")
    for path in (abandoned, strange):
        os.utime(path, (1, 1))
    store(tmp_path)
    assert not abandoned.exists() and fresh.exists() and strange.exists()


async def test_the_same_content_stored_twice_at_once_counts_once(tmp_path: Path) -> None:
    held = store(tmp_path)
    blob, data = content(1, 2 * MIB)
    await asyncio.gather(*(held.put(blob, data, keep=True) for _ in range(4)))
    assert held.used_bytes == 2 * MIB and await held.find(blob) == "resident"


async def test_what_is_not_to_be_kept_goes_with_the_last_that_pinned_it(tmp_path: Path) -> None:
    held = store(tmp_path)
    kept, state = await put(held, 1), await put(held, 2, keep=False)
    held.pin([kept, state])
    held.pin([state])
    held.unpin([kept, state])
    assert await held.find(state), "another still has it"
    held.unpin([state])
    assert await held.find(state) is None and await held.find(kept)
    assert held.used_bytes == 1000


async def test_what_was_put_again_stays_for_whoever_will_pin_it(tmp_path: Path) -> None:
    held = store(tmp_path)
    state = await put(held, 2, keep=False)
    held.pin([state])
    await put(held, 2, keep=False)
    held.unpin([state])
    assert await held.find(state)
    held.pin([state])
    held.unpin([state])
    assert await held.find(state) is None


async def test_what_nobody_will_pin_goes_at_once_or_with_the_last_that_did(tmp_path: Path) -> None:
    held = store(tmp_path)
    kept, first, second = await put(held, 1), await put(held, 2, keep=False), await put(held, 3, keep=False)
    held.pin([second])
    await put(held, 3, keep=False)
    held.discard([kept, first, second])
    assert await held.find(kept) and await held.find(second) and await held.find(first) is None
    held.unpin([second])
    assert await held.find(second) is None


async def test_what_was_put_for_a_time_stays_once_somebody_needs_it_who_allows_that(tmp_path: Path) -> None:
    held = store(tmp_path)
    state = await put(held, 2, keep=False)
    held.pin([state])
    held.keep(state)
    held.unpin([state])
    assert await held.find(state) == "resident"


async def test_what_was_put_for_a_time_is_not_evicted_before_it_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = store(tmp_path, memory_bytes_max=2500)
    first, second = await put(held, 1, keep=False), await put(held, 2, keep=False)
    with pytest.raises(
        BlobError, match=r"a blob of 1000 B .*may hold 2.4 KiB, of which 2.0 KiB are in use.*--max-memory"
    ):
        await put(held, 3, keep=False)
    assert held.view(first) is not None and held.view(second) is not None
    held.discard([first])
    third = await put(held, 3, keep=False)
    assert held.view(second) is not None and held.view(third) is not None
    later_s = time.monotonic() + blob_store.PUT_S_MAX
    monkeypatch.setattr(blob_store.time, "monotonic", lambda: later_s)
    await put(held, 4, keep=False)
    assert held.view(second) is None, "whoever put it is gone"


async def test_what_is_put_at_once_takes_no_more_room_than_there_is(tmp_path: Path) -> None:
    held = store(tmp_path, memory_bytes_max=3 * MIB)
    contents = [content(number, 2 * MIB) for number in range(3)]
    actual = await asyncio.gather(*(held.put(*content, keep=False) for content in contents), return_exceptions=True)
    assert [type(result) for result in actual].count(BlobError) == 2
    assert held.used_bytes == 2 * MIB


async def test_content_goes_to_memory_where_the_disk_has_become_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = store(tmp_path, disk_bytes_max=1500)
    old = await put(held, 1)
    unlink = os.unlink

    def read_only(path: str) -> None:
        if str(tmp_path / "disk") in str(path):
            raise OSError(errno.EROFS, "Read-only file system", path)
        unlink(path)

    monkeypatch.setattr(blob_store.os, "unlink", read_only)
    new = await put(held, 2)
    assert Path(held.path(new)).parent == tmp_path / "memory"
    assert held.view(old) is not None and held.used_bytes == 2000


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EIO])
async def test_a_fetch_that_finds_no_folder_to_write_to_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(temporary: str, final: str, data: memoryview) -> None:
        raise OSError(number, os.strerror(number), temporary)

    class Holder(RemoteBlobs):
        async def fetch(self, *asked: object) -> tuple[memoryview, bool]:
            return content(1)[1], False

    monkeypatch.setattr(blob_store, "_write_file", refused)
    heard: asyncio.Queue[ev.Event] = asyncio.Queue()
    fetcher = BlobFetcher("me", store(tmp_path), Holder.__new__(Holder), heard.put_nowait)
    fetcher.begin(ev.Fetch(1, content(1)[0], 1000, True, "other", ()))
    answer = await asyncio.wait_for(heard.get(), 60.0)
    assert isinstance(answer, ev.BlobNotFound) and "no room" in str(answer.error)


async def test_how_much_lies_in_memory_follows_from_the_budget() -> None:
    assert WorkerConfig(memory_bytes=5 << 30).blob_memory_bytes == 5 << 30
    assert WorkerConfig().blob_memory_bytes == default_budget()
    assert WorkerConfig(memory_bytes=5 << 30, blob_memory_bytes_max=1).blob_memory_bytes == 1


@pytest.mark.parametrize("keep", [False, True])
async def test_what_is_written_as_nobody_waits_for_it_any_more_is_no_file_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    """A thread writes to the end, also where the plan is dropped meanwhile that the content was fetched for."""
    held, began, goes_on = store(tmp_path), threading.Event(), threading.Event()
    write = blob_store._write_file

    def slowly(*args: Any) -> None:
        began.set()
        assert goes_on.wait(120)
        write(*args)

    monkeypatch.setattr(blob_store, "_write_file", slowly)
    blob, data = content(3, 2 * MIB)
    putting = asyncio.create_task(held.put(blob, data, keep))
    assert await asyncio.to_thread(began.wait, 120)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    again = asyncio.create_task(held.put(blob, data, keep=False))  # for another plan
    await asyncio.sleep(0)
    again.cancel()
    goes_on.set()
    while held._tasks:
        await asyncio.sleep(0.01)
    files = [path.name for folder in ("disk", "memory") for path in (tmp_path / folder).iterdir()]
    assert files == ([blob.hex()] if keep else []) and held.used_bytes == (data.nbytes if keep else 0)
    assert (await held.find(blob) is not None) == keep


async def test_two_that_put_the_same_content_at_once_both_have_it(tmp_path: Path) -> None:
    held = store(tmp_path)
    blob, data = content(3, 2 * MIB)
    await asyncio.gather(held.put(blob, data, keep=False), held.put(blob, data, keep=False))
    assert held.used_bytes == data.nbytes and held.view(blob) == data


async def test_what_finds_the_disk_full_waits_until_what_was_evicted_is_gone_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread gives back what a large file takes."""
    write, size_bytes = blob_store._write_file, mapped_files.AT_ONCE_BYTES_MAX + 1
    refused, given_back = threading.Event(), threading.Event()

    def full(*args: Any) -> None:
        if not given_back.is_set():
            refused.set()
            raise OSError(errno.ENOSPC, "no space left on the test's device")
        write(*args)

    held = store(tmp_path)
    await put(held, 1, size_bytes=size_bytes)
    mapped_files._ending.take(lambda: (refused.wait(60.0), given_back.set()))
    monkeypatch.setattr(blob_store, "_write_file", full)
    blob = await put(held, 2, size_bytes=size_bytes)
    assert await held.find(blob) == "resident" and len(held.held()) == 1


async def test_damaged_content_that_cannot_be_removed_is_stored_again_elsewhere(tmp_path: Path) -> None:
    """As where a disk that fails was made read-only: a folder in the file's place cannot be removed as a file is."""
    blob, data = content(1)
    (tmp_path / "disk" / blob.hex()).mkdir(parents=True)
    held = store(tmp_path)
    assert await held.find(blob) is None
    await held.put(blob, data, keep=True)
    assert Path(held.path(blob)).read_bytes() == data and await held.find(blob, 1000) == "resident"


async def test_content_is_stored_again_where_what_there_is_of_it_is_damaged(tmp_path: Path) -> None:
    """A snapshot or a sum is put without a look whether the worker has it."""
    blob, data = content(1)
    await store(tmp_path).put(blob, data, keep=True)
    (tmp_path / "disk" / blob.hex()).write_bytes(bytes(1000))
    held = store(tmp_path)
    await held.put(blob, data, keep=True)
    assert await held.find(blob, 1000) == "resident" and held.view(blob) == data
    os.unlink(held.path(blob))  # by who cleans up under the worker
    await held.put(blob, data, keep=True)
    assert held.view(blob) == data


async def test_who_asks_for_another_size_than_content_has_takes_it_from_nobody(tmp_path: Path) -> None:
    held = store(tmp_path)
    blob = await put(held, 1)
    held.pin([blob])
    assert await held.find(blob, 999) is None
    assert await held.find(blob, 1000) == "resident" and held.view(blob) is not None


async def test_content_that_many_ask_for_at_once_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any worker may ask for it, as often as a link takes requests; threads are few, and hash for everybody."""
    await put(store(tmp_path), 1, size_bytes=2 * MIB)
    held, blob, checks = store(tmp_path), content(1, 2 * MIB)[0], []
    is_sound = blob_store._is_sound

    def counted(*args: Any) -> bool:
        checks.append(args)
        return is_sound(*args)

    monkeypatch.setattr(blob_store, "_is_sound", counted)
    asking = [asyncio.create_task(held.find(blob)) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()  # who asked first may be gone
    assert set(await asyncio.gather(*asking[1:])) == {"disk"} and await held.find(blob) == "resident"
    assert len(checks) == 1


async def test_what_is_pinned_stays_so_where_its_file_went_and_it_was_stored_again(tmp_path: Path) -> None:
    """By a user who cleans up: a plan still has it, for which nobody pins it a second time."""
    held = store(tmp_path, disk_bytes_max=1500)
    blob = await put(held, 1)
    held.pin([blob])
    os.unlink(held.path(blob))
    assert await held.find(blob) is None
    await put(held, 1)
    await put(held, 2)
    assert await held.find(blob) == "resident"
    held.unpin([blob])
    await put(held, 3)
    assert await held.find(blob) is None, "it is the least recently used one, and nobody has it"
