"""The mailboxes between the ranks of one group: files that each rank makes for the others to read.

A rank writes its letters into files in its own directory, named after the group and the two ranks, so that whoever
reads them needs to be told nothing.  Part of the composition root: it knows the runtime's mailboxes and groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wire.sharedmem import SharedDir, remove, share
from worker.collectives.mailbox import Inbox, Outbox, lay_out, letter_bytes_for, short_sleeps, size_of
from worker.collectives.wires import Wire, Wires

from .meeting import life_of


@dataclass(slots=True)
class Mailboxes:
    """Those of `rank` in the group `name` of `members`, who are numbers of the world; `own` is this rank's directory.

    First every rank does `make`, then every rank does `open`; nobody ends, or does `remove`, before all have.
    """

    own: SharedDir
    name: str
    members: Sequence[int]
    rank: int
    _made: list[str] = field(default_factory=list)

    def make(self) -> None:
        """The files that this rank writes to.  OutOfMemory if there is no room for them."""
        letter_bytes = letter_bytes_for(len(self.members))
        for other in self._others():
            segment = self.own.allocate(size_of(letter_bytes=letter_bytes), self._file(self.rank, other))
            lay_out(segment.buffer, letter_bytes=letter_bytes)
            self._made.append(segment.name)

    def open(self, directories: Mapping[int, Path], called: Mapping[int, str]) -> Wires:
        """What the runtime speaks over, by the members' numbers; `called` says what to call them in errors."""
        short_sleeps()
        wires = {}
        for other in self._others():
            outbox = Outbox(share(self.own.path, self._file(self.rank, other)))
            inbox = Inbox(share(directories[other], self._file(other, self.rank)))
            wires[other] = Wire(outbox, inbox, called.get(other, ""), alive=life_of(directories[other]))
        return Wires(wires, letter_bytes=letter_bytes_for(len(self.members)))

    def remove(self) -> None:
        for name in self._made:
            remove(self.own.path, name)
        self._made.clear()

    def _others(self) -> list[int]:
        return [other for other in self.members if other != self.rank]

    def _file(self, source: int, to: int) -> str:
        return hashlib.blake2b(f"{self.name} {source} {to}".encode(), digest_size=16).hexdigest()
