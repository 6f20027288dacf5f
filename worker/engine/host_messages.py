"""The messages between the daemon and an engine host, over the host's stdin and stdout.

Each message is a msgspec Struct as a msgpack array, preceded by its length as 4 little-endian bytes.  Tensors up to
`INLINE_BYTES_MAX`, and up to `INLINE_TOTAL_BYTES_MAX` per message, are in the message.  Larger ones are files of the
daemon's shared-memory directory, or stay in the host under a number.  To add a message, add a class and name it in
`ToHost` or `FromHost`; both ends are always the same version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from wire.bounds import INLINE_OUTPUTS
from wire.errors import FrameError
from wire.limits import MIB
from wire.protocol.messages import INLINE_BYTES_MAX, KernelReport
from wire.timeouts import COLLECTIVE_TIMEOUT_S, DEFAULT_TIMEOUTS

from .protocol import EngineInfo, Measured, Tuned

T = TypeVar("T")
MESSAGE_BYTES_MAX = 64 * MIB  # room for the largest graph, and for the inline tensors of a part
INLINE_TOTAL_BYTES_MAX = INLINE_OUTPUTS.most
STOP_BYTES = 8
_LENGTH = struct.Struct("<I")


class _Message(Struct, frozen=True, array_like=True, tag=True):
    pass


# -- daemon -> host ---------------------------------------------------------------------------------------


class Open(_Message, frozen=True, array_like=True, tag=True):
    """The first message: open `device`, as `devices.open_engine` reads it.  Answered by Opened or OpenFailed.

    `memory_bytes` is the budget for params and working memory, and `threads` is how many compute (0: what the engine
    says).  The engine may keep kernels in `cache_dir`.  Measurements of devices are in `measured_dir`.  Outputs are
    left in the daemon's `shared_dir`.  Its file `stop_file` holds the number of the run to stop (8 bytes,
    little-endian), or to suspend (`worker/engine_host/suspension.py`): while it computes, the host reads no messages,
    but it looks there.  The host sends Alive every `beat_s`, and ends when `parent_pid` is no longer its parent.
    """

    device: str
    memory_bytes: int
    threads: int
    cache_dir: str
    measured_dir: str
    shared_dir: str
    stop_file: str
    parent_pid: int
    beat_s: float
    trace: str = ""  # the file for a trace of its kernels, "" for none
    worker: str = ""  # whose host it is, for people
    readable: tuple[str, ...] = ()  # folders of content that it reads, and does not write
    sandboxed: bool = False  # whether it gives up what it does not need (`worker/engine_host/sandbox.py`)
    outputs: str = ""  # what the names of files that it leaves begin with, "" for names by chance
    descriptors: int = -1  # over which it is handed sockets; -1: it opens its own


class BoundParam(Struct, frozen=True, array_like=True):
    """Input `position` of the graph is the content of the file at `path`."""

    position: int
    blob: bytes
    path: str


class RankPeer(Struct, frozen=True, array_like=True):
    """Another rank of a gang: the files of the ring buffers to it and from it, and the name of its worker."""

    outgoing: str
    incoming: str
    name: str


class RankOf(Struct, frozen=True, array_like=True):
    """The rank that a part is in a grid.  `peers` are by rank, None for itself.  `bytes_per_s` is what each rank can
    send, empty if that is alike.  `arena_prefix` is the beginning of the names of the host's arena files
    (`worker/collectives/shared_arena.py`)."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    rank: int
    peers: tuple[RankPeer | None, ...]
    bytes_per_s: tuple[float, ...] = ()
    timeout_s: float = COLLECTIVE_TIMEOUT_S  # for which ranks wait for each other
    arena_prefix: str = ""
    failure_reason_s: float = DEFAULT_TIMEOUTS.rank_failure_reason_s  # to learn why a connection to one of them ended


class PreparePart(_Message, frozen=True, array_like=True, tag=True):
    """Compile a graph and bind its params.  `consts` has the file of every blob that may be a constant of it."""

    prepared: int
    graph: bytes
    encoded: bytes
    inputs: int  # how many the graph must have, params included
    outputs: int
    params: tuple[BoundParam, ...]
    consts: dict[bytes, str]
    force: bool
    gang: RankOf | None = None
    kept_bytes: int = 0  # of the budget: content that the daemon keeps for other workers


class Unprepare(_Message, frozen=True, array_like=True, tag=True):
    """Forget a prepared part.  What only it used may be evicted."""

    prepared: int


class Unbind(_Message, frozen=True, array_like=True, tag=True):
    """Unbind inputs of a part: they come with every run from now on."""

    prepared: int
    positions: tuple[int, ...]


class Input(Struct, frozen=True, array_like=True):
    """A tensor for input `position`: `data`, or the file `name` in `directory`, or the kept tensor `kept`.  With `last`
    the file is deleted, or the kept tensor freed, once it was read."""

    position: int
    dtype: str
    shape: tuple[int, ...]
    last: bool
    data: bytes | None = None
    directory: str = ""
    name: str = ""
    kept: int = 0


class OutputRequest(Struct, frozen=True, array_like=True):
    """What to do with an output: keep it under the number `keep` (0: do not), and hand out `copies` copies."""

    keep: int
    copies: int


class ExecutePart(_Message, frozen=True, array_like=True, tag=True):
    """Run a part.  A `suspendable` one may be suspended; it writes over no kept tensor, since others may read that
    meanwhile.  For a rank of a gang, `tag` is the step's number, from 1, and `directories` has, for every rank, the
    directory of the ring buffer from it; "" for a rank on another machine, whose ring buffer the daemons carry."""

    run: int
    prepared: int
    inputs: tuple[Input, ...]
    outputs: tuple[OutputRequest, ...]
    tag: int = 0
    directories: tuple[str, ...] = ()
    suspendable: bool = False


class Resume(_Message, frozen=True, array_like=True, tag=True):
    """Go on with a suspended run."""

    run: int


class ExplainPart(_Message, frozen=True, array_like=True, tag=True):
    """Tell the kernels of a part, and run it a few times with inputs of the host's own, in place of run `run`.
    Answered by Explained, or as a run that failed.  The texts are of one kernel, or of all if `kernel` is None."""

    run: int
    prepared: int
    texts: bool = False
    kernel: int | None = None


class OpenDirect(_Message, frozen=True, array_like=True, tag=True):
    """Take direct calls of a prepared part (wire/protocol/direct_calls.py), over a connection that was handed over."""

    prepared: int


class Tune(_Message, frozen=True, array_like=True, tag=True):
    """Measure the forms of a kernel for a class of shapes, as protocol.tune has it, in place of run `run`.  Answered by
    TuneDone."""

    run: int
    shape_class: str
    seconds: float


class Listen(_Message, frozen=True, array_like=True, tag=True):
    """Listen on `host` for the host of the rank that the ring buffer `buffer` leads to, which will connect with this
    key, within TLS if `tls`.  Answered by Listening.  Messages have payloads of at most `slot_bytes`.  The other host
    connects within `wait_s`, and proves who it is within `proof_s`.  A daemon that hands over sockets has handed over
    one that listens, by the name of the buffer."""

    buffer: str
    key: bytes
    host: str
    slot_bytes: int
    tls: bool = False
    wait_s: float = DEFAULT_TIMEOUTS.rank_call_s
    proof_s: float = DEFAULT_TIMEOUTS.rank_proof_s


class Connect(_Message, frozen=True, array_like=True, tag=True):
    """Connect to a host that listens; a daemon that hands over sockets has handed over the connection."""

    buffer: str
    key: bytes
    host: str
    port: int
    slot_bytes: int
    tls: bool = False
    wait_s: float = DEFAULT_TIMEOUTS.rank_call_s
    proof_s: float = DEFAULT_TIMEOUTS.rank_proof_s


class Forget(_Message, frozen=True, array_like=True, tag=True):
    """Free kept tensors."""

    kept: tuple[int, ...]


class Export(_Message, frozen=True, array_like=True, tag=True):
    """Export a copy of a kept tensor.  Answered by Exported."""

    number: int
    kept: int


class FreeUnused(_Message, frozen=True, array_like=True, tag=True):
    """Free whatever is only cached, and return freed memory to the system."""


ToHost = (
    Open | PreparePart | Unprepare | Unbind | ExecutePart | Resume | ExplainPart | OpenDirect | Tune | Listen | Connect
    | Forget | Export | FreeUnused
)  # fmt: skip


# -- host -> daemon ---------------------------------------------------------------------------------------


class Device(Struct, frozen=True, array_like=True):
    """A device, as its engine describes it, with measurements."""

    info: EngineInfo
    figures: Measured


class Layer(Struct, frozen=True, array_like=True):
    """One layer of a host's sandbox; `missing` is why it does not hold, "" for one that does."""

    name: str
    missing: str = ""


class Opened(_Message, frozen=True, array_like=True, tag=True):
    """The device is open.  None if the selection may come up empty and no device fits it; then `without_gpu` says
    why."""

    device: Device | None
    without_gpu: str = ""  # a text of wire/protocol/missing_gpu.py
    sandbox: tuple[Layer, ...] = ()


class OpenFailed(_Message, frozen=True, array_like=True, tag=True):
    error: dict[str, str]


class Prepared(_Message, frozen=True, array_like=True, tag=True):
    prepared: int
    compile_s: float
    from_cache: bool
    working_bytes: int = 0  # that its runs need besides params
    untuned: tuple[str, ...] = ()  # its classes of shapes that were never measured on this device


class PrepareFailed(_Message, frozen=True, array_like=True, tag=True):
    prepared: int
    error: dict[str, str]
    postponed: bool = False  # it has room once suspended runs are over


class Output(Struct, frozen=True, array_like=True):
    """An output: its bytes, or one file per copy, or neither if it was only to be kept; and the kept tensor's
    number."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None
    files: tuple[str, ...] = ()
    kept: int = 0


class Executed(_Message, frozen=True, array_like=True, tag=True):
    run: int
    compute_s: float
    outputs: tuple[Output, ...]
    exchange_s: float = 0.0  # for which a rank waited for other ranks
    readback_s: float = 0.0  # of compute_s: from the device's memory to the host's
    encode_s: float = 0.0  # for copying what is sent
    sent_bytes: int = 0  # to other ranks
    uploaded_bytes: int = 0  # from the host's memory to the device's
    readback_bytes: int = 0  # and back


class Suspended(_Message, frozen=True, array_like=True, tag=True):
    """A run that was to be suspended is.  There is room for one that needs `room_bytes` beside all that are."""

    run: int
    room_bytes: int


class ExecuteFailed(_Message, frozen=True, array_like=True, tag=True):
    run: int
    error: dict[str, str]


class Explained(_Message, frozen=True, array_like=True, tag=True):
    """The kernels of a part, and what a whole run took, the median of `evaluations`; None if none ended in time."""

    run: int
    kernels: tuple[KernelReport, ...]
    clock: str
    evaluations: int
    seconds: float | None


class TuneDone(_Message, frozen=True, array_like=True, tag=True):
    """What came of it, or why nothing did."""

    run: int
    tuned: Tuned | None
    error: dict[str, str] = {}


class Exported(_Message, frozen=True, array_like=True, tag=True):
    """The exported copy, or why there is none."""

    number: int
    output: Output | None
    error: dict[str, str] = {}


class BuffersChanged(_Message, frozen=True, array_like=True, tag=True):
    """Ring buffers that the daemon carries have changed: messages were written, or read."""


class Listening(_Message, frozen=True, array_like=True, tag=True):
    """A port is open for the host of the rank that `buffer` leads to, if it knows the key."""

    buffer: str
    key: bytes
    port: int


class Disconnected(_Message, frozen=True, array_like=True, tag=True):
    """The connection beside a ring buffer has ended, or could not be made."""

    buffer: str


class Alive(_Message, frozen=True, array_like=True, tag=True):
    """Sent every `beat_s` of Open, also while the host computes."""


FromHost = (
    Opened | OpenFailed | Prepared | PrepareFailed | Executed | Suspended | ExecuteFailed | Explained | TuneDone
    | Exported | BuffersChanged | Listening | Disconnected | Alive
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_to_host: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
_from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)


def with_descriptors(opening: Open, number: int) -> Open:
    """Change an opening for a host that is handed sockets over the descriptor of this number."""
    return msgspec.structs.replace(opening, descriptors=number)


def pack(message: ToHost | FromHost) -> bytes:
    """The encoded message, preceded by its length."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpack_to_host(body: bytes | memoryview) -> ToHost:
    """Decode a message of the daemon.  FrameError if it is none."""
    return _unpack(_to_host, body, "the daemon")


def unpack_from_host(body: bytes | memoryview) -> FromHost:
    """Decode a message of a host.  FrameError if it is none: the host's memory is damaged, and it must go."""
    return _unpack(_from_host, body, "the engine host")


def _unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview, sender: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"{sender} sent something that is not a message", cause=str(error)[:200]) from None


class Splitter:
    """Splits a byte stream into message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The message bodies that `data` completes.  FrameError for an impossible length."""
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
