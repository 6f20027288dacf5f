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
    Every worker of the plan has done the steps below `committed`: of what they carried only the last is needed."""

    plan: PlanKey
    step: Count
    feeds: tuple[Feed, ...] = ()
    committed: Count = 0


class PartRun(Record, frozen=True):
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
    """This worker's parts are done; `outputs` are the graph's outputs they made (streamed ones come apart)."""

    outputs: tuple[Output, ...]
    parts: tuple[PartRun, ...]
    bytes_in: Count
    bytes_out: Count


class Push(Message, frozen=True):
    """A tensor for input `slot` of part `part` (worker to worker), or, with node id "" as addressee, for output `slot`
    of the graph (worker to coordinator) or for a call's input (coordinator to worker).  Also the header of the stream
    that carries its bytes."""

    plan: PlanKey
    step: Count
    part: Index
    slot: Index
    value: Value


class Relay(Message, frozen=True):
    """A piece of a tensor between two workers that cannot connect: to the coordinator with the node it goes to, from
    the coordinator with the node it comes from.  The tensor has `size_bytes`; pieces begin at multiples of 512 KiB and
    may come in any order.  Answered by Done once the receiver has it."""

    node: Name
    push: Push
    size_bytes: Count
    offset: Count
    data: Annotated[bytes, Meta(max_length=RELAY_BYTES_MAX)]


class Letter(Message, frozen=True):
    """Worker to worker, one-way: what lies in place `number` of a mailbox between two ranks of a gang (counted from 0
    for as long as the mailbox is there).  The bytes are in `data`, or follow as a stream that has this for its header.
    """

    mailbox: Name
    number: Count
    data: Inline | None = None


class LettersRead(Message, frozen=True):
    """Worker to worker, one-way: the reader of a mailbox is done with so many letters; their places are free."""

    mailbox: Name
    count: Count


class GaveUp(Message, frozen=True):
    """Worker to worker, one-way: the rank that writes to a mailbox gave up step `tag` (counted from 1), and why: an
    error's fields as JSON."""

    mailbox: Name
    tag: Count
    error: Inline


class Meet(Message, frozen=True):
    """Worker to worker, one-way: the hosts of two ranks may connect to each other, beside a mailbox between them.
    `calls` says that the sender's host would call, since its node dialled the link; `port` where the sender's host
    expects a call that begins with `key`; neither that it would, if it is asked."""

    mailbox: Name
    calls: bool = False
    port: Port = 0
    key: Annotated[bytes, Meta(max_length=32)] = b""


class Began(Message, frozen=True):
    """Worker to coordinator: the first part of a step runs, and has for 5 ms (it tells how soon work goes on after a
    fault).  A step that is done sooner tells it by its answer."""

    plan: PlanKey
    step: Count
    part: Index


class CancelStep(Message, frozen=True):
    """Stop a step: no further dispatch, buffers freed.  One-way."""

    plan: PlanKey
    step: Count


class Snapshot(Message, frozen=True):
    """Coordinator to worker: put what the parts of `plan` carried out of `step` among your blobs.  Answered by
    Snapshotted."""

    plan: PlanKey
    step: Count


class CarriedValue(Record, frozen=True):
    """Output `output` of part `part`, by the address of its content."""

    part: Index
    output: Index
    blob: Hash


class Snapshotted(Message, frozen=True):
    """All that this worker carried out of the step.  It holds these blobs as it does others, until it needs room."""

    values: Annotated[tuple[CarriedValue, ...], Meta(max_length=100_000)]


class Term(Record, frozen=True):
    """Content that counts in a sum by a factor, and who holds it, nearest first ("" is the coordinator)."""

    factor: Annotated[int, Meta(ge=0, le=255)]
    blob: Hash
    size_bytes: Count
    holders: Annotated[tuple[Name, ...], Meta(max_length=64)]


class Combine(Message, frozen=True):
    """Coordinator to worker: put among your blobs the sum of these contents over GF(256) (wire/erasure/gf256.py), so
    many bytes of it: a check of several contents, or what can be made again of a check and the others.  `blob` is its
    address where that is known, `keep` as for a BlobSpec, `peers` as in Deploy.  Answered by Combined."""

    terms: Annotated[tuple[Term, ...], Meta(min_length=1, max_length=64)]
    size_bytes: Count
    peers: dict[Name, Addresses]
    blob: Hash | None = None
    keep: bool = False


class Combined(Message, frozen=True):
    """The sum's address, and how many bytes of others were fetched for it.  It is held as Snapshotted says."""

    blob: Hash
    bytes_socket: Count
    bytes_shared: Count
