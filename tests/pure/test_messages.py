"""docs/protocol.md, "Messages": both ways, every field's limit, and a FrameError for whatever is wrong."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.messages import BLOB, MESSAGES, PLAN, VALUE
from support.tampering import EXTREMES, refuse_tampered

from wire.errors import FrameError
from wire.limits import DEFAULT, KIB, MIB
from wire.messages import (
    BlobSpec,
    Deploy,
    FetchBlob,
    JobReport,
    Jobs,
    Join,
    Leaving,
    LogLines,
    Message,
    PartSpec,
    Planned,
    Push,
    Source,
    Suspected,
    TailLog,
    Target,
    Value,
    decode_message,
    encode_message,
)


def attempt(data: bytes) -> bool:
    """Whether `data` is refused; if it is not, it is a message that comes back as itself."""
    try:
        message = decode_message(data)
    except FrameError:
        return True
    assert isinstance(message, Message)
    assert encode_message(decode_message(encode_message(message))) == encode_message(message)
    return False


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_went(message: Message) -> None:
    assert decode_message(encode_message(message)) == message
    assert decode_message(memoryview(encode_message(message))) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_truncation_and_every_extra_byte_is_refused(message: Message) -> None:
    data = encode_message(message)
    for length in range(len(data)):
        with pytest.raises(FrameError):
            decode_message(data[:length])
    with pytest.raises(FrameError):
        decode_message(data + b"\x00")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_field_that_nobody_knows_is_refused(message: Message) -> None:
    """A newer minor may append fields, and sends them only to nodes that speak it."""
    longer = [*msgspec.msgpack.decode(encode_message(message)), "more"]
    with pytest.raises(FrameError):
        decode_message(msgspec.msgpack.encode(longer))


def test_an_unknown_tag_is_refused() -> None:
    for tag in ("Invent", "Message", "", 7, None, "deploy"):
        with pytest.raises(FrameError):
            decode_message(msgspec.msgpack.encode([tag]))


LIMITED: list[tuple[str, Callable[[int], Message], int]] = [
    ("a text", lambda n: Leaving("x" * n), 4096),
    ("a name", lambda n: Join(1, 0.1, "x" * n), 256),
    ("a count", lambda n: Suspected(n), 1 << 53),
    ("an index", lambda n: Push(PLAN, 1, n, 0, VALUE), 1 << 20),
    ("inline data", lambda n: Push(PLAN, 1, 1, 0, Value("u8", (n,), bytes(n))), 64 * KIB),
    ("a rank", lambda n: Push(PLAN, 1, 1, 0, Value("u8", (1,) * n)), 8),
    ("a dimension", lambda n: Push(PLAN, 1, 1, 0, Value("u8", (n,))), 1 << 31),
    ("log lines of leaving", lambda n: Leaving("", ("",) * n), 64),
    ("log lines", lambda n: LogLines(("",) * n), 1000),
    ("lines asked for", lambda n: TailLog(n), 1000),
    ("lines of a job", lambda n: Jobs((JobReport("j", "", "done", 0.0, 0.0, {}, ("",) * n),)), 1000),
    ("a report", lambda n: Jobs((JobReport("j", "", "done", 0.0, 0.0, {}, (), "x" * n),)), 1 * MIB),
    ("a plan", lambda n: Planned("x" * n), 4 * MIB),
    ("holders", lambda n: deploy(blobs=(BlobSpec(BLOB, 1, "u8", (1,), ("",) * n),)), 64),
    ("sources", lambda n: deploy(parts=(PartSpec(0, 0, BLOB, (Source("input"),) * n, ()),)), 100_000),
    ("targets", lambda n: deploy(parts=(PartSpec(0, 0, BLOB, (), ((Target(""),) * n,)),)), 4096),
    ("outputs of a part", lambda n: deploy(parts=(PartSpec(0, 0, BLOB, (), ((),) * n),)), 100_000),
]


def deploy(**fields: Any) -> Deploy:
    return Deploy(**{"plan": PLAN, "parts": (), "graphs": {}, "blobs": (), "peers": {}} | fields)


@pytest.mark.parametrize(("what", "make", "most"), LIMITED, ids=[row[0] for row in LIMITED])
def test_a_limit_holds_exactly(what: str, make: Callable[[int], Message], most: int) -> None:
    for size in (most - 1, most):
        assert decode_message(encode_message(make(size))) == make(size)
    with pytest.raises(FrameError):
        decode_message(encode_message(make(most + 1)))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_address_has_32_bytes(size: int) -> None:
    with pytest.raises(FrameError):
        decode_message(encode_message(FetchBlob(bytes(size), 1)))
    assert decode_message(encode_message(FetchBlob(bytes(32), 1))) == FetchBlob(bytes(32), 1)


def test_the_bytes_of_a_message() -> None:
    most = DEFAULT.message_bytes_max
    overhead = len(encode_message(deploy(graphs={BLOB: bytes(1 << 16)}))) - (1 << 16)
    for size in (most - 1, most):
        assert len(encode_message(deploy(graphs={BLOB: bytes(size - overhead)}))) == size
        decode_message(encode_message(deploy(graphs={BLOB: bytes(size - overhead)})))
    with pytest.raises(FrameError, match="too long"):
        decode_message(encode_message(deploy(graphs={BLOB: bytes(most + 1 - overhead)})))


WRONG = [
    ["Suspected", -1],
    ["Suspected", 1.5],
    ["Suspected", True],
    ["Suspected", "1"],
    ["Suspected", None],
    ["Suspected"],
    ["Push", [1, 1], 1, 1, 0, ["u8", [-1]]],
    ["Push", [1, 1], 1, 1, 0, ["u8", "x"]],
    ["Push", [1], 1, 1, 0, ["u8", [1]]],
    ["Join", 1, -0.5, "c"],
    ["TailLog", -1],
    {"tag": "Done"},
    "Done",
    [],
    None,
]


@pytest.mark.parametrize("fields", WRONG, ids=repr)
def test_a_wrong_type_is_refused(fields: Any) -> None:
    with pytest.raises(FrameError):
        decode_message(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("extreme", EXTREMES, ids=bytes.hex)
def test_an_extreme_at_any_place_is_refused_without_being_believed(extreme: bytes) -> None:
    tracemalloc.start()
    for message in MESSAGES:
        data = encode_message(message)
        for at in range(len(data)):
            attempt(data[:at] + extreme + data[at:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 * MIB


BOMBS = {
    "deep arrays": b"\x91" * 100_000,
    "deep arrays in a field": b"\x92\xa9Suspected" + b"\x91" * 100_000,
    "deep maps in a field": b"\x92\xa9Suspected" + b"\x81\xa1a" * 100_000,
    "claims of parts": b"\x97\xa6Deploy\x92\x01\x01" + b"\xdd\xff\xff\xff\xff",
    "claims of bytes": b"\x93\xa9FetchBlob\xc6\xff\xff\xff\xff",
    "claims of graphs": b"\x97\xa6Deploy\x92\x01\x01\x90\xdf\xff\xff\xff\xff",
    "claims of digits": b"\x92\xa7Planned\xdb\xff\xff\xff\xff",
    "many lines": b"\x92\xa8LogLines\xdd" + (1 << 20).to_bytes(4, "big") + b"\xa0" * (1 << 20),
    "many parts": b"\x97\xa6Deploy\x92\x01\x01\xdd" + (1 << 20).to_bytes(4, "big") + b"\x95\x00" * (1 << 19),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_no_more_than_its_bytes(name: str) -> None:
    tracemalloc.start()
    assert attempt(BOMBS[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 * MIB + 20 * len(BOMBS[name])


@pytest.mark.parametrize("count", [30_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_tampered_messages_raise_nothing_but_frame_errors_and_keep_no_memory(count: int) -> None:
    refuse_tampered(random.Random(11), [encode_message(message) for message in MESSAGES], attempt, count, "messages")
