"""Content that goes into a file: the loop does not wait for the disk, and the sender is not far ahead of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.machines.exchanges import linked
from support.waiting import until

from wire.errors import BlobMissing, MeshError
from wire.ir.codec import hash_bytes
from wire.limits import DEFAULT, MIB

CONTENT = np.random.default_rng(0).bytes(3 * DEFAULT.window_bytes + 12_345)
ADDRESS = hash_bytes(CONTENT)


async def test_a_disk_that_takes_nothing_holds_up_neither_the_loop_nor_more_than_a_window_of_memory() -> None:
    """A pipe that nobody reads is such a disk."""
    async with linked(CONTENT) as (link, asks):
        reads, writes = os.pipe()
        fetching = asyncio.ensure_future(asks.exchange.fetch_into(link, ADDRESS, len(CONTENT), writes))
        await until(lambda: asks.buffers and asks.buffers[0].arrived == DEFAULT.window_bytes, 60)
        (buffer,) = asks.buffers
        for _ in range(3):
            await link.ping(30)
        assert buffer.arrived == DEFAULT.window_bytes, "no more comes than the window has"
        assert not fetching.done()
        os.set_blocking(reads, False)
        read = bytearray()

        def all_of_it() -> bool:
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(reads, MIB):
                    read.extend(piece)
            return fetching.done()

        await until(all_of_it, 120)
        await fetching
        all_of_it()
        assert bytes(read) == CONTENT
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("size", [1, 100, 5 * MIB, len(CONTENT)])
async def test_content_of_any_size_is_written_whole(tmp_path: Path, size: int) -> None:
    content = CONTENT[:size]
    async with linked(content) as (link, asks):
        with open(tmp_path / "content", "wb") as file:
            await asks.exchange.fetch_into(link, hash_bytes(content), size, file.fileno())
        assert (tmp_path / "content").read_bytes() == content


async def test_a_disk_that_refuses_is_an_error_and_costs_the_link_nothing(tmp_path: Path) -> None:
    (tmp_path / "read only").write_bytes(b"")
    async with linked(CONTENT) as (link, asks):
        with open(tmp_path / "read only", "rb") as file, pytest.raises(OSError):
            await asks.exchange.fetch_into(link, ADDRESS, len(CONTENT), file.fileno())
        assert bytes(await asks.exchange.fetch(link, ADDRESS, len(CONTENT))) == CONTENT


class NoThread(ThreadPoolExecutor):
    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")


async def test_a_thread_that_cannot_begin_is_an_error_and_costs_neither_the_link_nor_a_file(tmp_path: Path) -> None:
    async with linked(CONTENT) as (link, asks):
        loop = asyncio.get_running_loop()
        with open(tmp_path / "content", "wb") as file:
            loop.set_default_executor(NoThread())
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(MeshError, match="new thread"):
                await asks.exchange.fetch_into(link, ADDRESS, len(CONTENT), file.fileno())
            assert len(os.listdir("/proc/self/fd")) == before
            loop.set_default_executor(ThreadPoolExecutor())
        assert bytes(await asks.exchange.fetch(link, ADDRESS, len(CONTENT))) == CONTENT


async def test_a_fetch_that_is_cancelled_costs_the_link_no_credit() -> None:
    async with linked(CONTENT) as (link, asks):
        reads, writes = os.pipe()
        fetching = asyncio.ensure_future(asks.exchange.fetch_into(link, ADDRESS, len(CONTENT), writes))
        await until(lambda: asks.buffers and asks.buffers[0].arrived == DEFAULT.window_bytes, 60)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        os.close(reads)  # the thread, which waits for the pipe, ends
        os.close(writes)
        assert bytes(await asks.exchange.fetch(link, ADDRESS, len(CONTENT))) == CONTENT


async def test_content_that_is_not_there_writes_nothing(tmp_path: Path) -> None:
    async with linked() as (link, asks):
        with open(tmp_path / "content", "wb") as file, pytest.raises(BlobMissing):
            await asks.exchange.fetch_into(link, ADDRESS, len(CONTENT), file.fileno())
        assert (tmp_path / "content").read_bytes() == b""
