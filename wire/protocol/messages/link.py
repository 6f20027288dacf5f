"""Links and membership: a worker joins a coordinator, both send heartbeats, and links are measured."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .fields import (
    Addresses,
    Certificate,
    Count,
    Epochs,
    Generations,
    Hash,
    Index,
    Message,
    Name,
    PlanKey,
    PlanKeys,
    Record,
    RevocationList,
    Seconds,
    Text,
)

WORKING_MAX = 256  # that a heartbeat names


class DeviceReport(Record, frozen=True):
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


class Join(Message, frozen=True):
    """Coordinator to worker: serve this coordinator, whose epoch is `epoch`, and send heartbeats every `beat_s`.
    Answered by Joined, or by the error Busy, which names the owner."""

    epoch: Count
    beat_s: Seconds
    coordinator: Name
    silence_s: Seconds = 0.0  # after so long without a message from the coordinator another may have the worker
    continued: Generations = ()  # plans that it deployed in this epoch and continues; the worker drops all others
    earlier: PlanKeys = ()  # likewise, of the epochs before it was started again
    epochs: Epochs = ()  # of a coordinator with a standby: all epochs that it continues, the newest last


class Joined(Message, frozen=True):
    """Worker to coordinator: the worker serves it.  The fields describe its devices, its memory and what it holds.
    `deployed` lists the plans named in Join that it still has, and `steps_done` how many steps of each are done.  It
    has the state of the last of these steps."""

    devices: tuple[DeviceReport, ...]
    memory_bytes: Count  # budget for all devices of this worker together
    blobs: tuple[Hash, ...] = ()  # what its cache holds (most recent first, at most 4096)
    system: Name = ""  # its operating system: Linux, Darwin, Windows
    paused: Name = ""  # as in Paused
    deployed: Generations = ()  # the plans of Join's `continued` that are deployed here
    without_gpu: Text = ""  # why it has no GPU, as wire/protocol/missing_gpu.py has it
    steps_done: Generations = ()  # for each plan of `deployed`: how many steps it has done
    sandbox: Text = ""  # what its engine hosts gave up of the machine, and why not more; for people


class Devices(Message, frozen=True):
    """Worker to coordinator, one-way: its devices from now on.  A device that was given up has no dtypes left."""

    devices: tuple[DeviceReport, ...]
    reason: Text


class Working(Record, frozen=True):
    """A part that is being computed, and for how long.  With `preparing` it is being compiled, and `step` means
    nothing."""

    plan: PlanKey
    step: Count
    part: Index
    seconds: Seconds
    preparing: bool = False


class Beat(Message, frozen=True):
    """Worker to coordinator, one-way, every beat interval: a heartbeat.  `incarnation` grows when the worker refutes a
    suspicion.  `loop_lag_s` is the longest time that its event loop was blocked in the last half minute to minute."""

    incarnation: Count
    counter: Count
    loop_lag_s: Seconds
    queue_depth: Count
    working: Annotated[tuple[Working, ...], Meta(max_length=WORKING_MAX)] = ()


class Suspected(Message, frozen=True):
    """Coordinator to worker, one-way: the worker is suspected at this incarnation.  A Beat with a higher one refutes
    it."""

    incarnation: Count


class Probe(Message, frozen=True):
    """Coordinator to worker: check within `wait_s` whether `node`, which listens on `addresses`, answers.  With
    `measure`, also measure the link to it.  Answered by Probed."""

    node: Name
    addresses: Addresses
    wait_s: Annotated[float, Meta(ge=0, le=600)]
    measure: bool = False


class Probed(Message, frozen=True):
    """Whether the node answered.  `rtt_s` is the round trip, or 0 if it did not answer, and then `cause` says why.
    `address` is where it was dialled, or "" if the node had dialled the link.  `shared` says that the two share memory.
    `bytes_per_s` is 0 if it was not measured."""

    reached: bool
    rtt_s: Seconds = 0.0
    bytes_per_s: Seconds = 0.0
    shared: bool = False
    address: Name = ""
    cause: Text = ""


class Ballast(Message, frozen=True):
    """Header of a stream of bytes that mean nothing, to measure a link.  The receiver answers Landed."""

    number: Count


class Landed(Message, frozen=True):
    """One-way: all bytes of the Ballast with this number have arrived."""

    number: Count


class Revocations(Message, frozen=True):
    """Coordinator to all, one-way: the current certificate revocation list (DER).  Links to nodes on it end.

    `authority` is the certificate (DER) of the mesh's authority, if the receiver may not know it.  While the previous
    authority is trusted too, `former` is its certificate, signed by its successor, and `former_data` its list.
    """

    data: RevocationList
    authority: Certificate = b""
    former: Certificate = b""
    former_data: RevocationList = b""


class Leaving(Message, frozen=True):
    """Worker to coordinator, one-way: the worker leaves, hands unfinished parts back and accepts no more work.
    `reason` is a text for people.  `log` has the last lines of its log if something failed, and none if it was asked to
    leave."""

    reason: Text
    log: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class Pause(Message, frozen=True):
    """Coordinator to worker: accept no work from now on, or (`on` false) accept it again.  Answered by Done, or by Busy
    if only the worker's own machine may end the pause."""

    on: bool


class Paused(Message, frozen=True):
    """Worker to coordinator, one-way: it remains in the mesh, accepts no work, and hands back what it has.  `by` says
    who paused it: its own "machine" or the "coordinator".  With "" it accepts work again."""

    by: Name
