"""A large tensor that comes as a stream is written by threads: to have memory for it takes half a second for a GiB, for
which the worker's event loop would stand still."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.machines.receiving import receiving

from wire.errors import MeshError, NodeLost, OutOfMemory
from wire.limits import MIB
from wire.protocol.messages import PlanKey, Push, Value
from wire.system import mapped_files, shared_memory
from wire.system.shared_memory import take
from worker.daemon.plan_requests import LARGE_BYTES
from worker.state import events as ev

SIZE = LARGE_BYTES // 4 + 3
HEADER = Push(PlanKey(1, 1), 0, 0, 0, Value("f32", (SIZE,)))


async def test_it_is_in_a_file_as_it_was_sent_and_no_loop_had_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: set[threading.Thread] = set()
    write = os.write

    def wrote(handle: int, data: Any) -> int:
        if len(data) > MIB // 8:
            writers.add(threading.current_thread())
        return write(handle, data)

    monkeypatch.setattr(shared_memory, "reserve", None)
    tensor = np.random.default_rng(0).random(SIZE, np.float32)
    async with receiving(tmp_path) as (link, receiver):
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", wrote)
            await link.send_stream(HEADER, tensor.data)
            await receiver.notified.wait()
        (event,) = receiver.events
        assert isinstance(event, ev.TensorArrived) and isinstance(event.tensor, ev.SharedFile)
        assert event.tensor.shape == (SIZE,) and receiver.under_way == 0
        data = take(event.tensor.directory, event.tensor.name, tensor.nbytes)
        assert bytes(data) == tensor.tobytes() and not receiver.files()
        assert writers and threading.main_thread() not in writers


async def test_without_room_its_step_hears_of_it_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "no space left on the test's device")

    async with receiving(tmp_path) as (link, receiver):
        monkeypatch.setattr("wire.transfer.content_exchange.write_all", full)
        await link.send_stream(HEADER, np.zeros(SIZE, np.float32).data)
        await receiver.notified.wait()
        (event,) = receiver.events
        assert isinstance(event, ev.TensorLost) and isinstance(event.error, OutOfMemory)
        assert receiver.under_way == 0 and not receiver.files()
        await link.ping()


async def test_of_one_whose_sender_goes_nothing_stays(tmp_path: Path) -> None:
    async with receiving(tmp_path) as (link, receiver):
        sending = asyncio.create_task(link.send_stream(HEADER, np.zeros(SIZE, np.float32).data))
        while not receiver.under_way:
            await asyncio.sleep(0)
        link.fail(NodeLost("the test ends it"))
        with pytest.raises(MeshError):
            await sending
        while receiver.tasks:
            await asyncio.sleep(0.01)
        assert not receiver.events and receiver.under_way == 0 and not receiver.files()


async def test_a_small_one_for_which_there_is_no_room_now_is_written_by_threads_that_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, size_bytes: int) -> None:
        raise OSError(28, "no space left on the test's device")

    monkeypatch.setattr(shared_memory, "reserve", full)
    given_back = threading.Event()
    mapped_files._ending.take(lambda: given_back.wait(60))
    wrote = shared_memory.write_all

    def write_all(data: memoryview, handle: int) -> None:
        if not given_back.is_set():
            threading.Timer(0.05, given_back.set).start()
            wrote(data[: len(data) // 2], handle)
            raise OSError(28, "no space left on the test's device")
        wrote(data, handle)

    monkeypatch.setattr("wire.transfer.content_exchange.write_all", write_all)
    tensor = np.random.default_rng(0).random(1 << 18, np.float32)
    async with receiving(tmp_path) as (link, receiver):
        await link.send_stream(Push(PlanKey(1, 1), 0, 0, 0, Value("f32", tensor.shape)), tensor.data)
        await receiver.notified.wait()
        (event,) = receiver.events
        assert isinstance(event, ev.TensorArrived) and isinstance(event.tensor, ev.SharedFile)
        data = take(event.tensor.directory, event.tensor.name, tensor.nbytes)
        assert bytes(data) == tensor.tobytes() and receiver.under_way == 0 and not receiver.files()
