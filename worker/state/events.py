"""What happens to a worker and what it does about it: the vocabulary of `worker_state.py`.

Events come from the shell (`worker/daemon/daemon.py`), actions go back to it.  All are frozen data; a tensor appears
only as a note of where its bytes are.  To add an event, add a class here and a row to the table in `worker_state.py`;
to add an action, add a class here and a row to the table in `worker/daemon/daemon.py`.
"""

from __future__ import annotations

import math
from collections import deque

from wire.bounds import WORKER_LOG
from wire.errors import MeshError
from wire.ir.dtypes import dtype_named
from wire.plain_data import PlainData, text_without
from wire.protocol.messages import Began, Deploy, Explain, Explained, Gang, Message, PartRun, PlanKey

# -- tensors: where bytes are -----------------------------------------------------------------------------


class Inline(PlainData, frozen=True):
    """Small enough to travel inside messages."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __repr__(self) -> str:
        return text_without(self, "data")


class SharedFile(PlainData, frozen=True):
    """A file in a shared-memory directory; it is ours until it is taken, sent or released."""

    dtype: str
    shape: tuple[int, ...]
    directory: str
    name: str


class DeviceTensor(PlainData, frozen=True):
    """A tensor that the engine host of `device` holds under the number `tensor`."""

    dtype: str
    shape: tuple[int, ...]
    device: int
    tensor: int


Tensor = Inline | SharedFile | DeviceTensor


def size_bytes_of(tensor: Tensor) -> int:
    """How many bytes the tensor's elements take; DTypeError for an unknown dtype."""
    if isinstance(tensor, Inline):
        return len(tensor.data)
    return math.prod(tensor.shape) * dtype_named(tensor.dtype).itemsize


# -- events -----------------------------------------------------------------------------------------------


class JoinRequested(PlainData, frozen=True):
    """`blobs` is what the store holds, most recent first.  A coordinator that had this worker before continues some
    plans: `continued` of this epoch, by generation, and `earlier` of those before it was started again.  `epochs` are
    those that a coordinator with a standby continues, and its own."""

    node: str
    request: int
    name: str
    epoch: int
    beat_s: float
    silence_s: float
    blobs: tuple[bytes, ...] = ()
    continued: tuple[int, ...] = ()
    earlier: tuple[PlanKey, ...] = ()
    epochs: tuple[int, ...] = ()


class Heard(PlainData, frozen=True):
    """Something came from `node`."""

    node: str


class SuspectedBy(PlainData, frozen=True):
    node: str
    incarnation: int


class NodeLinked(PlainData, frozen=True):
    node: str


class NodeUnlinked(PlainData, frozen=True):
    """Silent says that nothing came over it for too long, though both nodes may be well; `goodbye` that it was closed
    in good order."""

    node: str
    silent: bool = False
    goodbye: bool = False


class LinkFailed(PlainData, frozen=True):
    """The link asked for by LinkTo could not be made."""

    node: str
    error: MeshError


class DeployRequested(PlainData, frozen=True):
    node: str
    request: int
    deploy: Deploy


class BlobFound(PlainData, frozen=True):
    """`source` is "resident", "disk", "shared" or "socket", the last two perhaps `from_owner`, our coordinator."""

    attempt: int
    source: str
    from_owner: bool = False


class BlobNotFound(PlainData, frozen=True):
    attempt: int
    error: MeshError


class PartPrepared(PlainData, frozen=True):
    prepared: int
    compile_s: float
    from_cache: bool
    working_bytes: int = 0


class PrepareFailed(PlainData, frozen=True):
    prepared: int
    error: MeshError
    postponed: bool = False  # it has room once suspended runs are over


class RunRequested(PlainData, frozen=True):
    """`feeds` are (part, slot, tensor); inputs that follow as streams are not among them.  So many steps of the plan
    are `committed`."""

    node: str
    request: int
    plan: PlanKey
    step: int
    feeds: tuple[tuple[int, int, Tensor], ...]
    committed: int = 0


class ExplainRequested(PlainData, frozen=True):
    """The coordinator wants to know the kernels of a part, which is measured in place of a step of its plan."""

    node: str
    request: int
    question: Explain


class DirectRequested(PlainData, frozen=True):
    """The coordinator, in a program of this machine, wants a part to be called directly, over the socket `name` that
    listens in `directory`."""

    node: str
    request: int
    plan: PlanKey
    part: int
    directory: str
    name: str


class PartExplained(PlainData, frozen=True):
    run: int
    answer: Explained


class TensorArrived(PlainData, frozen=True):
    node: str
    plan: PlanKey
    step: int
    part: int
    slot: int
    tensor: Tensor


class TensorLost(PlainData, frozen=True):
    """A tensor of this step could not be taken; its sender may count it as sent."""

    plan: PlanKey
    step: int
    error: MeshError


class PartOutput(PlainData, frozen=True):
    """An output as its engine host left it: inline, or in a file per copy, and kept on its device if that was
    requested."""

    inline: Inline | None = None
    files: tuple[SharedFile, ...] = ()
    kept: DeviceTensor | None = None


class PartExecuted(PlainData, frozen=True):
    run: int
    outputs: tuple[PartOutput, ...]
    compute_s: float
    exchange_s: float = 0.0
    readback_s: float = 0.0
    encode_s: float = 0.0
    sent_bytes: int = 0
    uploaded_bytes: int = 0
    readback_bytes: int = 0


class ExecuteFailed(PlainData, frozen=True):
    run: int
    error: MeshError


class RunSuspended(PlainData, frozen=True):
    """A run that was to be suspended is.  The host has room for a run that needs `room_bytes` beside all that are."""

    run: int
    room_bytes: int


class PushSent(PlainData, frozen=True):
    push: int


class PushFailed(PlainData, frozen=True):
    push: int
    error: MeshError


class CancelRequested(PlainData, frozen=True):
    node: str
    plan: PlanKey
    step: int


class DropRequested(PlainData, frozen=True):
    node: str
    request: int
    plan: PlanKey
    free: bool = False


class SnapshotRequested(PlainData, frozen=True):
    """The coordinator wants what `step` carried among our blobs."""

    node: str
    request: int
    plan: PlanKey
    step: int


class BlobMade(PlainData, frozen=True):
    number: int
    blob: bytes


class BlobNotMade(PlainData, frozen=True):
    number: int
    error: MeshError


class RequestGone(PlainData, frozen=True):
    """Nobody waits for the answer of a request any more."""

    request: int


class ServedKept(PlainData, frozen=True):
    """The disk has the epoch of the coordinator that this worker serves."""

    epoch: int


class ServedNotKept(PlainData, frozen=True):
    """The disk refused the epoch of the coordinator that this worker serves; NotDurable says why."""

    epoch: int
    error: MeshError


class HostLost(PlainData, frozen=True):
    """An engine host died or hung, or could not be started again; DeviceLost or OutOfMemory says why."""

    device: int
    error: MeshError


class HostReady(PlainData, frozen=True):
    """An engine host that was started again has its device, and nothing else."""

    device: int


class DrainRequested(PlainData, frozen=True):
    """Hand everything back and go."""

    reason: str


class PauseFileChanged(PlainData, frozen=True):
    """The state folder says that this worker be paused, by whom, or "" that it be not."""

    by: str


class PauseRequested(PlainData, frozen=True):
    """The coordinator wants this worker paused, or (`on` false) not any more."""

    node: str
    request: int
    on: bool


class SleepRequested(PlainData, frozen=True):
    """The machine is about to sleep."""


class Woke(PlainData, frozen=True):
    """The machine is awake again, or this process goes on after it stood still, or the machine moved.  `announced`: the
    system said so; else it is a guess, and what happens to the network before a sleep looks the same."""

    announced: bool = False


class Tick(PlainData, frozen=True):
    """Time passed.  `late_s` is how much later than asked the shell woke up."""

    late_s: float = 0.0


class MemoryLeft(PlainData, frozen=True):
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
    | DirectRequested
    | PartExplained
    | TensorArrived
    | TensorLost
    | PartExecuted
    | ExecuteFailed
    | RunSuspended
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


class Reply(PlainData, frozen=True):
    request: int
    message: Message


class Refuse(PlainData, frozen=True):
    request: int
    error: MeshError


class ReplyRan(PlainData, frozen=True):
    """Answer a Run; `outputs` are (position among the graph's outputs, tensor)."""

    request: int
    node: str
    plan: PlanKey
    step: int
    outputs: tuple[tuple[int, Tensor], ...]
    parts: tuple[PartRun, ...]
    bytes_in: int
    bytes_out: int


class ReplyJoined(PlainData, frozen=True):
    """Answer a Join with the devices (the shell has the reports); `deployed` are the plans of before that are here,
    and `steps_done` is how many steps of each were done."""

    request: int
    blobs: tuple[bytes, ...]
    paused: str = ""
    deployed: tuple[int, ...] = ()
    steps_done: tuple[int, ...] = ()


class StartBeats(PlainData, frozen=True):
    node: str
    beat_s: float


class StopBeats(PlainData, frozen=True):
    pass


class SendBeat(PlainData, frozen=True):
    """Beat now, out of turn: the incarnation changed."""


class AskOwner(PlainData, frozen=True):
    """The coordinator has been quiet: ask it something, so that its answer shows it lives."""

    node: str


class CloseLink(PlainData, frozen=True):
    node: str
    reason: str


class LinkTo(PlainData, frozen=True):
    """See that there is a link to `node`; answered by NodeLinked or LinkFailed."""

    node: str
    addresses: tuple[str, ...]


class Fetch(PlainData, frozen=True):
    """Get content from `holder`, or from our own store where `holder` is this node; answered by BlobFound or
    BlobNotFound."""

    attempt: int
    blob: bytes
    size_bytes: int
    keep: bool
    holder: str
    addresses: tuple[str, ...] = ()  # where the holder may be dialled, if there is no link to it


class AbandonFetch(PlainData, frozen=True):
    attempt: int


class PinBlobs(PlainData, frozen=True):
    """These must stay in the store until unpinned."""

    blobs: frozenset[bytes]


class UnpinBlobs(PlainData, frozen=True):
    blobs: frozenset[bytes]


class DiscardBlobs(PlainData, frozen=True):
    """These blobs were put into the store, and may go if nobody has pinned them and nothing says that they be kept."""

    blobs: frozenset[bytes]


class Prepare(PlainData, frozen=True):
    """Compile a part and bind its params, (input position, blob) each.  Any of `blobs` may be a constant of it.  With a
    gang, it is a rank of that."""

    device: int
    prepared: int
    graph: bytes
    encoded: bytes
    inputs: int  # how many the graph must have, params included
    outputs: int
    params: tuple[tuple[int, bytes], ...]
    blobs: frozenset[bytes]
    force: bool
    gang: tuple[PlanKey, Gang] | None = None
    kept_bytes: int = 0  # that this worker keeps for others

    def __repr__(self) -> str:
        return text_without(self, "encoded")


class Unprepare(PlainData, frozen=True):
    device: int
    prepared: int


class Unbind(PlainData, frozen=True):
    """These inputs of a part, bound to params before, are given with every run from now on."""

    device: int
    prepared: int
    positions: frozenset[int]


class MakeBlob(PlainData, frozen=True):
    """Put a kept tensor among our blobs too; answered by BlobMade or BlobNotMade."""

    number: int
    tensor: DeviceTensor


class RunInput(PlainData, frozen=True):
    """An input of an execution; `last` means that nobody else will read this tensor."""

    position: int
    tensor: Tensor
    last: bool


class OutputRequest(PlainData, frozen=True):
    """What to do with an output: keep it on the device under the number `keep` (0: do not), and hand out so many
    copies."""

    keep: int
    copies: int


class Execute(PlainData, frozen=True):
    device: int
    run: int
    prepared: int
    inputs: tuple[RunInput, ...]
    outputs: tuple[OutputRequest, ...]
    step: int = 0
    suspendable: bool = False


class ExplainPart(PlainData, frozen=True):
    """Have a part's kernels described and measured, as run `run`; answered by PartExplained or ExecuteFailed."""

    device: int
    run: int
    prepared: int
    texts: bool
    kernel: int | None


class OpenDirect(PlainData, frozen=True):
    """Connect a device's host to the socket `name` in `directory`, for direct calls of a prepared part."""

    request: int
    device: int
    prepared: int
    directory: str
    name: str


class StopRun(PlainData, frozen=True):
    """Nobody waits for this run any more: the device should be free soon.  It is answered all the same."""

    device: int
    run: int


class SuspendRun(PlainData, frozen=True):
    """Something waits for the device: answered by RunSuspended, or as any run if it is over first."""

    device: int
    run: int


class ResumeRun(PlainData, frozen=True):
    """A suspended run goes on; one that nobody waits for ends."""

    device: int
    run: int
    stop: bool


class Blame(PlainData, frozen=True):
    """A node sent what it may not: count it against that."""

    node: str
    why: str


class Release(PlainData, frozen=True):
    """Free what the tensor occupies."""

    tensor: Tensor


class SendPush(PlainData, frozen=True):
    """Send a tensor to another worker; answered by PushSent or PushFailed."""

    push: int
    node: str
    plan: PlanKey
    step: int
    part: int
    slot: int
    tensor: Tensor


class StopPush(PlainData, frozen=True):
    push: int


class SendBegan(PlainData, frozen=True):
    node: str
    began: Began


class StartHost(PlainData, frozen=True):
    """Start the engine host of a device again; answered by HostReady or HostLost."""

    device: int


class GiveUpDevice(PlainData, frozen=True):
    """The device is out of use until this worker starts anew; `node` is the owner, which gets a message, "" if there is
    none."""

    device: int
    node: str
    reason: str


class SendLeaving(PlainData, frozen=True):
    """`failed`: not because it was asked to, so that the last lines of its log say more."""

    node: str
    reason: str
    failed: bool = False


class SendPaused(PlainData, frozen=True):
    node: str
    by: str


class KeepPause(PlainData, frozen=True):
    """Remember who paused this worker, for its next start."""

    by: str


class KeepServed(PlainData, frozen=True):
    """Remember which coordinator this worker serves, so that one that was replaced by it is refused; `ServedKept` once
    that is on the disk."""

    epoch: int


class FreeCache(PlainData, frozen=True):
    """What is in memory and nobody uses goes, though it might be asked for again; `why` is for people."""

    why: str


class LookForOwner(PlainData, frozen=True):
    """Dial the coordinator of before now, however often that failed."""


class Stop(PlainData, frozen=True):
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
    | OpenDirect
    | Release
    | Blame
    | SendPush
    | StopPush
    | StopRun
    | SuspendRun
    | ResumeRun
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


class LogEntry(PlainData, frozen=True):
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
