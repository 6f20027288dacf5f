"""Opening the channels of a rank in its engine host: ring buffers in files that the daemons made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from wire.system.cores import core_count
from wire.system.shared_memory import share

from ..engine.host_messages import RankOf
from .channels import Channel, Channels
from .progress import Progress
from .rank import RankCollectives
from .remote_channel import RemoteChannel
from .ring_buffer import SLOT_BYTES, RingReader, RingWriter, short_sleeps
from .shared_arena import ArenaFile, SharedArena


def open_rank(
    gang: RankOf,
    own: str,
    directories: Sequence[str],
    notify: Callable[[], None],
    progress: Progress | None = None,
    remote: Callable[[str], RemoteChannel] | None = None,
    arena: ArenaFile | None = None,
) -> RankCollectives:
    """The collectives of a rank.  BlobMissing if another rank's files are gone.

    The ring buffers to write to are in the directory `own`, and the one to read from rank r is in `directories[r]`.
    Where that is "", rank r is on another machine: the ring buffer is in `own`, the daemon carries it and learns of
    changes by `notify`, and `remote` returns the remote channel beside it.  `arena` is this rank's shared arena.
    """
    peers = {}
    for rank, (peer, directory) in enumerate(zip(gang.peers, directories, strict=True)):
        if peer is not None:
            writer = RingWriter(share(own, peer.outgoing))
            reader = RingReader(share(directory or own, peer.incoming), partial(share, directory))
            beside = remote(peer.outgoing) if remote is not None and not directory else None
            peers[rank] = Channel(writer, reader, peer.name, bridged=not directory, remote=beside)
    short_sleeps()
    channels = Channels(
        peers,
        notify if any(channel.bridged for channel in peers.values()) else _no_daemon,
        slot_bytes=min((channel.writer.slot_bytes for channel in peers.values()), default=SLOT_BYTES),
        deadline_s=gang.timeout_s,
        failure_reason_s=gang.failure_reason_s,
        uses_arena=True,
    )
    writers = [channel.writer for channel in peers.values() if not channel.bridged]
    if arena is not None:
        channels.arena = SharedArena(*arena, writers)
    oversubscribed = is_oversubscribed(1 + len(writers))
    return RankCollectives(channels, gang.axes, gang.sizes, gang.rank, gang.bytes_per_s, progress, oversubscribed)


def is_oversubscribed(ranks: int) -> bool:
    """Whether `ranks` ranks on this machine have fewer than two cores each: one to compute, and one to move bytes."""
    return 2 * ranks > core_count()


def _no_daemon() -> None:
    pass
