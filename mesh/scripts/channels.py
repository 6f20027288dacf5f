"""The channels of one group: ring buffers between ranks of one machine, connections to ranks of other machines.

A rank writes into files in its own directory, which the other ranks of the machine read.  A file is named after the
group and the two ranks, so no message has to carry its name.  Part of the composition root: it knows the runtime's ring
buffers, channels and groups.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wire.limits import KIB
from wire.system.shared_memory import SharedDir, remove, share
from worker.collectives.channels import Channel, Channels
from worker.collectives.connection import Connection
from worker.collectives.remote_channel import RemoteChannel
from worker.collectives.ring_buffer import RingReader, RingWriter, initialise, short_sleeps, size_of, slot_bytes_for

from .rendezvous import life_of

UNUSED = (1, KIB)  # slots, and their bytes, of a ring buffer to a rank to which there is a connection


@dataclass(slots=True)
class GroupChannels:
    """The channels of `rank` in the group `name` of `members`, which are numbers of the world.  `near` are the members
    on this machine, and `own` is this rank's directory.

    First every rank does `make`, then every rank does `open`.  No rank ends, or does `remove`, before all have.
    """

    own: SharedDir
    name: str
    members: Sequence[int]
    rank: int
    near: Sequence[int]
    _made: list[str] = field(default_factory=list)

    @property
    def slot_bytes(self) -> int:
        """The payload of a slot, the same for all ranks."""
        return slot_bytes_for(len(self.members))

    def make(self) -> None:
        """Make the files that this rank writes to.  OutOfMemory if there is no room for them."""
        for other in self.near:
            segment = self.own.allocate(size_of(slot_bytes=self.slot_bytes), self._file(self.rank, other))
            initialise(segment.buffer, slot_bytes=self.slot_bytes)
            self._made.append(segment.name)

    def open(
        self, directories: Mapping[int, Path], far: Mapping[int, Connection], names: Mapping[int, str]
    ) -> Channels:
        """The runtime's channels, by the members' numbers.  `names` are what errors call the members."""
        short_sleeps()
        peers = {}
        for other in self.near:
            writer = RingWriter(share(self.own.path, self._file(self.rank, other)))
            reader = RingReader(share(directories[other], self._file(other, self.rank)))
            peers[other] = Channel(writer, reader, names.get(other, ""), alive=life_of(directories[other]))
        for other, connection in far.items():
            remote = RemoteChannel.over_connection(connection)
            writer, reader = RingWriter(_unused()), RingReader(_unused())
            peers[other] = Channel(writer, reader, names.get(other, ""), bridged=True, remote=remote)
        return Channels(peers, slot_bytes=self.slot_bytes)

    def remove(self) -> None:
        for name in self._made:
            remove(self.own.path, name)
        self._made.clear()

    def _file(self, source: int, to: int) -> str:
        return hashlib.blake2b(f"{self.name} {source} {to}".encode(), digest_size=16).hexdigest()


def _unused() -> memoryview:
    buffer = memoryview(mmap.mmap(-1, size_of(*UNUSED)))
    initialise(buffer, *UNUSED)
    return buffer
