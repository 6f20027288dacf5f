"""Entries and values of jobs on the disk: together or not at all, and gone when nothing holds them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk, quick_connect

from coordinator.jobs import content_files as contents
from coordinator.jobs.job_store import IN_ENTRY_BYTES_MAX, Content, Found, Keeper
from wire.errors import BlobCorrupt, BlobMissing, NotDurable
from wire.ir.codec import hash_bytes
from wire.system.atomic_files import Data, Disk

LONG = bytes(range(256)) * 17
SHORT = b"short"
assert len(SHORT) <= IN_ENTRY_BYTES_MAX < len(LONG)


def opened(folder: Path, disk: Disk | None = None) -> tuple[Keeper, list[Found]]:
    return Keeper.open(folder, 1, disk or QuickDisk(), quick_connect)


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


async def loaded(keeper: Keeper, kept: Any) -> list[bytes]:
    return [bytes(await keeper.load(each["content"])) for each in kept["outputs"]]


async def test_values_come_back_long_ones_from_files(tmp_path: Path) -> None:
    keeper, found = opened(tmp_path)
    assert found == []
    kept = await keeper.save("a", "ended", {"state": "done"}, values(SHORT, LONG, b""))
    assert await loaded(keeper, kept) == [SHORT, LONG, b""]
    assert files(tmp_path) == {hash_bytes(LONG).hex()}
    await keeper.close()
    keeper, (entry,) = opened(tmp_path)
    assert (entry.job, entry.kind, entry.fields["state"]) == ("a", "ended", "done")
    assert await loaded(keeper, entry.fields["values"]) == [SHORT, LONG, b""]
    await keeper.close()


async def test_content_that_a_job_has_is_found_by_its_address_while_it_is_whole(tmp_path: Path) -> None:
    keeper, _ = opened(tmp_path)
    address = hash_bytes(LONG)
    assert await keeper.find(address, len(LONG)) is None
    await keeper.save("a", "accepted", {}, values(LONG))
    assert bytes(await keeper.find(address, len(LONG)) or b"") == LONG
    assert await keeper.find(address, len(LONG) + 1) is None
    (tmp_path / "content" / address.hex()).write_bytes(LONG[::-1])
    assert await keeper.find(address, len(LONG)) is None, "whoever has it is asked"
    await keeper.save("a", "forgotten", {})
    assert await keeper.find(address, len(LONG)) is None
    await keeper.close()


async def test_weights_stay_a_while_for_whoever_sends_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, _ = opened(tmp_path)
    kinds = [LONG, LONG[::-1], LONG[1:] + LONG[:1]]
    for number, data in enumerate(kinds):
        for turn in range(2):
            await keeper.save(f"{number}.{turn}", "accepted", {}, {"w": Content(memoryview(data), hash_bytes(data))})
            await keeper.save(f"{number}.{turn}", "forgotten", {})
    assert files(tmp_path) == {hash_bytes(data).hex() for data in kinds}
    assert bytes(await keeper.find(hash_bytes(LONG), len(LONG)) or b"") == LONG
    monkeypatch.setattr(contents, "RECENT_BYTES_MAX", 2 * len(LONG))
    last = LONG[2:] + LONG[:2]
    await keeper.save("last", "accepted", {}, {"w": Content(memoryview(last), hash_bytes(last))})
    assert files(tmp_path) == {hash_bytes(data).hex() for data in (kinds[2], last)}, "the latest"
    await keeper.close()
    keeper, _ = opened(tmp_path)
    assert files(tmp_path) == {hash_bytes(last).hex()}, "which its job needs"
    await keeper.close()


async def test_weights_of_before_make_room_when_the_disk_is_full(tmp_path: Path) -> None:
    disk = RoomFor(1)
    keeper, _ = opened(tmp_path, disk)
    await keeper.save("a", "accepted", {}, {"w": Content(memoryview(LONG), hash_bytes(LONG))})
    await keeper.save("a", "forgotten", {})
    other = LONG[::-1]
    await keeper.save("b", "accepted", {}, {"w": Content(memoryview(other), hash_bytes(other))})
    assert files(tmp_path) == {hash_bytes(other).hex()}
    with pytest.raises(NotDurable):
        await keeper.save("c", "accepted", {}, values(LONG))
    await keeper.close()


async def test_files_go_when_no_entry_speaks_of_them(tmp_path: Path) -> None:
    keeper, _ = opened(tmp_path)
    other = LONG[::-1]
    await keeper.save("a", "accepted", {}, values(LONG))
    await keeper.save("b", "accepted", {}, values(LONG, other))
    await keeper.save("b", "ended", {}, values(other))
    assert files(tmp_path) == {hash_bytes(LONG).hex(), hash_bytes(other).hex()}
    await keeper.save("a", "forgotten", {})
    assert files(tmp_path) == {hash_bytes(other).hex()}
    (tmp_path / "content" / "rubbish.writing").touch()
    await keeper.close()
    keeper, _ = opened(tmp_path)
    assert files(tmp_path) == {hash_bytes(other).hex()}
    await keeper.save("b", "forgotten", {})
    assert files(tmp_path) == set()
    await keeper.close()


async def test_a_note_goes_with_the_next_entry_in_its_place(tmp_path: Path) -> None:
    keeper, _ = opened(tmp_path)
    await keeper.save("a", "accepted", {})
    keeper.note("a", "started")
    await keeper.save("b", "accepted", {})
    keeper.note("b", "started")
    await keeper.close()
    keeper, found = opened(tmp_path)
    assert [(entry.job, entry.kind) for entry in found] == [
        ("a", "accepted"),
        ("a", "started"),
        ("b", "accepted"),
        ("b", "started"),
    ]
    await keeper.close()


async def test_entries_that_come_together_share_a_commit(tmp_path: Path) -> None:
    fuse = Fuse()
    keeper, _ = opened(tmp_path, FaultyDisk(fuse))
    before = fuse.steps
    await keeper.save("alone", "accepted", {})
    alone = fuse.steps - before
    await asyncio.gather(*(keeper.save(f"{number}", "accepted", {}) for number in range(100)))
    assert fuse.steps - before <= 4 * alone
    await keeper.close()


@pytest.mark.parametrize("lasts", [1, 3, 0], ids=["once", "three times", "for good"])
async def test_each_step_may_fail_and_what_failed_does_not_count(tmp_path: Path, lasts: int) -> None:
    for number in range(1, 200):
        folder = tmp_path / f"{number}"
        keeper, _ = opened(folder)
        await keeper.close()
        fuse = Fuse(number, number + lasts if lasts else 0)
        sure, tried = set(), set()
        try:
            keeper, _ = opened(folder, FaultyDisk(fuse))
        except NotDurable:
            continue
        for job in "abc":
            tried.add(job)
            try:
                await keeper.save(job, "ended", {}, values(job.encode() + LONG))
            except NotDurable:
                continue
            sure.add(job)
        await keeper.close()
        keeper, found = opened(folder)
        assert sure <= {entry.job for entry in found} <= tried
        for entry in found:
            assert await loaded(keeper, entry.fields["values"]) == [entry.job.encode() + LONG]
        await keeper.close()
        if not fuse.blown:
            return
    raise AssertionError("it never went through without a failure")


async def test_damage_to_a_value_is_said_with_its_file_and_the_next_step(tmp_path: Path) -> None:
    keeper, _ = opened(tmp_path)
    kept = await keeper.save("a", "ended", {}, values(LONG))
    (path,) = (tmp_path / "content").iterdir()
    for damaged in (LONG[:-1], LONG + b"x", b"", bytes([LONG[0] ^ 1]) + LONG[1:]):
        path.write_bytes(damaged)
        with pytest.raises(BlobCorrupt, match=f"altered: .*{path.name}.* submit the job again under another id"):
            await loaded(keeper, kept)
    path.unlink()
    with pytest.raises(BlobMissing, match=f"missing: .*{path.name}"):
        await loaded(keeper, kept)
    await keeper.close()
