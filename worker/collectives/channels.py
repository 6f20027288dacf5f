"""A process's wires to other ranks: a mailbox each way, with a line beside them where the rank is on another machine.

Whoever gives up tells all others why (`Wires.fail`), so no rank waits for one that will not come; nothing of a step
that was given up can be taken for the next one's, since every letter carries the step's tag.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wire.errors import Cancelled, DeadlineExceeded, MeshError, error_of_peer, from_fields
from wire.timeouts import COLLECTIVE_TIMEOUT_S, DEFAULT_TIMEOUTS

from .remote_channel import Line
from .ring_buffer import LETTER_BYTES, Inbox, Outbox, Patience
from .shared_arena import Shelf


@dataclass(slots=True)
class Wire:
    """Both mailboxes between this rank and another; `bridged` where the daemons carry what is in them, unless there is
    a connection on the `line`."""

    outbox: Outbox
    inbox: Inbox
    name: str = ""  # of the worker at the other end
    bridged: bool = False
    alive: Callable[[], bool] = lambda: True  # whether the process at the other end runs, where that can be seen
    line: Line | None = None


@dataclass(slots=True)
class Wires:
    """A process's mailboxes, by any key of the other end, and the step they are used for."""

    wires: Mapping[Any, Wire]
    ring: Callable[[], None] = lambda: None  # tell the daemon that bridged mailboxes have changed
    tag: int = 0
    stopped: Callable[[], bool] = lambda: False
    letter_bytes: int = LETTER_BYTES  # the same on all ranks: tensors are cut by it
    deadline_s: float = COLLECTIVE_TIMEOUT_S
    failure_reason_s: float = DEFAULT_TIMEOUTS.rank_failure_reason_s  # for why a connection ended: the daemons bring it
    patience: Patience = field(default_factory=Patience)
    lays: bool = False  # large tensors lie on shelves, if there is room: the same on all ranks
    shelf: Shelf | None = None
    packed_s: float = 0.0  # in this step: values were copied into mailboxes
    sent_bytes: int = 0  # likewise, of values

    def begin(self, tag: int, stopped: Callable[[], bool]) -> None:
        """A new step: tags grow, from 1."""
        self.tag, self.stopped = tag, stopped
        self.packed_s, self.sent_bytes = 0.0, 0
        if self.shelf is not None:
            self.shelf.begin()
        for wire in self.wires.values():
            wire.outbox.resume()
            wire.inbox.resume()
        lines = [(wire.line, wire.outbox) for wire in self.wires.values() if wire.line is not None]
        if sum(line.begin(tag, outbox) for line, outbox in lines):
            self.ring()

    def end(self) -> None:
        """The step is over."""
        self.stopped = lambda: False  # it held on to who began the step, who has these wires

    def fail(self, error: MeshError) -> None:
        """Tell everybody that this end gives the step up."""
        text = json.dumps({**error.to_fields(), "cause": error.cause[:500], "next_step": error.next_step[:500]})
        if len(text.encode()) > 2500:
            text = json.dumps({"code": error.code, "message": error.message[:500], "node": error.node})
        for wire in self.wires.values():
            wire.outbox.fail(self.tag, text.encode())
            if wire.line is not None:
                wire.line.hang_up()
        self.ring()

    def check(self, waited_s: float, missing: Callable[[], str]) -> None:
        """Raise if it is no use to wait any longer: cancelled, given up elsewhere, or past the deadline."""
        if self.stopped():
            raise Cancelled("the run was stopped while it waited for other ranks")
        for wire in self.wires.values():
            told = wire.inbox.failure(self.tag)
            if told is not None:
                raise _theirs(told, wire.name)
        if waited_s > self.deadline_s:
            raise DeadlineExceeded(
                f"waited {self.deadline_s:g} s for {missing()}",
                next_step="See whether it is well, or allow more time: docs/collectives.md says how",
            )


def _theirs(told: bytes, name: str) -> MeshError:
    """The error of a rank that gave up, for one that waited for it."""
    return error_of_peer(from_fields(json.loads(told)), name)
