"""Gang rendezvous: the ranks of a gang in a simulation, computed together once all their devices came to it.

Every host of a simulation is in one process and on one loop, so none may wait for another one.  A part of a gang is put
aside instead, and when the last of its ranks has come, all are computed at once, each in a thread, over the mailboxes
that their daemons made.  Results do not depend on how the threads run.
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
        """What came of the part that was put aside."""


@dataclass(frozen=True, slots=True)
class _Present:
    host: RankHost
    gang: hm.RankOf
    message: hm.ExecutePart

    @property
    def mailboxes(self) -> frozenset[tuple[str, int]]:
        """Those that it writes to, at this step: who waits for it knows it by them."""
        return frozenset((peer.outbox, self.message.tag) for peer in self.gang.peers if peer is not None)


class Rendezvous:
    """Who waits for whom in one simulation."""

    def __init__(self) -> None:
        self._present: list[_Present] = []

    def come(self, host: RankHost, gang: hm.RankOf, message: hm.ExecutePart) -> None:
        """A host is ready for its part; all of the gang are answered once the last one is."""
        here = _Present(host, gang, message)
        self._present.append(here)
        ranks = self._ranks(here)
        if ranks is None:
            return
        self._present = [each for each in self._present if each not in ranks]
        answers = _together(ranks)
        for each, answer in zip(ranks, answers, strict=True):
            each.host.met(answer)

    def leave(self, host: RankHost) -> None:
        """It is gone, or gave its part up."""
        self._present = [each for each in self._present if each.host is not host]

    def _ranks(self, here: _Present) -> list[_Present] | None:
        """All ranks of the gang by number, if all are here."""
        found = []
        for peer in here.gang.peers:
            key = None if peer is None else (peer.inbox, here.message.tag)
            ranks = [each for each in self._present if (each is here if key is None else key in each.mailboxes)]
            if not ranks:
                return None
            found.append(ranks[0])
        return found


def _together(ranks: list[_Present]) -> list[hm.FromHost | None]:
    answers: list[hm.FromHost | None] = [None] * len(ranks)
    inboxes = tuple(each.host.shared_dir for each in ranks)

    def work(rank: int) -> None:
        told = ranks[rank].message
        message = hm.ExecutePart(told.run, told.prepared, told.inputs, told.outputs, told.tag, inboxes)
        answers[rank] = ranks[rank].host.compute(message)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
