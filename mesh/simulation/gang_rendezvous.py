"""Gang rendezvous: the ranks of a gang in a simulation, computed together once all their devices came to it.

Every host of a simulation is in one process and on one loop, so none may wait for another one.  A part of a gang is put
aside instead, and when the last of its ranks has come, all are computed at once, each in a thread, over the ring
buffers that their daemons made.  Results do not depend on how the threads run.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from worker.engine import host_messages as hm


class RankHost(Protocol):
    """A host that has a part of a gang to run."""

    shared_dir: str

    def compute(self, message: hm.ToHost) -> hm.FromHost | None:
        """Handle a message; the only method that is called from a thread."""

    def met(self, answer: hm.FromHost | None) -> None:
        """Take the answer of the part that was put aside."""


@dataclass(frozen=True, slots=True)
class _Present:
    host: RankHost
    gang: hm.RankOf
    message: hm.ExecutePart

    @property
    def buffers(self) -> frozenset[tuple[str, int]]:
        """The ring buffers that it writes to at this step; its peers know it by them."""
        return frozenset((peer.outgoing, self.message.tag) for peer in self.gang.peers if peer is not None)


class Rendezvous:
    """The ranks of one simulation that wait for the others of their gangs."""

    def __init__(self) -> None:
        self._present: list[_Present] = []

    def come(self, host: RankHost, gang: hm.RankOf, message: hm.ExecutePart) -> None:
        """Add a host that is ready for its part; all of the gang are answered once the last one is here."""
        here = _Present(host, gang, message)
        self._present.append(here)
        ranks = self._ranks(here)
        if ranks is None:
            return
        self._present = [waiting for waiting in self._present if waiting not in ranks]
        answers = _together(ranks)
        for rank, answer in zip(ranks, answers, strict=True):
            rank.host.met(answer)

    def leave(self, host: RankHost) -> None:
        """Remove a host that is gone or gave its part up."""
        self._present = [waiting for waiting in self._present if waiting.host is not host]

    def _ranks(self, here: _Present) -> list[_Present] | None:
        """All ranks of the gang by number, if all are here."""
        gang_ranks = []
        for peer in here.gang.peers:
            key = None if peer is None else (peer.incoming, here.message.tag)
            ranks = [
                waiting for waiting in self._present if (waiting is here if key is None else key in waiting.buffers)
            ]
            if not ranks:
                return None
            gang_ranks.append(ranks[0])
        return gang_ranks


def _together(ranks: list[_Present]) -> list[hm.FromHost | None]:
    answers: list[hm.FromHost | None] = [None] * len(ranks)
    directories = tuple(present.host.shared_dir for present in ranks)

    def work(rank: int) -> None:
        original = ranks[rank].message
        message = hm.ExecutePart(
            original.run, original.prepared, original.inputs, original.outputs, original.tag, directories
        )
        answers[rank] = ranks[rank].host.compute(message)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
