"""What happens to a worker and what it does about it: the vocabulary of `worker_state.py`.

Events come from the shell (`worker/daemon/daemon.py`), actions go back to it.  All are frozen data; a tensor appears
only as a note of where its bytes are.  To add an event, add a class here and a row to the table in `worker_state.py`;
to add an action, add a class here and a row to the table in `worker/daemon/daemon.py`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from wire.bounds import WORKER_LOG
from wire.errors import MeshError
from wire.ir.dtypes import dtype_named
from wire.protocol.messages import Began, Deploy, Explain, Explained, Gang, Message, PartRun, PlanKey

# -- tensors: where bytes are -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inline:
    """Small enough to travel inside messages."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file in a shared-memory directory; it is ours until it is taken, sent or released."""

    dtype: str
    shape: tuple[int, ...]
    directory: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A tensor that the engine host of `device` holds under the number `tensor`."""

    dtype: str
    shape: tuple[int, ...]
    device: int
    tensor: int


Tensor = Inline | SharedFile | DeviceTensor


def size_bytes_of(tensor: Tensor) -> int:
    """How many bytes the tensor's elements take; DTypeError for an unknown dtype."""
    return math.prod(tensor.shape) * dtype_named(tensor.dtype).itemsize


# -- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """`blobs` is what the store holds, most recent first.  A coordinator that had this worker before goes on with some
    plans: `kept` of this epoch, by generation, and `earlier` of those before it was started anew.  `epochs` are those
    that a coordinator with a standby goes on from, and its own."""

    node: str
    request: int
    name: str
    epoch: int
    beat_s: float
    silence_s: float
    blobs: tuple[bytes, ...] = ()
    kept: tuple[int, ...] = ()
    earlier: tuple[PlanKey, ...] = ()
    epochs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """Something came from `node`."""

    node: str


@dataclass(frozen=True, slots=True)
class SuspectedBy:
    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeLinked:
    node: str


@dataclass(frozen=True, slots=True)
class NodeUnlinked:
    """Silent says that nothing came over it for too long, though both nodes may be well; `goodbye` that it was closed
    in good order."""

    node: str
    silent: bool = False
    goodbye: bool = False


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """The link asked for by LinkTo could not be made."""

    node: str
    error: MeshError


@dataclass(frozen=True, slots=True)
class DeployRequested:
    node: str
    request: int
    deploy: Deploy


@dataclass(frozen=True, slots=True)
class BlobFound:
    """`source` is "resident", "disk", "shared" or "socket", the last two perhaps `from_owner`, our coordinator."""

    attempt: int
    source: str
    from_owner: bool = False


@dataclass(frozen=True, slots=True)
class BlobNotFound:
    attempt: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class PartPrepared:
    prepared: int
    compile_s: float
    from_cache: bool
    working_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    prepared: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class RunRequested:
    """`feeds` are (part, slot, tensor); inputs that follow as streams are not among them.  So many steps of the plan
    are `committed`."""

    node: str
    request: int
    plan: PlanKey
    step: int
    feeds: tuple[tuple[int, int, Tensor], ...]
    committed: int = 0


@dataclass(frozen=True, slots=True)
class ExplainRequested:
    """The coordinator wants to know the kernels of a part, which is measured in place of a step of its plan."""

    node: str
    request: int
    question: Explain


@dataclass(frozen=True, slots=True)
class PartExplained:
    run: int
    answer: Explained


@dataclass(frozen=True, slots=True)
class TensorArrived:
    node: str
    plan: PlanKey
    step: int
    part: int
    slot: int
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class TensorLost:
    """A tensor of this step could not be taken; who sent it may count it as sent."""

    plan: PlanKey
    step: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class PartOutput:
    """An output as its engine host left it: inline, or in a file per copy, and kept on its device if that was
    requested."""

    inline: Inline | None = None
    files: tuple[SharedFile, ...] = ()
    kept: DeviceTensor | None = None


@dataclass(frozen=True, slots=True)
class PartExecuted:
    run: int
    outputs: tuple[PartOutput, ...]
    compute_s: float
    exchange_s: float = 0.0
    readback_s: float = 0.0
    encode_s: float = 0.0
    sent_bytes: int = 0
    uploaded_bytes: int = 0
    readback_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ExecuteFailed:
    run: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class PushSent:
    push: int


@dataclass(frozen=True, slots=True)
class PushFailed:
    push: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class CancelRequested:
    node: str
    plan: PlanKey
    step: int


@dataclass(frozen=True, slots=True)
class DropRequested:
    node: str
    request: int
    plan: PlanKey
    free: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    """The coordinator wants what `step` carried among our blobs."""

    node: str
    request: int
    plan: PlanKey
    step: int


@dataclass(frozen=True, slots=True)
class BlobMade:
    number: int
    blob: bytes


@dataclass(frozen=True, slots=True)
class BlobNotMade:
    number: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class RequestGone:
    """Nobody waits for the answer of a request any more."""

    request: int


@dataclass(frozen=True, slots=True)
class ServedKept:
    """The disk has the epoch of the coordinator that this worker serves."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ServedNotKept:
    """The disk refused the epoch of the coordinator that this worker serves; NotDurable says why."""

    epoch: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class HostLost:
    """An engine host died or hung, or could not be started again; DeviceLost or OutOfMemory says why."""

    device: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class HostReady:
    """An engine host that was started again has its device, and nothing else."""

    device: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Hand everything back and go."""

    reason: str


@dataclass(frozen=True, slots=True)
class PauseFileChanged:
    """The state folder says that this worker be paused, by whom, or "" that it be not."""

    by: str


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """The coordinator wants this worker paused, or (`on` false) not any more."""

    node: str
    request: int
    on: bool


@dataclass(frozen=True, slots=True)
class SleepRequested:
    """The machine is about to sleep."""


@dataclass(frozen=True, slots=True)
class Woke:
    """The machine is awake again, or this process goes on after it stood still, or the machine moved.  `announced`: the
    system said so; else it is a guess, and what happens to the network before a sleep looks the same."""

    announced: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed.  `late_s` is how much later than asked the shell woke up."""

    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryLeft:
    """The machine's free memory, as the system estimates it, and its total memory."""

    free_bytes: int
    total_bytes: int


Event = (
    JoinRequested
    | Heard
    | SuspectedBy
    | NodeLinked
    | NodeUnlinked
    | LinkFailed
    | DeployRequested
    | BlobFound
    | BlobNotFound
    | PartPrepared
    | PrepareFailed
    | RunRequested
    | ExplainRequested
    | PartExplained
    | TensorArrived
    | TensorLost
    | PartExecuted
    | ExecuteFailed
    | PushSent
    | PushFailed
    | CancelRequested
    | DropRequested
    | SnapshotRequested
    | BlobMade
    | BlobNotMade
    | RequestGone
    | ServedKept
    | ServedNotKept
    | HostLost
    | HostReady
    | DrainRequested
    | MemoryLeft
    | PauseFileChanged
    | PauseRequested
    | SleepRequested
    | Woke
    | Tick
)


# -- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    request: int
    message: Message


@dataclass(frozen=True, slots=True)
class Refuse:
    request: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class ReplyRan:
    """Answer a Run; `outputs` are (position among the graph's outputs, tensor)."""

    request: int
    node: str
    plan: PlanKey
    step: int
    outputs: tuple[tuple[int, Tensor], ...]
    parts: tuple[PartRun, ...]
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class ReplyJoined:
    """Answer a Join with the devices (the shell has the reports); `kept` are the plans of before that are here, and
    `made` is how many steps of each were done."""

    request: int
    blobs: tuple[bytes, ...]
    paused: str = ""
    kept: tuple[int, ...] = ()
    made: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StartBeats:
    node: str
    beat_s: float


@dataclass(frozen=True, slots=True)
class StopBeats:
    pass


@dataclass(frozen=True, slots=True)
class SendBeat:
    """Beat now, out of turn: the incarnation changed."""


@dataclass(frozen=True, slots=True)
class AskOwner:
    """The coordinator has been quiet: ask it something, so that its answer shows it lives."""

    node: str


@dataclass(frozen=True, slots=True)
class CloseLink:
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class LinkTo:
    """See that there is a link to `node`; answered by NodeLinked or LinkFailed."""

    node: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get content from `holder`, or from our own store where `holder` is this node; answered by BlobFound or
    BlobNotFound."""

    attempt: int
    blob: bytes
    size_bytes: int
    keep: bool
    holder: str
    addresses: tuple[str, ...] = ()  # where the holder may be dialled, if there is no link to it


@dataclass(frozen=True, slots=True)
class AbandonFetch:
    attempt: int


@dataclass(frozen=True, slots=True)
class PinBlobs:
    """These must stay in the store until unpinned."""

    blobs: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class UnpinBlobs:
    blobs: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class DiscardBlobs:
    """These blobs were put into the store, and may go if nobody has pinned them and nothing says that they be kept."""

    blobs: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Compile a part and bind its params, (input position, blob) each.  Any of `blobs` may be a constant of it.  With a
    gang, it is a rank of that."""

    device: int
    prepared: int
    graph: bytes
    encoded: bytes = field(repr=False)
    inputs: int  # how many the graph must have, params included
    outputs: int
    params: tuple[tuple[int, bytes], ...]
    blobs: frozenset[bytes]
    force: bool
    gang: tuple[PlanKey, Gang] | None = None
    kept_bytes: int = 0  # that this worker keeps for others


@dataclass(frozen=True, slots=True)
class Unprepare:
    device: int
    prepared: int


@dataclass(frozen=True, slots=True)
class Unbind:
    """These inputs of a part, bound to params before, are given with every run from now on."""

    device: int
    prepared: int
    positions: frozenset[int]


@dataclass(frozen=True, slots=True)
class MakeBlob:
    """Put a kept tensor among our blobs too; answered by BlobMade or BlobNotMade."""

    number: int
    tensor: DeviceTensor


@dataclass(frozen=True, slots=True)
class RunInput:
    """An input of an execution; `last` means that nobody else will read this tensor."""

    position: int
    tensor: Tensor
    last: bool


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """What to do with an output: keep it on the device under the number `keep` (0: do not), and hand out so many
    copies."""

    keep: int
    copies: int


@dataclass(frozen=True, slots=True)
class Execute:
    device: int
    run: int
    prepared: int
    inputs: tuple[RunInput, ...]
    outputs: tuple[OutputRequest, ...]
    step: int = 0


@dataclass(frozen=True, slots=True)
class ExplainPart:
    """Have a part's kernels described and measured, as run `run`; answered by PartExplained or ExecuteFailed."""

    device: int
    run: int
    prepared: int
    texts: bool
    kernel: int | None


@dataclass(frozen=True, slots=True)
class StopRun:
    """Nobody waits for this run any more: the device should be free soon.  It is answered all the same."""

    device: int
    run: int


@dataclass(frozen=True, slots=True)
class Blame:
    """A node sent what it may not: count it against that."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Free what the tensor occupies."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class SendPush:
    """Send a tensor to another worker; answered by PushSent or PushFailed."""

    push: int
    node: str
    plan: PlanKey
    step: int
    part: int
    slot: int
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class StopPush:
    push: int


@dataclass(frozen=True, slots=True)
class SendBegan:
    node: str
    began: Began


@dataclass(frozen=True, slots=True)
class StartHost:
    """Start the engine host of a device again; answered by HostReady or HostLost."""

    device: int


@dataclass(frozen=True, slots=True)
class GiveUpDevice:
    """The device is out of use until this worker starts anew; `node` is the owner, which gets a message, "" if there is
    none."""

    device: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class SendLeaving:
    """`failed`: not because it was asked to, so that the last lines of its log say more."""

    node: str
    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class SendPaused:
    node: str
    by: str


@dataclass(frozen=True, slots=True)
class KeepPause:
    """Remember who paused this worker, for its next start."""

    by: str


@dataclass(frozen=True, slots=True)
class KeepServed:
    """Remember which coordinator this worker serves, so that one that was replaced by it is refused; `ServedKept` once
    that is on the disk."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FreeCache:
    """What is in memory and nobody uses goes, though it might be asked for again; `why` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class LookForOwner:
    """Dial the coordinator of before now, however often that failed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process with this exit code."""

    code: int
    reason: str


Action = (
    Reply
    | Refuse
    | ReplyRan
    | ReplyJoined
    | StartBeats
    | StopBeats
    | SendBeat
    | AskOwner
    | CloseLink
    | LinkTo
    | Fetch
    | AbandonFetch
    | PinBlobs
    | UnpinBlobs
    | DiscardBlobs
    | FreeCache
    | Prepare
    | Unprepare
    | Unbind
    | MakeBlob
    | Execute
    | ExplainPart
    | Release
    | Blame
    | SendPush
    | StopPush
    | StopRun
    | SendBegan
    | StartHost
    | GiveUpDevice
    | SendLeaving
    | SendPaused
    | KeepPause
    | KeepServed
    | LookForOwner
    | Stop
)


# -- the log ----------------------------------------------------------------------------------------------

LOG_ENTRIES_MAX = WORKER_LOG.most


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What happened to the worker, for people and for tests.  `routine` entries come with every step."""

    at_s: float
    text: str
    routine: bool


class Log(deque[LogEntry]):
    """The last entries, oldest first."""

    def __init__(self) -> None:
        super().__init__(maxlen=LOG_ENTRIES_MAX)

    def add(self, now: float, text: str, routine: bool = False) -> None:
        self.append(LogEntry(now, text, routine))
