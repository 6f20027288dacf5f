"""What direct calls say: whole messages, one at a time, and nothing else."""

from __future__ import annotations

import struct

import pytest

from wire.errors import FrameError
from wire.protocol.direct_calls import (
    MESSAGE_BYTES_MAX,
    TENSORS_BYTES_MAX,
    DirectAnswer,
    DirectCall,
    Unpacker,
    pack,
)

CALL = DirectCall((b"one", b"", b"x" * 1000))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 600, 5000])
def test_a_call_comes_whole_however_its_bytes_come(size: int) -> None:
    data, reading = pack(CALL), Unpacker(DirectCall)
    came = [reading.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert came == [None] * (len(came) - 1) + [CALL]
    assert reading.feed(pack(CALL)) == CALL


@pytest.mark.parametrize("answer", [DirectAnswer(), DirectAnswer((b"y", b"z"), 0.5)])
def test_an_answer_is_outputs_or_a_refusal(answer: DirectAnswer) -> None:
    assert Unpacker(DirectAnswer).feed(pack(answer)) == answer


def test_the_largest_tensors_fit_into_a_message() -> None:
    largest = DirectCall(tuple(b"x" * (TENSORS_BYTES_MAX // 64) for _ in range(64)))
    assert len(pack(largest)) <= MESSAGE_BYTES_MAX
    assert Unpacker(DirectCall).feed(pack(largest)) == largest


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", MESSAGE_BYTES_MAX + 1),
        pack(CALL) + b".",
        pack(CALL) * 2,
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 0),
        pack(DirectAnswer()),
    ],
)
def test_what_is_too_long_too_soon_or_no_call_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        Unpacker(DirectCall).feed(data)
