"""Steps of a plan: run its parts, and move tensors between workers, ranks and the coordinator."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .fields import (
    RELAY_BYTES_MAX,
    Addresses,
    Count,
    Hash,
    Index,
    Inline,
    Message,
    Name,
    PlanKey,
    Port,
    Record,
    Seconds,
    Value,
)


class Feed(Record, frozen=True):
    """A call's input for slot `slot` of part `part`."""

    part: Index
    slot: Index
    value: Value


class Run(Message, frozen=True):
    """Run every part of this worker once, as step `step` of `plan`.  Answered by Ran when all its parts are done.
    Every worker of the plan has done the steps below `committed`.  Of the state that these carried, only the last is
    needed."""

    plan: PlanKey
    step: Count
    feeds: tuple[Feed, ...] = ()
    committed: Count = 0


class OpenDirect(Message, frozen=True):
    """Coordinator to a worker of the same machine: connect the engine host of part `part` to the Unix socket `name` in
    the coordinator's shared-memory directory, for direct calls of that part (wire/protocol/direct_calls.py).  Answered
    by Done once it is connected."""

    plan: PlanKey
    part: Index
    name: Name


class PartRun(Record, frozen=True):
    """How long one part of a step took, and how many bytes it moved."""

    part: Index
    compute_s: Seconds  # without what a rank of a gang waited for others
    wait_s: Seconds  # from Run's arrival until the last input was there
    exchange_s: Seconds = 0.0  # what it waited for others, and for what they send
    readback_s: Seconds = 0.0  # of compute_s: tensors came from the device's memory to the host's
    encode_s: Seconds = 0.0  # what it sent was copied to where it leaves from
    sent_bytes: Count = 0  # to other ranks of its gang, on this machine or another
    uploaded_bytes: Count = 0  # from the host's memory to the device's
    readback_bytes: Count = 0  # and back


class Output(Record, frozen=True):
    """The graph's output at position `slot`."""

    slot: Index
    value: Value


class Ran(Message, frozen=True):
    """This worker's parts are done.  `outputs` are the graph's outputs that they made, except those sent as streams."""

    outputs: tuple[Output, ...]
    parts: tuple[PartRun, ...]
    bytes_in: Count
    bytes_out: Count


class Push(Message, frozen=True):
    """A tensor.  From worker to worker, it is for input `slot` of part `part`.  From worker to coordinator, it is
    output `slot` of the graph.  From coordinator to worker, it is an input of a call.  Push is also the header of the
    stream that carries the tensor's bytes.  The last `zeros` bytes of a tensor are 0 and are not sent.  Only workers
    leave them out, and only for other workers."""

    plan: PlanKey
    step: Count
    part: Index
    slot: Index
    value: Value
    zeros: Count = 0


class Relay(Message, frozen=True):
    """A piece of a tensor between two workers that cannot connect.  To the coordinator, `node` is the receiver.  From
    the coordinator, it is the sender.  The tensor has `size_bytes`.  Pieces begin at multiples of 512 KiB and may
    arrive in any order.  Answered by Done once the receiver has it."""

    node: Name
    push: Push
    size_bytes: Count
    offset: Count
    data: Annotated[bytes, Meta(max_length=RELAY_BYTES_MAX)]


class Letter(Message, frozen=True):
    """Worker to worker, one-way: buffer `number` of a mailbox, the ring buffer between two ranks of a gang.  Buffers
    are numbered from 0 as long as the mailbox exists.  The bytes are in `data`, or follow as a stream with this
    header."""

    mailbox: Name
    number: Count
    data: Inline | None = None


class LettersRead(Message, frozen=True):
    """Worker to worker, one-way: the reader of a mailbox has consumed `count` buffers, whose slots are free."""

    mailbox: Name
    count: Count


class GaveUp(Message, frozen=True):
    """Worker to worker, one-way: the rank that writes to a mailbox gave up step `tag` (counted from 1).  `error` is the
    reason, an error's fields as JSON."""

    mailbox: Name
    tag: Count
    error: Inline


class Meet(Message, frozen=True):
    """Worker to worker, one-way: the hosts of two ranks may connect to each other, in place of the mailbox between
    them.  With `calls`, the sender's host would connect, since its node dialled the link.  With `port`, the sender's
    host listens there for a connection that begins with `key`.  With neither, the sender's host would listen if
    asked."""

    mailbox: Name
    calls: bool = False
    port: Port = 0
    key: Annotated[bytes, Meta(max_length=32)] = b""


class Began(Message, frozen=True):
    """Worker to coordinator, one-way: the first part of a step has run for 5 ms.  The coordinator learns from it how
    soon work continues after a fault.  A step that is done sooner sends only its answer."""

    plan: PlanKey
    step: Count
    part: Index


class CancelStep(Message, frozen=True):
    """Coordinator to worker, one-way: stop a step, start no further part of it, and free its buffers."""

    plan: PlanKey
    step: Count


class Snapshot(Message, frozen=True):
    """Coordinator to worker: store the state that the parts of `plan` carried out of `step` as blobs.  Answered by
    Snapshotted."""

    plan: PlanKey
    step: Count


class CarriedValue(Record, frozen=True):
    """Output `output` of part `part`, by the address of its content."""

    part: Index
    output: Index
    blob: Hash


class Snapshotted(Message, frozen=True):
    """All values that this worker carried out of the step.  It holds them like other blobs, until it needs room."""

    values: Annotated[tuple[CarriedValue, ...], Meta(max_length=100_000)]


class Term(Record, frozen=True):
    """A term of a sum: a factor, the content that it multiplies, and the nodes that hold it, nearest first ("" is the
    coordinator)."""

    factor: Annotated[int, Meta(ge=0, le=255)]
    blob: Hash
    size_bytes: Count
    holders: Annotated[tuple[Name, ...], Meta(max_length=64)]


class Combine(Message, frozen=True):
    """Coordinator to worker: compute the sum of these contents over GF(256) (wire/erasure/gf256.py) and store its first
    `size_bytes` bytes as a blob.  The sum is a parity block of several contents, or content that a parity block and the
    other contents restore.  `blob` is its address, if that is known.  `keep` is as in BlobSpec, and `peers` as in
    Deploy.  Answered by Combined."""

    terms: Annotated[tuple[Term, ...], Meta(min_length=1, max_length=64)]
    size_bytes: Count
    peers: dict[Name, Addresses]
    blob: Hash | None = None
    keep: bool = False


class Combined(Message, frozen=True):
    """The sum's address, and how many bytes were fetched from other nodes for it.  The worker holds it like other
    blobs, until it needs room."""

    blob: Hash
    bytes_socket: Count
    bytes_shared: Count
