"""Links and membership: a worker joins a coordinator, both tell that they live, and links are measured."""

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
    """Coordinator to worker: serve this coordinator.  `beat_s` is the heartbeat interval to use, `epoch` the
    coordinator's.  Answered by Joined, or by the error Busy naming the owner."""

    epoch: Count
    beat_s: Seconds
    coordinator: Name
    silence_s: Seconds = 0.0  # after so long without a word from the coordinator another may have the worker
    kept: Generations = ()  # what it had deployed in this epoch and goes on with; the worker drops all others
    earlier: PlanKeys = ()  # likewise, of the epochs before it was started anew
    epochs: Epochs = ()  # of a coordinator with a standby: all that it goes on from, the newest last


class Joined(Message, frozen=True):
    devices: tuple[DeviceReport, ...]
    memory_bytes: Count  # budget for all devices of this worker together
    blobs: tuple[Hash, ...] = ()  # what its cache holds (most recent first, at most 4096)
    system: Name = ""  # its operating system: Linux, Darwin, Windows
    paused: Name = ""  # as in Paused
    kept: Generations = ()  # what is deployed here of what the coordinator named
    without_gpu: Text = ""  # why it has no GPU, as wire/protocol/missing_gpu.py has it
    made: Generations = ()  # of each of `kept`, how many steps it has done here, of the last of which the state is here
    cage: Text = ""  # what its engine hosts gave up of the machine, and why not more; for people


class Devices(Message, frozen=True):
    """Worker to coordinator, one-way: what its devices are from now on.  One that was given up has no dtypes left."""

    devices: tuple[DeviceReport, ...]
    reason: Text


class Working(Record, frozen=True):
    """A part that is being computed, or compiled (`preparing`, and then `step` says nothing), and for how long."""

    plan: PlanKey
    step: Count
    part: Index
    seconds: Seconds
    preparing: bool = False


class Beat(Message, frozen=True):
    """Worker to coordinator, every beat interval: alive.  `incarnation` grows when the worker refutes a suspicion;
    `loop_lag_s` is how long its event loop stood still at most in the last half minute to minute."""

    incarnation: Count
    counter: Count
    loop_lag_s: Seconds
    queue_depth: Count
    working: Annotated[tuple[Working, ...], Meta(max_length=256)] = ()


class Suspected(Message, frozen=True):
    """Coordinator to worker, one-way: you are suspected at this incarnation; a Beat with a higher one refutes it."""

    incarnation: Count


class Probe(Message, frozen=True):
    """Coordinator to worker: see within `wait_s` whether `node`, which listens on `addresses`, answers you, and with
    `measure` what the link to it carries.  Answered by Probed."""

    node: Name
    addresses: Addresses
    wait_s: Annotated[float, Meta(ge=0, le=600)]
    measure: bool = False


class Probed(Message, frozen=True):
    """Whether the node answered, and after how long; 0 if it did not, and `cause` says why.  `address` is where it was
    dialled, "" if it had dialled itself; `shared` says that the two share memory; `bytes_per_s` is 0 if not measured.
    """

    reached: bool
    rtt_s: Seconds = 0.0
    bytes_per_s: Seconds = 0.0
    shared: bool = False
    address: Name = ""
    cause: Text = ""


class Ballast(Message, frozen=True):
    """Header of a stream of bytes that mean nothing, to measure a link; the receiver answers Landed."""

    number: Count


class Landed(Message, frozen=True):
    """All bytes of the Ballast with this number have come.  One-way."""

    number: Count


class Revocations(Message, frozen=True):
    """Coordinator to all, one-way: the certificate revocation list (DER) of now; links to nodes on it end.

    `authority` is the certificate (DER) of the mesh's authority, where it may be news; `former` is that of the one
    before, certified by its successor, and `former_data` its list, while it is trusted, too.
    """

    data: RevocationList
    authority: Certificate = b""
    former: Certificate = b""
    former_data: RevocationList = b""


class Leaving(Message, frozen=True):
    """Worker to coordinator, one-way: unfinished parts are handed back; send no more work.  `reason` is for people;
    `log` has the last lines of its log where something failed, and none where it was asked to leave."""

    reason: Text
    log: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class Pause(Message, frozen=True):
    """Coordinator to worker: take no work from now on, or (`on` false) take it again.  Answered by Done, or by Busy
    where only its own machine may end the pause."""

    on: bool


class Paused(Message, frozen=True):
    """Worker to coordinator, one-way: it stays, takes no work, and hands back what it has, because of whom `by` names:
    its own "machine" or the "coordinator"; "": it takes work again."""

    by: Name
