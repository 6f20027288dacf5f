"""What the daemon and an engine host say to each other over the host's stdin and stdout.

Each message is a msgspec Struct as a msgpack array, preceded by its length as 4 little-endian bytes.  Tensors up to
`INLINE_BYTES_MAX` ride along, those of one message up to `INLINE_TOTAL_BYTES_MAX`; others are files of the daemon's
shared-memory directory, or stay in the host under a number.  To add a message, add a class and name it in `ToHost` or
`FromHost`; both ends are always the same version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from wire.errors import FrameError
from wire.limits import MIB
from wire.protocol.messages import INLINE_BYTES_MAX
from wire.timeouts import COLLECTIVE_TIMEOUT_S, DEFAULT_TIMEOUTS

from .protocol import EngineInfo, Measured

T = TypeVar("T")
MESSAGE_BYTES_MAX = 64 * MIB  # the largest graph, or the inline tensors of a part and what is said of them, fit well in
INLINE_TOTAL_BYTES_MAX = 16 * MIB
STOP_BYTES = 8
_LENGTH = struct.Struct("<I")


class _Message(Struct, frozen=True, array_like=True, tag=True):
    pass


# -- daemon -> host ---------------------------------------------------------------------------------------


class Open(_Message, frozen=True, array_like=True, tag=True):
    """The first message: open `device`, as `devices.open_engine` reads it.  Answered by Opened or OpenFailed.

    `memory_bytes` is the budget for params and working memory (0: what the engine says); the engine may keep kernels in
    `cache_dir`; measurements of devices are kept in `measured_dir`; outputs are left in the daemon's `shared_dir`.  Its
    file `stop_file` holds the number of the run to give up (8 bytes, little-endian): the host reads no messages while
    it computes, but it looks there.  The host says Alive every `beat_s`, and ends when `parent_pid` is no longer its
    parent.
    """

    device: str
    memory_bytes: int
    cache_dir: str
    measured_dir: str
    shared_dir: str
    stop_file: str
    parent_pid: int
    beat_s: float


class BoundParam(Struct, frozen=True, array_like=True):
    """Input `position` of the graph is the content of the file at `path`."""

    position: int
    blob: bytes
    path: str


class RankPeer(Struct, frozen=True, array_like=True):
    """Another rank of a gang: the files of the mailboxes to and from it, and its worker, for people."""

    outbox: str
    inbox: str
    name: str


class RankOf(Struct, frozen=True, array_like=True):
    """Which rank of which grid a part is; `peers` are by rank, None for itself, and so is `bytes_per_s`, what each can
    send, or empty if that is alike.  They wait for each other so long.  `shelf` is what the names begin with of files
    that the host shares with the others (`worker/collectives/shared_arena.py`)."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    rank: int
    peers: tuple[RankPeer | None, ...]
    bytes_per_s: tuple[float, ...] = ()
    timeout_s: float = COLLECTIVE_TIMEOUT_S
    shelf: str = ""
    failure_reason_s: float = DEFAULT_TIMEOUTS.rank_failure_reason_s  # for why a connection to one of them ended


class PreparePart(_Message, frozen=True, array_like=True, tag=True):
    """Compile a graph and bind its params; `consts` gives the file of every blob that may be a constant of it."""

    prepared: int
    graph: bytes
    encoded: bytes
    inputs: int  # how many the graph must have, params included
    outputs: int
    params: tuple[BoundParam, ...]
    consts: dict[bytes, str]
    force: bool
    gang: RankOf | None = None
    kept_bytes: int = 0  # of the budget, that the daemon keeps for other workers


class Unprepare(_Message, frozen=True, array_like=True, tag=True):
    """This binding is no longer used; what only it used may be evicted."""

    prepared: int


class Unbind(_Message, frozen=True, array_like=True, tag=True):
    """These inputs come with every run from now on, and what was bound to them is not needed any more."""

    prepared: int
    positions: tuple[int, ...]


class Input(Struct, frozen=True, array_like=True):
    """A tensor for input `position`: `data`, or the file `name` in `directory`, or the kept tensor `kept`.  With `last`
    the file is deleted and the kept tensor freed once they are read."""

    position: int
    dtype: str
    shape: tuple[int, ...]
    last: bool
    data: bytes | None = None
    directory: str = ""
    name: str = ""
    kept: int = 0


class Wanted(Struct, frozen=True, array_like=True):
    """What should become of an output: keep it under a number (0: do not); how many copies leave the host."""

    keep: int
    copies: int


class ExecutePart(_Message, frozen=True, array_like=True, tag=True):
    """Run a part.  For one of a gang, `tag` is the step's number, from 1, and `inboxes` says for every rank in whose
    directory the mailbox from it is; "" for those on other machines, whose mailboxes the daemons carry."""

    run: int
    prepared: int
    inputs: tuple[Input, ...]
    outputs: tuple[Wanted, ...]
    tag: int = 0
    inboxes: tuple[str, ...] = ()


class NodeTLS(Struct, frozen=True, array_like=True):
    """The node's own TLS files, and the name in the certificate of the node at the other end."""

    key: str
    certificate: str
    trust: str
    name: str


class Expect(_Message, frozen=True, array_like=True, tag=True):
    """The host of the rank that `mailbox` leads to will call, with this key: open a port on `host`, say Expecting, and
    use the connection for letters of at most so many bytes.  It comes within `wait_s`, and proves within `proof_s` who
    it is."""

    mailbox: str
    key: bytes
    host: str
    letter_bytes: int
    tls: NodeTLS | None = None
    wait_s: float = DEFAULT_TIMEOUTS.rank_call_s
    proof_s: float = DEFAULT_TIMEOUTS.rank_proof_s


class Call(_Message, frozen=True, array_like=True, tag=True):
    """It expects a call there, as Expect has it."""

    mailbox: str
    key: bytes
    host: str
    port: int
    letter_bytes: int
    tls: NodeTLS | None = None
    wait_s: float = DEFAULT_TIMEOUTS.rank_call_s
    proof_s: float = DEFAULT_TIMEOUTS.rank_proof_s


class Forget(_Message, frozen=True, array_like=True, tag=True):
    """Free kept tensors."""

    kept: tuple[int, ...]


class Export(_Message, frozen=True, array_like=True, tag=True):
    """Hand out a copy of a kept tensor.  Answered by Exported."""

    number: int
    kept: int


class FreeUnused(_Message, frozen=True, array_like=True, tag=True):
    """Free what is kept in case it is asked for again, and give freed memory back to the system."""


ToHost = Open | PreparePart | Unprepare | Unbind | ExecutePart | Expect | Call | Forget | Export | FreeUnused


# -- host -> daemon ---------------------------------------------------------------------------------------


class Device(Struct, frozen=True, array_like=True):
    """What its engine tells of it, and what was measured."""

    info: EngineInfo
    figures: Measured


class Opened(_Message, frozen=True, array_like=True, tag=True):
    """The device is open; None if there is none that fits a selection that may come up empty, and then why."""

    device: Device | None
    without_gpu: str = ""  # as wire/protocol/missing_gpu.py has it


class OpenFailed(_Message, frozen=True, array_like=True, tag=True):
    error: dict[str, str]


class Prepared(_Message, frozen=True, array_like=True, tag=True):
    prepared: int
    compile_s: float
    from_cache: bool
    working_bytes: int = 0  # what runs of it need besides params


class PrepareFailed(_Message, frozen=True, array_like=True, tag=True):
    prepared: int
    error: dict[str, str]


class Output(Struct, frozen=True, array_like=True):
    """An output: its bytes, or one file per wished copy, or neither if only a kept tensor was wished; the kept
    tensor's number."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None
    files: tuple[str, ...] = ()
    kept: int = 0


class Executed(_Message, frozen=True, array_like=True, tag=True):
    run: int
    compute_s: float
    outputs: tuple[Output, ...]
    exchange_s: float = 0.0  # that a rank waited for others, or for what they send
    readback_s: float = 0.0  # of compute_s: from the device's memory to the host's
    encode_s: float = 0.0  # what is sent was copied to where it leaves from
    sent_bytes: int = 0  # to other ranks


class ExecuteFailed(_Message, frozen=True, array_like=True, tag=True):
    run: int
    error: dict[str, str]


class Exported(_Message, frozen=True, array_like=True, tag=True):
    """The copy, or why there is none."""

    number: int
    output: Output | None
    error: dict[str, str] = {}


class Rang(_Message, frozen=True, array_like=True, tag=True):
    """Mailboxes that the daemon carries have changed: letters to send, or letters that were read."""


class Expecting(_Message, frozen=True, array_like=True, tag=True):
    """A port is open for the host of the rank that `mailbox` leads to, if it knows the key."""

    mailbox: str
    key: bytes
    port: int


class Parted(_Message, frozen=True, array_like=True, tag=True):
    """The connection beside a mailbox has ended, or has not come about."""

    mailbox: str


class Alive(_Message, frozen=True, array_like=True, tag=True):
    """Sent every `beat_s` of Open, also while the host computes."""


FromHost = (
    Opened | OpenFailed | Prepared | PrepareFailed | Executed | ExecuteFailed | Exported | Rang
    | Expecting | Parted | Alive
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_to_host: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
_from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)


def pack(message: ToHost | FromHost) -> bytes:
    """The message with its length before it."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpack_to_host(body: bytes | memoryview) -> ToHost:
    """FrameError for anything that is not a message of the daemon."""
    return _unpack(_to_host, body, "the daemon")


def unpack_from_host(body: bytes | memoryview) -> FromHost:
    """FrameError for anything that is not a message: the host's memory is damaged, and it must go."""
    return _unpack(_from_host, body, "the engine host")


def _unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview, sender: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"{sender} sent something that is not a message", cause=str(error)[:200]) from None


class Splitter:
    """Cuts a byte stream into message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete with `data`; FrameError for an impossible length."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MESSAGE_BYTES_MAX:
                raise FrameError(f"a message of {length} bytes from or to an engine host")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[start + _LENGTH.size : end])
            start = end
        del buffer[:start]


__all__ = ["INLINE_BYTES_MAX", "FromHost", "Splitter", "ToHost", "pack", "unpack_from_host", "unpack_to_host"]
