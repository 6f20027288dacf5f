"""The bytes of one frame: what a single WebSocket binary message holds (docs/protocol.md, "Frames").

A frame is a kind byte, fixed little-endian fields, and a rest whose meaning the kind gives.  This file knows layouts
and limits only: not which frame may come when (`peer.py`), nor what bodies mean (`messages/`).  Everything wrong
is a FrameError, found before anything is allocated; the rest is handed out as a view of the received bytes.

To add a frame: a class of plain data, a row in _ROWS and a row in peer.py's tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import FrameError, MeshError, from_fields
from ..limits import DEFAULT, KIB, Limits
from ..plain_data import PlainData
from .versions import Version

Bytes = bytes | bytearray | memoryview

MAGIC = b"GMSH"
LINK_ID_BYTES = 16
HELLO_BYTES_MAX = 64 * KIB
ERROR_BYTES_MAX = 32 * KIB  # six texts of some 4 KiB each; longer ones are cut
HEADER_BYTES_MAX = 64 * KIB  # of a stream: the message that says what follows
OVERHEAD_BYTES_MAX = 32  # kind byte and fixed fields of any frame


# -- the frames --------------------------------------------------------------------------------------------


class Hello(PlainData, frozen=True):
    """First frame of a connection.  `body` is an identity on the control connection and empty on the bulk one.

    `flag`: on the bulk connection, whether the sender could read the other's shared-memory directory.
    """

    version: Version
    link_id: bytes
    flag: bool
    body: Bytes = b""


class HelloAck(PlainData, frozen=True):
    """Answer to Hello.  `link_id` is zero, or names the link to the same node that the sender keeps instead."""

    version: Version
    link_id: bytes
    flag: bool
    body: Bytes = b""


class Refuse(PlainData, frozen=True):
    """The connection ends here, and why.  The layout up to and including `version` never changes."""

    version: Version
    error: MeshError


class Goodbye(PlainData, frozen=True):
    """The connection ends here in good order; `reason` is for people."""

    reason: str


class Request(PlainData, frozen=True):
    number: int
    body: Bytes


class Reply(PlainData, frozen=True):
    number: int
    body: Bytes


class ErrorReply(PlainData, frozen=True):
    number: int
    error: MeshError


class Cancel(PlainData, frozen=True):
    """The sender no longer wants the reply; one comes all the same, and is dropped."""

    number: int


class Notify(PlainData, frozen=True):
    body: Bytes


class Piece(PlainData, frozen=True):
    """A part of a frame that is too long for one message: `payload` lies at `offset` of `total` bytes."""

    total: int
    offset: int
    payload: Bytes


class StreamOpen(PlainData, frozen=True):
    """`size` bytes will follow in chunks; `header` is the message that says what they are."""

    stream: int
    size: int
    header: Bytes


class StreamChunk(PlainData, frozen=True):
    stream: int
    offset: int
    payload: Bytes


class StreamAbort(PlainData, frozen=True):
    """The sender gives the stream up."""

    stream: int
    error: MeshError


class StreamRefuse(PlainData, frozen=True):
    """The receiver does not want the stream."""

    stream: int
    error: MeshError


class Credit(PlainData, frozen=True):
    """The receiver took `size` bulk bytes, so that many more may come."""

    size: int


class Ping(PlainData, frozen=True):
    token: int


class Pong(PlainData, frozen=True):
    token: int


Frame = (
    Hello | HelloAck | Refuse | Goodbye | Request | Reply | ErrorReply | Cancel | Notify | Piece
    | StreamOpen | StreamChunk | StreamAbort | StreamRefuse | Credit | Ping | Pong
)  # fmt: skip


# -- both ways ---------------------------------------------------------------------------------------------


def encode(frame: Frame) -> bytes:
    """The frame as bytes.  Sizes are the caller's business: `peer.py` checks what the user gives it."""
    row = _BY_TYPE[type(frame)]
    fixed, rest = row.take_apart(frame)
    return b"".join((row.layout.pack(row.kind, *fixed), rest))


def decode(data: Bytes, limits: Limits = DEFAULT) -> Frame:
    """The frame in `data`; FrameError for anything else.  Rests are views of `data`."""
    row = _row_of(data)
    rest_size = len(data) - row.layout.size
    if rest_size > row.rest_max(limits):
        raise FrameError(f"{row.name}: {rest_size} bytes follow its fields, at most {row.rest_max(limits)} may")
    return _build(row, data, limits)


def is_chunk(data: Bytes) -> bool:
    """Whether it is the frame of a chunk, whose receiver puts it in place and keeps nothing of it."""
    return len(data) > 0 and data[0] == _CHUNK


def decode_long(data: Bytes, limits: Limits = DEFAULT) -> Frame:
    """The frame that came in pieces; FrameError unless it is of a kind that may be long."""
    row = _row_of(data)
    if row.frame not in LONG:
        raise FrameError(f"{row.name} does not come in pieces")
    if len(data) > long_frame_bytes_max(limits):
        raise FrameError(f"{row.name}: {len(data)} bytes, at most {long_frame_bytes_max(limits)} may be")
    return _build(row, data, limits)


def hello_version(data: Bytes) -> Version | None:
    """The version a hello or its answer names, read before anything that may differ between majors; None for others."""
    if len(data) < _PREFIX.size or data[0] not in (_BY_TYPE[Hello].kind, _BY_TYPE[HelloAck].kind):
        return None
    _, magic, major, minor = _PREFIX.unpack_from(data)
    return (major, minor) if magic == MAGIC else None


def frame_bytes_max(limits: Limits) -> int:
    """The longest frame there is: what a transport should accept at most."""
    return max(limits.chunk_bytes_max, HELLO_BYTES_MAX, ERROR_BYTES_MAX, HEADER_BYTES_MAX) + OVERHEAD_BYTES_MAX


def long_frame_bytes_max(limits: Limits) -> int:
    """The longest frame that may travel in pieces: a message that carries graphs."""
    return limits.message_bytes_max + OVERHEAD_BYTES_MAX


def _row_of(data: Bytes) -> _Row:
    if not data:
        raise FrameError("a frame is never empty")
    row = _BY_KIND.get(data[0])
    if row is None:
        raise FrameError(f"no frame has kind {data[0]:#04x}")
    if len(data) < row.layout.size:
        raise FrameError(f"{row.name}: {len(data)} bytes, its fixed fields alone take {row.layout.size}")
    return row


def _build(row: _Row, data: Bytes, limits: Limits) -> Frame:
    fields = row.layout.unpack_from(data)
    frame: Frame = row.build(limits, memoryview(data)[row.layout.size :], *fields[1:])
    return frame


# -- identity ----------------------------------------------------------------------------------------------

_Name = Annotated[str, Meta(max_length=256)]
_Text = Annotated[str, Meta(max_length=4096)]


class HelloBody(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=False):
    """A hello's identity as it travels; a newer minor may append fields, which an older node ignores."""

    node_id: Annotated[str, Meta(min_length=1, max_length=128)]
    name: _Name
    role: _Name
    mesh: _Name
    boot_id: Annotated[str, Meta(min_length=1, max_length=128)]
    incarnation: Annotated[int, Meta(ge=0, le=1 << 53)]
    version: _Name
    op_rows: Annotated[dict[_Name, Annotated[bytes, Meta(max_length=64)]], Meta(max_length=1024)]
    addresses: Annotated[tuple[_Name, ...], Meta(max_length=32)]
    host_id: _Name
    shared_memory: _Text
    pid: Annotated[int, Meta(ge=0, le=1 << 53)]
    window_bytes: Annotated[int, Meta(ge=1, le=1 << 40)]
    reproducible: bool = False


_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(HelloBody)
_error_decoder = msgspec.msgpack.Decoder(dict[Annotated[str, Meta(max_length=16)], _Text])


def encode_hello_body(body: HelloBody) -> bytes:
    """The identity as bytes."""
    return _encoder.encode(body)


def decode_hello_body(data: Bytes) -> HelloBody:
    """The identity in `data`; FrameError for anything else."""
    body: HelloBody = _decode_typed(_hello_decoder, data, "identity")
    return body


# -- layouts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """How one kind lies in bytes: fixed fields after the kind byte, and how long the rest may be."""

    kind: int
    frame: type[Any]
    layout: struct.Struct
    rest_max: Callable[[Limits], int]
    take_apart: Callable[[Any], tuple[tuple[Any, ...], Bytes]]
    build: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.frame.__name__


def _nothing(limits: Limits) -> int:
    return 0


def _body(limits: Limits) -> int:
    return limits.chunk_bytes_max


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise FrameError(what)


def _build_hello(make: type[Any]) -> Callable[..., Any]:
    def build(limits: Limits, rest: Bytes, magic: bytes, major: int, minor: int, link_id: bytes, flag: int) -> Any:
        _check(magic == MAGIC, "the connection does not begin as one of this mesh")
        _check(flag in (0, 1), f"{make.__name__}: {flag} is not a flag")
        return make((major, minor), link_id, bool(flag), rest)

    return build


def _build_piece(limits: Limits, rest: Bytes, total: int, offset: int) -> Piece:
    _check(total <= long_frame_bytes_max(limits), f"a frame of {total} bytes is too long")
    _check(0 < len(rest) <= total and offset <= total - len(rest), f"a piece reaches past its frame's {total} bytes")
    return Piece(total, offset, rest)


def _build_open(limits: Limits, rest: Bytes, stream: int, size: int) -> StreamOpen:
    _check(size <= limits.stream_bytes_max, f"a stream of {size} bytes exceeds {limits.stream_bytes_max}")
    return StreamOpen(stream, size, rest)


def _build_chunk(limits: Limits, rest: Bytes, stream: int, offset: int) -> StreamChunk:
    _check(len(rest) > 0, "a stream chunk is never empty")
    return StreamChunk(stream, offset, rest)


def _build_goodbye(limits: Limits, rest: Bytes) -> Goodbye:
    try:
        return Goodbye(bytes(rest).decode())
    except UnicodeDecodeError:
        raise FrameError("a goodbye's reason is not text") from None


def _build_refuse(limits: Limits, rest: Bytes, magic: bytes, major: int, minor: int) -> Refuse:
    _check(magic == MAGIC, "the connection is not one of this mesh")
    return Refuse((major, minor), _read_error(rest))


def _build_error(make: type[Any]) -> Callable[..., Any]:
    def build(limits: Limits, rest: Bytes, number: int) -> Any:
        return make(number, _read_error(rest))

    return build


def _error_bytes(error: MeshError) -> bytes:
    texts = {key: value.encode("utf-8", "replace") for key, value in error.to_fields().items()}
    size_max = ERROR_BYTES_MAX // (len(texts) + 1)
    return _encoder.encode({key: value[:size_max].decode("utf-8", "ignore") for key, value in texts.items()})


def _read_error(data: Bytes) -> MeshError:
    fields: Mapping[str, str] = _decode_typed(_error_decoder, data, "error")
    return from_fields(dict(fields))


def _decode_typed(decoder: Any, data: Bytes, what: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise FrameError(f"not an {what}", cause=f"{type(error).__name__}: {error}"[:200]) from None


_PREFIX = struct.Struct("<B4sHH")
_HELLO = f"<B4sHH{LINK_ID_BYTES}sB"
_NUMBER = "<BQ"

_CHUNK = 0x21
_ROWS = (
    _Row(0x01, Hello, struct.Struct(_HELLO), lambda _: HELLO_BYTES_MAX,
         lambda f: ((MAGIC, *f.version, f.link_id, f.flag), f.body), _build_hello(Hello)),
    _Row(0x02, HelloAck, struct.Struct(_HELLO), lambda _: HELLO_BYTES_MAX,
         lambda f: ((MAGIC, *f.version, f.link_id, f.flag), f.body), _build_hello(HelloAck)),
    _Row(0x03, Refuse, _PREFIX, lambda _: ERROR_BYTES_MAX,
         lambda f: ((MAGIC, *f.version), _error_bytes(f.error)),
         _build_refuse),
    _Row(0x04, Goodbye, struct.Struct("<B"), lambda _: 4096,
         lambda f: ((), f.reason[:1024].encode("utf-8", "replace")), _build_goodbye),
    _Row(0x10, Request, struct.Struct(_NUMBER), _body,
         lambda f: ((f.number,), f.body), lambda limits, rest, number: Request(number, rest)),
    _Row(0x11, Reply, struct.Struct(_NUMBER), _body,
         lambda f: ((f.number,), f.body), lambda limits, rest, number: Reply(number, rest)),
    _Row(0x12, ErrorReply, struct.Struct(_NUMBER), lambda _: ERROR_BYTES_MAX,
         lambda f: ((f.number,), _error_bytes(f.error)), _build_error(ErrorReply)),
    _Row(0x13, Cancel, struct.Struct(_NUMBER), _nothing,
         lambda f: ((f.number,), b""), lambda limits, rest, number: Cancel(number)),
    _Row(0x14, Notify, struct.Struct("<B"), _body,
         lambda f: ((), f.body), lambda limits, rest: Notify(rest)),
    _Row(0x15, Piece, struct.Struct("<BII"), _body,
         lambda f: ((f.total, f.offset), f.payload), _build_piece),
    _Row(0x20, StreamOpen, struct.Struct("<BQQ"), lambda _: HEADER_BYTES_MAX,
         lambda f: ((f.stream, f.size), f.header), _build_open),
    _Row(_CHUNK, StreamChunk, struct.Struct("<BQQ"), _body,
         lambda f: ((f.stream, f.offset), f.payload), _build_chunk),
    _Row(0x22, StreamAbort, struct.Struct(_NUMBER), lambda _: ERROR_BYTES_MAX,
         lambda f: ((f.stream,), _error_bytes(f.error)), _build_error(StreamAbort)),
    _Row(0x23, StreamRefuse, struct.Struct(_NUMBER), lambda _: ERROR_BYTES_MAX,
         lambda f: ((f.stream,), _error_bytes(f.error)), _build_error(StreamRefuse)),
    _Row(0x24, Credit, struct.Struct("<BQ"), _nothing,
         lambda f: ((f.size,), b""), lambda limits, rest, size: Credit(size)),
    _Row(0x30, Ping, struct.Struct("<BQ"), _nothing,
         lambda f: ((f.token,), b""), lambda limits, rest, token: Ping(token)),
    _Row(0x31, Pong, struct.Struct("<BQ"), _nothing,
         lambda f: ((f.token,), b""), lambda limits, rest, token: Pong(token)),
)  # fmt: skip
LONG = frozenset({Request, Reply, Notify})  # may travel in pieces
_BY_KIND = {row.kind: row for row in _ROWS}
_BY_TYPE = {row.frame: row for row in _ROWS}
