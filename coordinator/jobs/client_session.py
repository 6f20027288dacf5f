"""Client session: a session of a client of `mesh-coord serve`, and what the service holds for it.  Data, no I/O."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from wire.errors import MeshError
from wire.ir.types import TensorType
from wire.protocol.messages import NamedValue, SessionTold
from wire.roles import member_id

from ..planning.model.program import Program
from ..planning.session_planner import Stateful
from ..sessions.manifest import SessionRecord, reading_journal
from ..sessions.runtime import Session
from ..sessions.state import Policy
from .stored_program import ProgramContent


@dataclass(slots=True)
class Terms:
    """What a client asked for as it opened a session."""

    client: str
    strategy: str
    carries: tuple[tuple[str, int], ...]
    returned_count: int
    ahead: int
    policy: Policy
    name: str = ""
    opened_s: float = 0.0  # Unix time
    size_bytes: int = 0  # of the state

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an entry."""
        policy = [self.policy.copies, self.policy.every, self.policy.replay_bytes, self.policy.asked]
        return {
            "client": self.client,
            "strategy": self.strategy,
            "carries": self.carries,
            "told": self.returned_count,
            "ahead": self.ahead,
            "policy": policy,
            "name": self.name,
            "opened_s": self.opened_s,
            "size_bytes": self.size_bytes,
        }

    @staticmethod
    def of(fields: dict[str, Any]) -> Terms:
        """What an entry says."""
        with reading_journal():
            copies, every, replay_bytes, asked = fields["policy"]
            policy = Policy(copies, every, fields["ahead"], replay_bytes, asked, durable=True)
            carries = tuple((name, output) for name, output in fields["carries"])
            named = fields.get("name", ""), fields.get("opened_s", 0.0), fields.get("size_bytes", 0)
            return Terms(fields["client"], fields["strategy"], carries, fields["told"], fields["ahead"], policy, *named)

    @property
    def stateful(self) -> Stateful:
        return Stateful(self.carries, self.returned_count, self.ahead)


@dataclass(slots=True)
class Requests:
    """What one client asked of a session, by number, and what it was answered."""

    next_number: int = 0
    heard: int = 0  # below it, the client has all answers that it will have
    over: set[int] = field(default_factory=set)  # numbers above that, which nobody waits for
    turns: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    answers: dict[int, asyncio.Task[SessionTold]] = field(default_factory=dict)  # until the client has them
    after: dict[int, int] = field(default_factory=dict)  # of these answers, the steps done by then
    blobs: dict[int, list[bytes]] = field(default_factory=dict)  # of these answers
    kept_bytes: dict[int, int] = field(default_factory=dict)  # of these answers, as far as they are no blobs
    waiting_bytes: dict[int, int] = field(default_factory=dict)  # of the inputs of steps whose turn it is not yet
    ended: bool = False  # no turn comes any more

    def done(self, number: int) -> None:
        """Let the next number go on: this one was asked of the session, or never will be."""
        self.over.add(number)
        self.waiting_bytes.pop(number, None)
        self._go_on()

    def give_up(self, below: int) -> None:
        """Let what follows go on: what its client never came to ask, by numbers below this one, will not be asked."""
        waiting = min((number for number in self.answers if number >= self.next_number), default=below)
        if min(below, waiting) > self.next_number:
            self.next_number = min(below, waiting)
            self.over = {number for number in self.over if number >= self.next_number}
            self._go_on()

    def _go_on(self) -> None:
        while self.next_number in self.over:
            self.over.remove(self.next_number)
            self.next_number += 1
        waiting = self.turns.pop(self.next_number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def end(self, error: MeshError) -> None:
        """Nobody's turn comes any more."""
        self.ended = True
        for waiting in self.turns.values():
            if not waiting.done():
                waiting.set_exception(error.copy())
                waiting.exception()  # its waiter may be gone


@dataclass(slots=True)
class ClientSession:
    """A session of a client, and what is held for it."""

    id: str
    token: str  # of the program that drives it
    client: str  # the client that drives it, or did last; "" after a time when none could
    client_name: str
    terms: Terms
    session: Session | None = None  # None until its client is back, where this process was started anew
    kinds: dict[str, TensorType] = field(default_factory=dict)  # of a step's inputs
    names: tuple[str, ...] = ()  # of its outputs
    graph: bytes = b""
    requests: Requests = field(default_factory=Requests)
    former: tuple[str, ...] = ()  # tokens
    form: Any = b""  # as its opener gave it, or the leaf of the journal's entry that it is in
    fixed: tuple[NamedValue, ...] = ()  # the params that no step changes, by address
    leaving: asyncio.TimerHandle | None = None  # while its client has no link
    away: bool = False  # the session knows that
    saving: asyncio.Task[Any] | None = None  # the entry of its program
    entry: Any = None  # the values of that entry, where this process was started anew
    record: SessionRecord | None = None  # likewise, where its state is
    feeds: dict[int, dict[str, NDArray[Any]]] = field(default_factory=dict)  # of steps that may be done again
    resuming: asyncio.Lock = field(default_factory=asyncio.Lock)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)  # the entry

    def take(self, content: ProgramContent) -> Program:
        """The program, once its graph is known."""
        self.kinds, self.names = (
            content.graph.input_types,
            tuple(content.graph.output_names[: self.terms.returned_count]),
        )
        self.graph = content.graph.encoded
        carried = dict(self.terms.carries)
        self.fixed = tuple(
            NamedValue(name, kind.dtype.name, kind.shape, None, address)
            for name, (address, kind) in content.bindings.items()
            if name not in carried
        )
        return Program(content.graph, content.bindings, self.terms.strategy)

    @property
    def owner(self) -> str:
        """The member whose session it is."""
        return member_id(self.terms.client)

    @property
    def held_bytes(self) -> int:
        """The bytes of the inputs of its steps that are here."""
        feeds = sum(array.nbytes for inputs in self.feeds.values() for array in inputs.values())
        return feeds + (0 if self.session is None else self.session.held_bytes)

    @property
    def over(self) -> bool:
        """Whether it ended by itself, as where its state was lost."""
        return self.session is not None and self.session.ended.done()
