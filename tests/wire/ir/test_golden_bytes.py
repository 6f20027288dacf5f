"""The bytes of every frame, message and a small graph never change by accident (support/golden.py writes them)."""

from __future__ import annotations

from typing import get_args

from support.frames import BODY, FRAMES
from support.golden import current, square_sum, stored
from support.messages import MESSAGES

from wire.ir.codec import decode_graph
from wire.protocol.frames import Frame, decode, decode_hello_body, encode
from wire.protocol.messages import AnyMessage, decode_message


def test_the_bytes_are_those_that_were_stored() -> None:
    assert current() == "".join(f"{name}: {data.hex()}\n" for name, data in stored().items())


def test_stored_bytes_are_still_read() -> None:
    rows = stored()
    assert decode_graph(rows["graph"]) == decode_graph(rows["graph named"]) == square_sum()
    assert decode_graph(rows["graph named"]).name == "sum"
    assert decode_hello_body(rows["identity"]) == BODY
    for frame in FRAMES:
        data = rows[f"frame {type(frame).__name__}"]
        assert encode(decode(data)) == data
    for message in MESSAGES:
        assert decode_message(rows[f"message {type(message).__name__}"]) == message


def test_every_frame_and_every_message_stands_there() -> None:
    assert {type(frame) for frame in FRAMES} == set(get_args(Frame))
    assert {type(message) for message in MESSAGES} == set(get_args(AnyMessage))
