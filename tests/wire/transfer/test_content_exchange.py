"""Content by its address: a stream is taken only if it was asked for, and its room costs nothing before bytes come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import numpy as np
import psutil
import pytest
from support.machines.exchanges import linked

from wire.errors import BlobMissing, OutOfMemory
from wire.ir.codec import hash_bytes, tensor_from
from wire.ir.dtypes import F32
from wire.ir.types import TensorType
from wire.limits import GIB, MIB
from wire.link.link import Link
from wire.protocol.messages import Blob, BlobStream, FetchBlob, NamedValue
from wire.system.shared_memory import SharedDir
from wire.transfer.content_exchange import BlobExchange, room_for


def test_room_that_is_only_claimed_takes_no_memory() -> None:
    before = psutil.Process().memory_info().rss
    rooms = [room_for(GIB // 4) for _ in range(8)]
    assert psutil.Process().memory_info().rss - before < 64 * MIB
    assert [room.nbytes for room in rooms] == [GIB // 4] * 8


def test_room_that_nobody_has_is_refused() -> None:
    with pytest.raises(OutOfMemory):
        room_for(1 << 62)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_what_arrives_in_a_room_is_a_tensor(count: int) -> None:
    room = room_for(4 * count)
    room[:] = np.arange(count, dtype="<f4").tobytes()
    assert np.array_equal(tensor_from(room, TensorType((count,), F32)), np.arange(count))


def test_a_stream_nobody_asked_for_is_refused() -> None:
    exchange = BlobExchange(None, lambda address: None)
    with pytest.raises(BlobMissing, match="nobody waits"):
        exchange.open_stream(cast(Link, None), BlobStream(bytes(32), 1), GIB)


async def test_who_takes_no_files_gets_no_more_shared_memory_and_all_its_content(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(4 * MIB)
    address = hash_bytes(content)
    async with linked(content, folder=tmp_path, untaken_bytes_max=10 * MIB) as (link, asks):
        ways = [await link.request(FetchBlob(address, 1000 + number)) for number in range(2)]
        assert all(isinstance(way, Blob) and way.shared for way in ways)
        asked = await asyncio.gather(
            *(link.request(FetchBlob(address, number)) for number in (2000, 2001)), return_exceptions=True
        )
        assert all(isinstance(each, BlobMissing) for each in asked), "streams, for which nobody here waits"
        files = [path for path in tmp_path.glob("*/*") if path.stat().st_size == len(content)]
        assert len(files) == 2
        assert bytes(await asks.exchange.fetch(link, address, len(content))) == content
        for path in files:
            path.unlink()  # which is how files are taken
        assert bytes(await asks.exchange.fetch(link, address, len(content))) == content
        assert link.bytes_received["shared"] == len(content), "there is room again"


async def test_a_file_of_any_size_fits_where_there_is_no_other(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(4 * MIB)
    async with linked(content, folder=tmp_path, untaken_bytes_max=MIB) as (link, asks):
        for number in range(1, 4):
            assert bytes(await asks.exchange.fetch(link, hash_bytes(content), len(content))) == content
            assert link.bytes_received["shared"] == number * len(content)


@pytest.mark.parametrize("size_bytes", [MIB // 2, 4 * MIB])
async def test_content_comes_as_a_stream_where_shared_memory_is_full(
    size_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> str:
        raise OutOfMemory("shared memory is full")

    content = np.random.default_rng(0).bytes(size_bytes)
    async with linked(content, folder=tmp_path, untaken_bytes_max=GIB) as (link, asks):
        monkeypatch.setattr(SharedDir, "write", full)
        assert bytes(await asks.exchange.fetch(link, hash_bytes(content), len(content))) == content
        assert link.bytes_received["shared"] == 0


async def test_where_one_of_several_cannot_be_had_the_others_are_not_fetched_any_more() -> None:
    exchange = BlobExchange(None, lambda address: None)
    cancelled: list[str] = []

    async def fetch(link: Link, value: NamedValue) -> None:
        try:
            if value.name == "gone":
                raise BlobMissing("it is gone")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(value.name)
            raise

    exchange.fetch_named = fetch  # type: ignore[method-assign, assignment]
    values = [NamedValue(name, "f32", (1,), None, bytes(32)) for name in ("large", "gone", "larger")]
    with pytest.raises(BlobMissing):
        await exchange.fetch_all(cast(Link, None), values)
    assert set(cancelled) <= {"large", "larger"} and "large" in cancelled
