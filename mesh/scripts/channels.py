"""What lies between the ranks of one group: mailboxes, which are files that each rank of a machine makes for the others
there to read, and connections to ranks of other machines.

A rank writes its letters into files in its own directory, named after the group and the two ranks, so that whoever
reads them needs to be told nothing.  Part of the composition root: it knows the runtime's mailboxes, lines and groups.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wire.limits import KIB
from wire.system.shared_memory import SharedDir, remove, share
from worker.collectives.channels import Wire, Wires
from worker.collectives.connection import Connection
from worker.collectives.remote_channel import Line
from worker.collectives.ring_buffer import Inbox, Outbox, lay_out, letter_bytes_for, short_sleeps, size_of

from .rendezvous import life_of

UNUSED = (1, KIB)  # letters, and their bytes, of a mailbox to a rank to which there is a connection


@dataclass(slots=True)
class Mailboxes:
    """The mailboxes of one rank with the members of a group that are on its machine.

    It is `rank` in the group `name` of `members`, which are numbers of the world; `near` are those of them with which
    it has mailboxes, and `own` is its directory.

    First every rank does `make`, then every rank does `open`; nobody ends, or does `remove`, before all have.
    """

    own: SharedDir
    name: str
    members: Sequence[int]
    rank: int
    near: Sequence[int]
    _made: list[str] = field(default_factory=list)

    @property
    def letter_bytes(self) -> int:
        """The size of a message buffer, the same for all ranks: tensors are cut by it."""
        return letter_bytes_for(len(self.members))

    def make(self) -> None:
        """The files that this rank writes to.  OutOfMemory if there is no room for them."""
        for other in self.near:
            segment = self.own.allocate(size_of(letter_bytes=self.letter_bytes), self._file(self.rank, other))
            lay_out(segment.buffer, letter_bytes=self.letter_bytes)
            self._made.append(segment.name)

    def open(self, directories: Mapping[int, Path], far: Mapping[int, Connection], called: Mapping[int, str]) -> Wires:
        """What the runtime speaks over, by the members' numbers; `called` says what to call them in errors."""
        short_sleeps()
        wires = {}
        for other in self.near:
            outbox = Outbox(share(self.own.path, self._file(self.rank, other)))
            inbox = Inbox(share(directories[other], self._file(other, self.rank)))
            wires[other] = Wire(outbox, inbox, called.get(other, ""), alive=life_of(directories[other]))
        for other, connection in far.items():
            outbox, inbox = Outbox(_unused()), Inbox(_unused())
            wires[other] = Wire(outbox, inbox, called.get(other, ""), bridged=True, line=Line.standing(connection))
        return Wires(wires, letter_bytes=self.letter_bytes)

    def remove(self) -> None:
        for name in self._made:
            remove(self.own.path, name)
        self._made.clear()

    def _file(self, source: int, to: int) -> str:
        return hashlib.blake2b(f"{self.name} {source} {to}".encode(), digest_size=16).hexdigest()


def _unused() -> memoryview:
    buffer = memoryview(mmap.mmap(-1, size_of(*UNUSED)))
    lay_out(buffer, *UNUSED)
    return buffer
