"""docs/protocol.md, "Frames": both ways, every limit at its edge, and a million ways to be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.frames import BODY, BUSY, FRAMES, LINK

from wire.errors import Busy, FrameError, MeshError
from wire.limits import DEFAULT
from wire.protocol.frames import (
    ERROR_BYTES_MAX,
    HEADER_BYTES_MAX,
    HELLO_BYTES_MAX,
    ErrorReply,
    Frame,
    Hello,
    HelloAck,
    Notify,
    Piece,
    Ping,
    Refuse,
    Reply,
    Request,
    StreamAbort,
    StreamChunk,
    StreamOpen,
    decode,
    decode_hello_body,
    decode_long,
    encode,
    encode_hello_body,
    frame_bytes_max,
    hello_version,
    long_frame_bytes_max,
)


def plain(frame: Frame) -> tuple[object, ...]:
    """A frame's fields with views and errors made comparable."""
    values = [getattr(frame, name) for name in frame.__struct_fields__]
    return (
        type(frame),
        *(v.to_fields() if isinstance(v, MeshError) else bytes(v) if isinstance(v, memoryview) else v for v in values),
    )


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_comes_back_as_it_went(frame: Frame) -> None:
    assert plain(decode(encode(frame))) == plain(frame)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_truncation_is_refused_or_another_valid_frame(frame: Frame) -> None:
    data = encode(frame)
    for length in range(len(data)):
        try:
            shorter = decode(data[:length])
        except FrameError:
            continue
        assert encode(shorter) == data[:length]


def test_a_rest_is_a_view_and_not_a_copy() -> None:
    data = encode(StreamChunk(1, 0, bytes(1000)))
    chunk = decode(data)
    assert isinstance(chunk, StreamChunk) and isinstance(chunk.payload, memoryview) and chunk.payload.obj is data


SMALL = replace(DEFAULT, chunk_bytes_max=100, graph_bytes_max=1000, control_frame_bytes_max=100, stream_bytes_max=500)
LONG_MAX = long_frame_bytes_max(SMALL)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda n: Request(1, bytes(n)), 100),
        (lambda n: Reply(1, bytes(n)), 100),
        (lambda n: Notify(bytes(n)), 100),
        (lambda n: StreamChunk(1, 0, bytes(n)), 100),
        (lambda n: Piece(LONG_MAX, 0, bytes(n)), 100),
        (lambda n: Piece(n, 0, b"x"), LONG_MAX),
        (lambda n: Piece(50, n - 10, bytes(10)), 50),
        (lambda n: StreamOpen(1, n, b""), 500),
        (lambda n: StreamOpen(1, 1, bytes(n)), HEADER_BYTES_MAX),
        (lambda n: Hello((1, 0), LINK, False, bytes(n)), HELLO_BYTES_MAX),
        (lambda n: HelloAck((1, 0), LINK, False, bytes(n)), HELLO_BYTES_MAX),
    ],
)
def test_limits_hold_exactly(make: object, most: int) -> None:
    assert callable(make)
    decode(encode(make(most - 1)), SMALL)
    decode(encode(make(most)), SMALL)
    with pytest.raises(FrameError):
        decode(encode(make(most + 1)), SMALL)


def test_a_frame_in_pieces_has_its_own_limit() -> None:
    overhead = len(encode(Request(1, b"")))
    most = LONG_MAX - overhead
    for size in (most - 1, most):
        assert len(decode_long(encode(Request(1, bytes(size))), SMALL).body) == size  # type: ignore[union-attr]
    with pytest.raises(FrameError):
        decode_long(encode(Request(1, bytes(most + 1))), SMALL)
    with pytest.raises(FrameError, match="does not come in pieces"):
        decode_long(encode(StreamChunk(1, 0, b"x")), SMALL)


def test_no_frame_exceeds_what_the_transport_accepts() -> None:
    long = Busy("x" * 10_000, node="\N{SNOWMAN}" * 5000, cause="y" * 5000, next_step="\ud800" * 5000)
    sizes = [len(encode(frame)) for frame in (ErrorReply(1, long), Refuse((1, 0), long), StreamAbort(1, long))]
    sizes.append(len(encode(StreamChunk(1, 0, bytes(DEFAULT.chunk_bytes_max)))))
    assert max(sizes) <= frame_bytes_max(DEFAULT)
    back = decode(encode(ErrorReply(1, long)))
    assert isinstance(back, ErrorReply) and isinstance(back.error, Busy) and max(sizes[:3]) <= ERROR_BYTES_MAX + 16


def test_an_unknown_error_code_keeps_its_text() -> None:
    import msgspec

    data = encode(ErrorReply(5, BUSY))[:9] + msgspec.msgpack.encode({"code": "invented", "message": "hm"})
    frame = decode(data)
    assert isinstance(frame, ErrorReply) and str(frame.error) == "hm" and frame.error.code == "remote_error"


def test_version_is_read_from_a_hello_of_any_layout() -> None:
    data = encode(Hello((9, 4), LINK, False))
    assert hello_version(data[:9]) == (9, 4) and hello_version(data + bytes(1000)) == (9, 4)
    assert hello_version(data[:8]) is None and hello_version(encode(Ping(1))) is None
    assert hello_version(b"\x01HTTP" + data[5:]) is None


def test_identity_comes_back_and_tolerates_fields_of_a_newer_minor() -> None:
    import msgspec

    assert decode_hello_body(encode_hello_body(BODY)) == BODY
    newer = [*msgspec.msgpack.decode(encode_hello_body(BODY)), "a field of 1.7"]
    assert decode_hello_body(msgspec.msgpack.encode(newer)) == BODY
    assert decode_hello_body(msgspec.msgpack.encode(newer[:-2])) == BODY, "an older node leaves the last field out"


@pytest.mark.parametrize(("field", "most"), [("name", 256), ("mesh", 256), ("node_id", 128), ("shared_memory", 4096)])
def test_identity_texts_have_limits(field: str, most: int) -> None:
    import msgspec

    for size in (most - 1, most):
        decode_hello_body(encode_hello_body(msgspec.structs.replace(BODY, **{field: "x" * size})))
    with pytest.raises(FrameError):
        decode_hello_body(encode_hello_body(msgspec.structs.replace(BODY, **{field: "x" * (most + 1)})))
