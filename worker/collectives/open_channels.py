"""Opening the mailboxes of a part of a gang in an engine host: files that the daemons made."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from wire.system.shared_memory import share

from ..engine.host_messages import RankOf
from .channels import Wire, Wires
from .progress import Progress
from .rank import Ranks
from .remote_channel import Line
from .ring_buffer import LETTER_BYTES, Inbox, Outbox, short_sleeps
from .shared_arena import Laid, Shelf


def ranks_of(
    gang: RankOf,
    own: str,
    inboxes: Sequence[str],
    ring: Callable[[], None],
    progress: Progress | None = None,
    line: Callable[[str], Line] | None = None,
    shelf: Laid | None = None,
) -> Ranks:
    """Outboxes are in the directory `own`; the inbox from rank r is in `inboxes[r]`, or where that is "" in `own`, and
    then the daemon carries both, unless there is a connection on the `line` beside the outbox.  `shelf` is this
    rank's, if it has one.  BlobMissing where the other end is gone."""
    wires = {}
    for rank, (peer, directory) in enumerate(zip(gang.peers, inboxes, strict=True)):
        if peer is not None:
            outbox = Outbox(share(own, peer.outbox))
            inbox = Inbox(share(directory or own, peer.inbox), partial(share, directory))
            beside = line(peer.outbox) if line is not None and not directory else None
            wires[rank] = Wire(outbox, inbox, peer.name, bridged=not directory, line=beside)
    letter_bytes = {wire.outbox.letter_bytes for wire in wires.values()}
    short_sleeps()
    ringing = ring if any(wire.bridged for wire in wires.values()) else _silence
    together = Wires(
        wires,
        ringing,
        letter_bytes=min(letter_bytes, default=LETTER_BYTES),
        deadline_s=gang.timeout_s,
        failure_reason_s=gang.failure_reason_s,
    )
    readers = [wire.outbox for wire in wires.values() if not wire.bridged]
    together.lays = True
    if shelf is not None:
        together.shelf = Shelf(*shelf, readers)
    return Ranks(together, gang.axes, gang.sizes, gang.rank, gang.bytes_per_s, progress, is_crowded(1 + len(readers)))


def is_crowded(ranks: int) -> bool:
    """Whether so many ranks of this machine have fewer than two cores each: one that computes, and one that moves."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 * ranks > cores


def _silence() -> None:
    """No daemon carries anything."""
