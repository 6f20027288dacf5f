"""Zeros at the end of a tensor do not travel to a worker on another machine, and are there when it arrives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.machines.receiving import receiving

from wire.errors import ProtocolError
from wire.limits import KIB, MIB
from wire.link.link import Link
from wire.protocol.messages import PlanKey, Push, Value
from wire.system.shared_memory import SharedDir, take
from wire.transfer.zeros import BLOCK
from worker.daemon.plan_requests import LARGE_BYTES
from worker.daemon.tensor_sender import TensorSender
from worker.state import events as ev


def sent_by(link: Link, folder: Path, array: np.ndarray[Any, Any], inline: bool) -> tuple[TensorSender, ev.SendPush]:
    """A push, and who sends it."""
    shared = SharedDir.create(folder)
    tensor: ev.Tensor = ev.Inline("f32", array.shape, array.tobytes())
    if not inline:
        tensor = ev.SharedFile("f32", array.shape, str(shared.path), shared.write([array.tobytes()]))
    endpoint = cast(Any, type("Links", (), {"links": {"there": link}}))
    sender = TensorSender(endpoint, cast(Any, None), lambda event: None)
    return sender, ev.SendPush(1, "there", PlanKey(1, 1), 0, 0, 0, tensor)


def with_zeros(size_bytes: int, used_bytes: int) -> np.ndarray[Any, Any]:
    array = np.zeros(size_bytes // 4, np.float32)
    array[: used_bytes // 4] = np.random.default_rng(0).random(used_bytes // 4, np.float32) + 1
    return array


@pytest.mark.parametrize(
    ("size_bytes", "used_bytes", "inline"),
    [
        (48 * KIB, 5 * KIB, True),
        (48 * KIB, 48 * KIB, True),
        (256 * KIB, 16 * KIB, False),
        (256 * KIB, 0, False),
        (4 * MIB, 16 * KIB, False),
        (4 * MIB, 3 * MIB, False),
        (LARGE_BYTES + MIB, MIB + 12, False),
    ],
)
async def test_a_tensor_arrives_whole_and_what_travels_is_what_is_there(
    tmp_path: Path, size_bytes: int, used_bytes: int, inline: bool
) -> None:
    array = with_zeros(size_bytes, used_bytes)
    async with receiving(tmp_path) as (link, receiver):
        assert not link.same_host
        sender, push = sent_by(link, tmp_path, array, inline)
        before = sum(link.bytes_sent.values())
        sender.push(push)
        await asyncio.wait_for(receiver.notified.wait(), 60)
        (event,) = receiver.events
        assert isinstance(event, ev.TensorArrived) and receiver.under_way == 0
        tensor = event.tensor
        assert not isinstance(tensor, ev.DeviceTensor) and tensor.shape == array.shape
        data = tensor.data if isinstance(tensor, ev.Inline) else take(tensor.directory, tensor.name, array.nbytes)
        assert bytes(data) == array.tobytes() and not receiver.files()
        assert sum(link.bytes_sent.values()) - before <= used_bytes + BLOCK + KIB


async def test_a_node_of_an_older_minor_version_is_sent_all_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, "minor", property(lambda link: 0))
    array = with_zeros(256 * KIB, 16 * KIB)
    async with receiving(tmp_path) as (link, receiver):
        sender, push = sent_by(link, tmp_path, array, False)
        sender.push(push)
        await asyncio.wait_for(receiver.notified.wait(), 60)
        assert isinstance(receiver.events[0], ev.TensorArrived)
        assert sum(link.bytes_sent.values()) >= array.nbytes


@pytest.mark.parametrize("zeros", [BLOCK - 4, BLOCK + 4, 1 << 40])
async def test_another_number_of_zeros_than_the_tensor_has_is_refused(tmp_path: Path, zeros: int) -> None:
    """By the message of a small one; `ArrivingTensors.check` is asked for the size of a stream, zeros included."""
    value = Value("f32", (BLOCK // 2,), bytes(BLOCK))
    async with receiving(tmp_path) as (link, receiver):
        link.notify(Push(PlanKey(1, 1), 0, 0, 0, value, zeros))
        with pytest.raises(ProtocolError, match="bytes for a tensor"):
            await link.ping()
        assert not receiver.events


async def test_a_short_message_makes_the_receiver_take_no_large_memory(tmp_path: Path) -> None:
    """Any worker may say that a tensor of a plan that is not known yet is almost all zeros."""
    whole_bytes = MIB + BLOCK
    value = Value("u8", (whole_bytes,), bytes(BLOCK))
    async with receiving(tmp_path) as (link, receiver):
        link.notify(Push(PlanKey(1, 1), 0, 0, 0, value, whole_bytes - BLOCK))
        with pytest.raises(ProtocolError, match="a message of a tensor of"):
            await link.ping()
        assert not receiver.events
