"""Every message that travels between two nodes, one typed row each.

A message is a msgspec Struct sent as a msgpack array: its tag, then its fields in this order.  To add a message,
add a class; to extend one, append a field with a default.  Either raises the minor version (`versions.py`), and goes
only to nodes that speak it: an older node refuses what it does not know.  Never reorder, retype or reuse.  Decoding
checks every field's type and the limits written beside it; anything else is a FrameError and ends the link.

Names: a *plan* is known by its key (epoch, generation).  The epoch is the coordinator's start, the generation counts
the plans it made; both only grow, and a worker drops whatever carries an older epoch or a plan it was told to drop.
A *step* is one evaluation of a plan.  A *part* is a subgraph on one device of one worker, a *slot* the position of an
input or an output of a part.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..errors import FrameError
from ..limits import DEFAULT, KIB, PLAN_CHARS_MAX, REPORT_CHARS_MAX
from ..timeouts import COLLECTIVE_TIMEOUT_S
from .compatibility import as_of_0
from .versions import PROTOCOL

with_fields = msgspec.structs.replace  # a copy of a message with other values in some fields
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Index = Annotated[int, Meta(ge=0, le=1 << 20)]
Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
Dims = Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 31)], ...], Meta(max_length=8)]
Generations = Annotated[tuple[Count, ...], Meta(max_length=65_536)]  # of plans
Seconds = Annotated[float, Meta(ge=0)]
Addresses = Annotated[tuple[Name, ...], Meta(max_length=32)]  # "host:port" each, best first
REVOCATIONS_BYTES_MAX = 64 * KIB  # of 1,024 nodes: 37 KiB
INLINE_BYTES_MAX = 64 * KIB  # a tensor up to this size rides along in its message
Certificate = Annotated[bytes, Meta(max_length=2 * KIB)]
RevocationList = Annotated[bytes, Meta(max_length=REVOCATIONS_BYTES_MAX)]
Inline = Annotated[bytes, Meta(max_length=INLINE_BYTES_MAX)]
RELAY_BYTES_MAX = 512 * KIB  # a tensor that is relayed goes in pieces of so many bytes


class Message(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True, kw_only=False):
    """Base of all messages; the tag is the class name."""


class Value(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor and where its bytes are.

    Exactly one holds: `data` carries them; `shared` names a file in the sender's shared-memory directory, whose
    ownership moves to the receiver; or neither, and they follow as a stream whose header names the same tensor.
    """

    dtype: Name
    shape: Dims
    data: Inline | None = None
    shared: Name = ""


class PlanKey(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: Count
    generation: Count


# -- deploy: coordinator -> worker -------------------------------------------------------------------------


class Source(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a part's input comes from: kind "input" (a call's input, sent with Run), "edge" (output `slot` of part
    `part`, on node `node`) or "param" (the blob `blob`)."""

    kind: Name
    part: Index = 0
    slot: Index = 0
    blob: Hash | None = None
    node: Name = ""


class Target(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a part's output goes: to input `slot` of part `part` on node `node`; node "" is the coordinator, and then
    `slot` is the position among the graph's outputs."""

    node: Name
    part: Index = 0
    slot: Index = 0


class Carry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Output `output` of a part is, at the next step of its plan, input `slot` of part `part` on the same device; that
    input's source is a param, whose blob is what it is at step 0."""

    output: Index
    part: Index
    slot: Index


class Member(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A rank of a gang: which part it is, on which node and device."""

    node: Name
    part: Index
    device: Index


class Gang(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Parts that run at the same time, a rank each of a grid, and exchange tensors by its collectives, of which their
    graphs have the same in the same order.  `members` are by rank, row-major over `axes`; the part itself is number
    `rank`.  Who is in a group with whom follows from the axes of a collective (wire/ir/grids.py).  `bytes_per_s` is
    what each rank can send, if that is not alike, and `timeout_s` how long they wait for each other."""

    axes: Annotated[tuple[Name, ...], Meta(max_length=64)]
    sizes: Annotated[tuple[Index, ...], Meta(max_length=64)]
    rank: Index
    members: Annotated[tuple[Member, ...], Meta(max_length=4096)]
    bytes_per_s: Annotated[tuple[Seconds, ...], Meta(max_length=4096)] = ()
    timeout_s: Seconds = COLLECTIVE_TIMEOUT_S


class PartSpec(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One part for one device of one worker.  `sources[i]` feeds the graph's i-th input (inputs, then params);
    `targets[j]` are the destinations of its j-th output; `carries` is what stays there for the next step.  A part with
    a gang has a graph whose collectives are over the axes of that."""

    part: Index
    device: Index
    graph: Hash
    sources: Annotated[tuple[Source, ...], Meta(max_length=100_000)]
    targets: Annotated[tuple[Annotated[tuple[Target, ...], Meta(max_length=4096)], ...], Meta(max_length=100_000)]
    carries: Annotated[tuple[Carry, ...], Meta(max_length=100_000)] = ()
    gang: Gang | None = None


class BlobSpec(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content a worker will need: its address, size, tensor type, and the nodes that hold it, nearest first
    ("" is the coordinator).  `keep` allows the worker to hold it on its disk, and after the plan, for a plan to come
    (weights yes, the state of a session no)."""

    blob: Hash
    size_bytes: Count
    dtype: Name
    shape: Dims
    holders: Annotated[tuple[Name, ...], Meta(max_length=64)]
    keep: bool = True


class Deploy(Message, frozen=True, array_like=True, tag=True):
    """Take these parts: fetch their blobs, compile, and answer Deployed.  `graphs` holds the encodings that this
    worker was not sent before.  `peers` gives node id -> where to dial it, for every worker of the plan.  A device runs
    the parts of an `ordered` plan as they are listed, and its steps as their Runs came."""

    plan: PlanKey
    parts: tuple[PartSpec, ...]
    graphs: dict[Hash, bytes]
    blobs: tuple[BlobSpec, ...]
    peers: dict[Name, Addresses]
    force: bool = False
    ordered: bool = False


class Deployed(Message, frozen=True, array_like=True, tag=True):
    """All parts are compiled.  Bytes of weights by where they came from, seconds spent, kernels from the cache; the
    workers of the plan that could not be dialled, so that what is meant for them will be relayed; and how many of the
    bytes that came by socket or shared memory the coordinator sent."""

    bytes_socket: Count
    bytes_shared: Count
    bytes_disk: Count
    bytes_resident: Count  # already on the device or in memory
    compile_s: Seconds
    compiled: Count
    from_cache: Count
    unreached: tuple[Name, ...] = ()
    bytes_client: Count = 0

    def with_moved(self, socket: int, shared: int) -> Deployed:
        """With bytes that came from other workers before."""
        return with_fields(self, bytes_socket=self.bytes_socket + socket, bytes_shared=self.bytes_shared + shared)


class MissingGraphs(Message, frozen=True, array_like=True, tag=True):
    """Answer to Deploy where the worker no longer holds a graph that was not sent along; send Deploy again with it."""

    graphs: tuple[Hash, ...]


class Drop(Message, frozen=True, array_like=True, tag=True):
    """Forget a plan: cancel its steps and free what only it used; with `free` also weights, which are kept for other
    plans else.  Answered by Done."""

    plan: PlanKey
    free: bool = False


class Done(Message, frozen=True, array_like=True, tag=True):
    """Nothing to add."""


# -- run ---------------------------------------------------------------------------------------------------


class Feed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A call's input for slot `slot` of part `part`."""

    part: Index
    slot: Index
    value: Value


class Run(Message, frozen=True, array_like=True, tag=True):
    """Run every part of this worker once, as step `step` of `plan`.  Answered by Ran when all its parts are done.
    Every worker of the plan has done the steps below `committed`: of what they carried only the last is needed."""

    plan: PlanKey
    step: Count
    feeds: tuple[Feed, ...] = ()
    committed: Count = 0


class PartRun(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    part: Index
    compute_s: Seconds  # without what a rank of a gang waited for others
    wait_s: Seconds  # from Run's arrival until the last input was there
    exchange_s: Seconds = 0.0  # what it waited for others, and for what they send
    readback_s: Seconds = 0.0  # of compute_s: tensors came from the device's memory to the host's
    encode_s: Seconds = 0.0  # what it sent was copied to where it leaves from
    sent_bytes: Count = 0  # to other ranks of its gang, on this machine or another


class Output(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The graph's output at position `slot`."""

    slot: Index
    value: Value


class Ran(Message, frozen=True, array_like=True, tag=True):
    """This worker's parts are done; `outputs` are the graph's outputs they made (streamed ones come apart)."""

    outputs: tuple[Output, ...]
    parts: tuple[PartRun, ...]
    bytes_in: Count
    bytes_out: Count


class Push(Message, frozen=True, array_like=True, tag=True):
    """A tensor for input `slot` of part `part` (worker to worker), or, with node id "" as addressee, for output `slot`
    of the graph (worker to coordinator) or for a call's input (coordinator to worker).  Also the header of the stream
    that carries its bytes."""

    plan: PlanKey
    step: Count
    part: Index
    slot: Index
    value: Value


class Relay(Message, frozen=True, array_like=True, tag=True):
    """A piece of a tensor between two workers that cannot connect: to the coordinator with the node it goes to, from
    the coordinator with the node it comes from.  The tensor has `size_bytes`; pieces begin at multiples of 512 KiB and
    may come in any order.  Answered by Done once the receiver has it."""

    node: Name
    push: Push
    size_bytes: Count
    offset: Count
    data: Annotated[bytes, Meta(max_length=RELAY_BYTES_MAX)]


class Letter(Message, frozen=True, array_like=True, tag=True):
    """Worker to worker, one-way: what lies in place `number` of a mailbox between two ranks of a gang (counted from 0
    for as long as the mailbox is there).  The bytes are in `data`, or follow as a stream that has this for its header.
    """

    mailbox: Name
    number: Count
    data: Inline | None = None


class LettersRead(Message, frozen=True, array_like=True, tag=True):
    """Worker to worker, one-way: the reader of a mailbox is done with so many letters; their places are free."""

    mailbox: Name
    count: Count


class GaveUp(Message, frozen=True, array_like=True, tag=True):
    """Worker to worker, one-way: the rank that writes to a mailbox gave up step `tag` (counted from 1), and why: an
    error's fields as JSON."""

    mailbox: Name
    tag: Count
    error: Inline


class Meet(Message, frozen=True, array_like=True, tag=True):
    """Worker to worker, one-way: the hosts of two ranks may connect to each other, beside a mailbox between them.
    `calls` says that the sender's host would call, since its node dialled the link; `port` where the sender's host
    expects a call that begins with `key`; neither that it would, if it is asked."""

    mailbox: Name
    calls: bool = False
    port: Port = 0
    key: Annotated[bytes, Meta(max_length=32)] = b""


class Began(Message, frozen=True, array_like=True, tag=True):
    """Worker to coordinator: the first part of a step started (it tells how soon work goes on after a fault)."""

    plan: PlanKey
    step: Count
    part: Index


class CancelStep(Message, frozen=True, array_like=True, tag=True):
    """Stop a step: no further dispatch, buffers freed.  One-way."""

    plan: PlanKey
    step: Count


class Snapshot(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to worker: put what the parts of `plan` carried out of `step` among your blobs.  Answered by
    Snapshotted."""

    plan: PlanKey
    step: Count


class CarriedValue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Output `output` of part `part`, by the address of its content."""

    part: Index
    output: Index
    blob: Hash


class Snapshotted(Message, frozen=True, array_like=True, tag=True):
    """All that this worker carried out of the step.  It holds these blobs as it does others, until it needs room."""

    values: Annotated[tuple[CarriedValue, ...], Meta(max_length=100_000)]


class Term(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content that counts in a sum by a factor, and who holds it, nearest first ("" is the coordinator)."""

    factor: Annotated[int, Meta(ge=0, le=255)]
    blob: Hash
    size_bytes: Count
    holders: Annotated[tuple[Name, ...], Meta(max_length=64)]


class Combine(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to worker: put among your blobs the sum of these contents over GF(256) (wire/erasure/gf256.py), so
    many bytes of it: a check of several contents, or what can be made again of a check and the others.  `blob` is its
    address where that is known, `keep` as for a BlobSpec, `peers` as in Deploy.  Answered by Combined."""

    terms: Annotated[tuple[Term, ...], Meta(min_length=1, max_length=64)]
    size_bytes: Count
    peers: dict[Name, Addresses]
    blob: Hash | None = None
    keep: bool = False


class Combined(Message, frozen=True, array_like=True, tag=True):
    """The sum's address, and how many bytes of others were fetched for it.  It is held as Snapshotted says."""

    blob: Hash
    bytes_socket: Count
    bytes_shared: Count


# -- blobs: any node to any node ---------------------------------------------------------------------------


class FetchBlob(Message, frozen=True, array_like=True, tag=True):
    """Send me this content.  Answered by Blob; `stream` is the id the bytes will carry if they come as a stream."""

    blob: Hash
    stream: Count


class Blob(Message, frozen=True, array_like=True, tag=True):
    """Content: inline, in a shared-memory file, or in a stream headed BlobStream, which has left when this is said."""

    size_bytes: Count
    data: Inline | None = None
    shared: Name = ""


class BlobStream(Message, frozen=True, array_like=True, tag=True):
    """Header of the stream that answers the FetchBlob with the same `stream` id."""

    blob: Hash
    stream: Count


# -- membership --------------------------------------------------------------------------------------------


class DeviceReport(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One device of a worker, as probed at start."""

    index: Index
    engine: Name
    adapter: Name
    backend: Name
    driver: Name
    software: bool
    memory_bytes: Count
    limits: dict[Name, int]
    dtypes_by_op: dict[Name, tuple[Name, ...]]
    gflops: Seconds
    gbytes_per_s: Seconds
    dispatch_s: Seconds


class Join(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to worker: serve this coordinator.  `beat_s` is the heartbeat interval to use, `epoch` the
    coordinator's.  Answered by Joined, or by the error Busy naming the owner."""

    epoch: Count
    beat_s: Seconds
    coordinator: Name
    silence_s: Seconds = 0.0  # after so long without a word from the coordinator another may have the worker
    kept: Generations = ()  # what it had deployed in this epoch and goes on with; the worker drops all others


class Joined(Message, frozen=True, array_like=True, tag=True):
    devices: tuple[DeviceReport, ...]
    memory_bytes: Count  # budget for all devices of this worker together
    blobs: tuple[Hash, ...] = ()  # what its cache holds (most recent first, at most 4096)
    system: Name = ""  # its operating system: Linux, Darwin, Windows
    paused: Name = ""  # as in Paused
    kept: Generations = ()  # what is deployed here of this epoch
    without_gpu: Text = ""  # why it has no GPU, as wire/protocol/missing_gpu.py has it


class Devices(Message, frozen=True, array_like=True, tag=True):
    """Worker to coordinator, one-way: what its devices are from now on.  One that was given up has no dtypes left."""

    devices: tuple[DeviceReport, ...]
    reason: Text


class Working(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part that is being computed, or compiled (`preparing`, and then `step` says nothing), and for how long."""

    plan: PlanKey
    step: Count
    part: Index
    seconds: Seconds
    preparing: bool = False


class Beat(Message, frozen=True, array_like=True, tag=True):
    """Worker to coordinator, every beat interval: alive.  `incarnation` grows when the worker refutes a suspicion."""

    incarnation: Count
    counter: Count
    loop_lag_s: Seconds
    queue_depth: Count
    working: Annotated[tuple[Working, ...], Meta(max_length=256)] = ()


class Revocations(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to all, one-way: the certificate revocation list (DER) of now; links to nodes on it end.

    `authority` is the certificate (DER) of the mesh's authority, where it may be news; `former` is that of the one
    before, certified by its successor, and `former_data` its list, while it is trusted, too.
    """

    data: RevocationList
    authority: Certificate = b""
    former: Certificate = b""
    former_data: RevocationList = b""


class Suspected(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to worker, one-way: you are suspected at this incarnation; a Beat with a higher one refutes it."""

    incarnation: Count


class Probe(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to worker: see within `wait_s` whether `node`, which listens on `addresses`, answers you, and with
    `measure` what the link to it carries.  Answered by Probed."""

    node: Name
    addresses: Addresses
    wait_s: Annotated[float, Meta(ge=0, le=600)]
    measure: bool = False


class Probed(Message, frozen=True, array_like=True, tag=True):
    """Whether the node answered, and after how long; 0 if it did not, and `cause` says why.  `address` is where it was
    dialled, "" if it had dialled itself; `shared` says that the two share memory; `bytes_per_s` is 0 if not measured.
    """

    reached: bool
    rtt_s: Seconds = 0.0
    bytes_per_s: Seconds = 0.0
    shared: bool = False
    address: Name = ""
    cause: Text = ""


class Ballast(Message, frozen=True, array_like=True, tag=True):
    """Header of a stream of bytes that mean nothing, to measure a link; the receiver answers Landed."""

    number: Count


class Landed(Message, frozen=True, array_like=True, tag=True):
    """All bytes of the Ballast with this number have come.  One-way."""

    number: Count


class Leaving(Message, frozen=True, array_like=True, tag=True):
    """Worker to coordinator, one-way: unfinished parts are handed back; send no more work.  `reason` is for people;
    `log` has the last lines of its log where something failed, and none where it was asked to leave."""

    reason: Text
    log: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class Pause(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to worker: take no work from now on, or (`on` false) take it again.  Answered by Done, or by Busy
    where only its own machine may end the pause."""

    on: bool


class Paused(Message, frozen=True, array_like=True, tag=True):
    """Worker to coordinator, one-way: it stays, takes no work, and hands back what it has, because of whom `by` names:
    its own "machine" or the "coordinator"; "": it takes work again."""

    by: Name


class TailLog(Message, frozen=True, array_like=True, tag=True):
    """Ask a node for its last `lines` log lines."""

    lines: Annotated[int, Meta(ge=0, le=1000)]


class LogLines(Message, frozen=True, array_like=True, tag=True):
    lines: Annotated[tuple[Text, ...], Meta(max_length=1000)]


# -- client -> coordinator ---------------------------------------------------------------------------------


class NamedValue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor by name: small ones inline, others as a blob the coordinator fetches from the client."""

    name: Name
    dtype: Name
    shape: Dims
    data: Inline | None = None
    blob: Hash | None = None


class SubmitJob(Message, frozen=True, array_like=True, tag=True):
    """Run a graph.  Answered by JobAccepted, where the coordinator keeps a journal once the job outlives its process.
    A detached job outlives the client's link.  With an id in `job` the same may be sent again and counts once."""

    graph: bytes
    inputs: tuple[NamedValue, ...]
    params: tuple[NamedValue, ...]
    strategy: Text = "auto"  # wire/policy/strategies.py
    detach: bool = False
    name: Name = ""
    job: Name = ""
    copies: Name = "checkpoint"  # of the params (wire/policy/redundancy.py)
    force: bool = False  # compile it anew, whatever is in the caches


class JobAccepted(Message, frozen=True, array_like=True, tag=True):
    job: Name


class PlanGraph(Message, frozen=True, array_like=True, tag=True):
    """Preview: what would go where.  Answered by Planned."""

    graph: bytes
    strategy: Text = "auto"  # wire/policy/strategies.py
    copies: Name = "checkpoint"  # of the params (wire/policy/redundancy.py)
    dies: Name = ""  # tell, too, what follows if the worker of that name dies


class Planned(Message, frozen=True, array_like=True, tag=True):
    """A plan as JSON text (the fields of coordinator.planning.model.plan.Plan)."""

    plan: Annotated[str, Meta(max_length=PLAN_CHARS_MAX)]


class AskJobs(Message, frozen=True, array_like=True, tag=True):
    """State of one job, or of all with job "".  Answered by Jobs."""

    job: Name = ""


class JobReport(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    job: Name
    name: Name
    state: Name  # queued, planning, shipping, running, done, failed, cancelled
    created_s: Seconds  # Unix time
    seconds: Seconds
    error: dict[Name, Text] = {}
    log: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    report: Annotated[str, Meta(max_length=REPORT_CHARS_MAX)] = ""  # JSON of the run's report, once done
    waits: Text = ""  # what it waits for, for people, where it does


class Jobs(Message, frozen=True, array_like=True, tag=True):
    jobs: tuple[JobReport, ...]


class AwaitJob(Message, frozen=True, array_like=True, tag=True):
    """Answered by JobResult when the job is done, or by its error."""

    job: Name


class JobResult(Message, frozen=True, array_like=True, tag=True):
    """The outputs, small ones inline and others as blobs to fetch from the coordinator."""

    outputs: tuple[NamedValue, ...]
    report: Annotated[str, Meta(max_length=REPORT_CHARS_MAX)] = ""


class CancelJob(Message, frozen=True, array_like=True, tag=True):
    """Answered by Done."""

    job: Name


class SessionCarry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A param of a session's graph that is its state: the next value is that output."""

    name: Name
    output: Index


class OpenSession(Message, frozen=True, array_like=True, tag=True):
    """Run a graph step by step, with a state that stays on the workers; the first `told` outputs are answered.  Copies
    ("": what there is room for) are made after `every` so many steps; `ahead` steps are under way at most, 0 for what
    suits.  Answered by SessionOpened; the session ends with its client, and outlasts a link that breaks by a while.
    With a name in `session` the same may be sent again and counts once."""

    graph: bytes
    params: tuple[NamedValue, ...]
    carries: Annotated[tuple[SessionCarry, ...], Meta(max_length=100_000)]
    told: Index
    strategy: Text
    copies: Name
    every: Count
    ahead: Annotated[int, Meta(ge=0, le=1024)]
    replay_bytes: Count
    session: Name = ""


class SessionOpened(Message, frozen=True, array_like=True, tag=True):
    session: Name


class SessionStep(Message, frozen=True, array_like=True, tag=True):
    """One more step.  What is asked of a session is done in the order of `number`, from 0, and once, however often it
    is sent; all answers below `heard` have come, with their blobs, and are forgotten.  Answered by SessionTold."""

    session: Name
    number: Count
    inputs: tuple[NamedValue, ...]
    heard: Count = 0


class SessionState(Message, frozen=True, array_like=True, tag=True):
    """The state after what has smaller numbers; asked as SessionStep is.  Answered by SessionTold."""

    session: Name
    number: Count
    heard: Count = 0


class SessionTold(Message, frozen=True, array_like=True, tag=True):
    """What a step tells, or the state by the params' names; large values are blobs to fetch, until the answer is
    forgotten."""

    values: tuple[NamedValue, ...]


class CloseSession(Message, frozen=True, array_like=True, tag=True):
    """Answered by Done once its workers have freed all of it."""

    session: Name


class AskNodes(Message, frozen=True, array_like=True, tag=True):
    """Answered by Nodes, with `pairs` if they are asked for.  `after` is where the answer before ended: the id of its
    last node, or the ends of its last pair."""

    pairs: bool = False
    after: Annotated[tuple[Name, ...], Meta(max_length=2)] = ()


class PauseNode(Message, frozen=True, array_like=True, tag=True):
    """Pause a worker, or end that; `node` is its name, its id or the first characters of that.  Answered by Done."""

    node: Name
    on: bool


class NodeReport(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: Name
    node_id: Name
    pid: Count
    addresses: Addresses
    state: Name  # healthy, paused, stuck, quarantined, suspect, dead
    version: Name
    devices: tuple[DeviceReport, ...]
    silent_s: Seconds = 0.0  # since it was last heard
    system: Name = ""  # its operating system: Linux, Darwin, Windows
    without_gpu: Text = ""  # as in Joined


class PairReport(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How one node reaches another, both by name, as a probe found it.  `path` is direct, shared memory, relay, or "?"
    while it is not known; `address` is where it was dialled, `cause` why it was not reached."""

    source: Name
    target: Name
    path: Name
    rtt_s: Seconds
    bytes_per_s: Seconds  # 0: not measured
    address: Name = ""
    cause: Text = ""


class Nodes(Message, frozen=True, array_like=True, tag=True):
    """As many as fit into a message, first of the nodes, then of the pairs.  Of what a device computes one op is told,
    or none where it was given up."""

    nodes: tuple[NodeReport, ...]
    node_timeout_s: Seconds = 0.0  # after which a silent one is dead
    pairs: tuple[PairReport, ...] = ()
    time_s: Seconds = 0.0  # the coordinator's clock, Unix time
    system: Name = ""  # the coordinator's
    more: bool = False  # these are not all: ask for those after them


AnyMessage = (
    Deploy | Deployed | MissingGraphs | Drop | Done | Run | Ran | Push | Relay | Letter | LettersRead | GaveUp
    | Meet | Began | CancelStep | Snapshot | Snapshotted | Combine | Combined
    | FetchBlob | Blob | BlobStream | Join | Joined | Devices | Beat | Revocations | Suspected | Probe | Probed
    | Ballast | Landed | Leaving | Pause | Paused
    | TailLog | LogLines
    | SubmitJob | JobAccepted | PlanGraph | Planned | AskJobs | Jobs | AwaitJob | JobResult | CancelJob
    | OpenSession | SessionOpened | SessionStep | SessionState | SessionTold | CloseSession
    | AskNodes | Nodes | PauseNode
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


APPENDED: dict[type[Struct], int] = {
    Deploy: 1, Run: 1, PartSpec: 2, SubmitJob: 2, PlanGraph: 2, Deployed: 1, Ran: 0, PartRun: 4, Join: 1, Joined: 2,
    Drop: 1, AskNodes: 1, Nodes: 1, NodeReport: 1
}  # how many fields minor 1 appended  # fmt: skip
# Those whose new fields an older node does without.
DISPENSABLE = (Deployed, Ran, PartRun, Join, Joined, Drop, Nodes, NodeReport)
WITH_PARTS: dict[type[Struct], int] = {
    Deploy: 1,
    Ran: 1,
    Nodes: 0,
}  # where their parts are
SINCE_1 = (
    Letter, LettersRead, GaveUp, Meet, Snapshot, Snapshotted, Combine, Combined,
    OpenSession, SessionOpened, SessionStep, SessionState, SessionTold, CloseSession,
)  # fmt: skip


def encode_message(message: Message, minor: int = PROTOCOL[1]) -> bytes:
    """The message as bytes, for a node that speaks this minor version; LocalError if it has no words for it."""
    return _encoder.encode(message if minor else as_of_0(message, SINCE_1, APPENDED, DISPENSABLE, WITH_PARTS))


def decode_message(data: bytes | bytearray | memoryview) -> AnyMessage:
    """The message in `data`; FrameError for anything else.  A graph inside is still only bytes."""
    if len(data) > DEFAULT.message_bytes_max:
        raise FrameError(f"a message of {len(data)} bytes is too long")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise FrameError("not a message", cause=f"{type(error).__name__}: {error}"[:200]) from None
