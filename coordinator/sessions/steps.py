"""A session's policy, its current plan, and its reads.  Pure data.

A plan whose workers are away for a while may come back with them, and then knows what each of them has still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wire.bounds import REPLAYED_FEEDS

from ..lifecycle.plan_lifecycle import LivePlan, Phase
from ..lifecycle.step_timeout import Wait
from ..planning.model.profiles import CLIENT
from .copies import Copy
from .events import Piece
from .manifest import PlanRecord


@dataclass(frozen=True, slots=True)
class Policy:
    """The kind of copies, the number of steps between two of them, and the most steps in flight.

    A state that nobody copies is made again of what the client gave while the feeds since are no more than
    `replay_bytes`.  A copy is made before its turn when the feeds since the last one are more than that, and than the
    state itself.
    """

    copies: str = "buddy"
    every: int = 10
    ahead: int = 2
    replay_bytes: int = REPLAYED_FEEDS.most
    asked: bool = False  # for these copies, by name: without room for them there is no session
    durable: bool = False  # it outlasts this process: what its caller was not heard to have is held for it


@dataclass(slots=True, kw_only=True)
class CurrentPlan(LivePlan):
    """The plan that a session's steps run by, or will once all its workers are ready.  Its first step is the session's
    step `start`."""

    start: int  # the value it begins with
    owners: dict[Piece, set[str]] = field(default_factory=dict)
    away: dict[str, frozenset[Piece]] = field(default_factory=dict)  # what those made who may come back with it
    ending: bool = False  # a better one follows soon
    reached: dict[str, int] = field(default_factory=dict)  # the value that a worker had when it joined again

    @property
    def begun(self) -> bool:
        """Whether all its workers were ready once."""
        return self.phase in (Phase.RUNNING, Phase.STOPPED)

    @property
    def next_number(self) -> int:
        """The session's number of the step that is begun next."""
        return self.start + self.issued

    @property
    def whole(self) -> bool:
        """Whether there is a worker for every piece of what it has come to."""
        return bool(self.owners) and all(self.owners.values())

    @property
    def recoverable(self) -> bool:
        """Whether it is whole again once the workers that are away come back."""
        there = {piece for piece, nodes in self.owners.items() if nodes}.union(*self.away.values())
        return bool(self.owners) and there == self.owners.keys()

    @property
    def record(self) -> PlanRecord | None:
        """What is written down of it; None before it has begun, and where nobody has all of what it made."""
        away = self.away.items()
        owners = {
            piece: frozenset(nodes).union(node for node, pieces in away if piece in pieces)
            for piece, nodes in self.owners.items()
        }
        return PlanRecord(self.generation, self.start, owners) if self.begun and all(owners.values()) else None

    @staticmethod
    def recorded(record: PlanRecord) -> CurrentPlan:
        """The plan that was written down: its workers are away until they join again."""
        plan = CurrentPlan(record.generation, phase=Phase.STOPPED, start=record.start)
        plan.owners = {piece: set() for piece in record.owners}
        for node in frozenset().union(*record.owners.values()):
            plan.away[node] = frozenset(piece for piece, nodes in record.owners.items() if node in nodes)
        return plan

    def lose(self, gone: frozenset[str], away: frozenset[str]) -> bool:
        """These workers are gone, of which some are `away` only; whether any was of this plan."""
        hit = bool(gone & self.nodes)
        for node in gone & self.nodes & away:
            self.away[node] = frozenset(piece for piece, nodes in self.owners.items() if node in nodes)
        self.nodes -= gone
        for nodes in self.owners.values():
            nodes -= gone
        return hit

    def found(self) -> int:
        """The value that the workers of a whole plan have come to.  Those that are not so far count no more."""
        value = min(max(self.reached.get(node, self.start) for node in nodes) for nodes in self.owners.values())
        for nodes in self.owners.values():
            nodes -= {node for node in nodes if self.reached.get(node, self.start) < value}
        return value

    def back(self, node: str, kept: bool, steps: int = 0) -> None:
        """A worker that was away is back, and has `kept` the plan, or not.  It has done `steps` steps of it."""
        pieces = self.away.pop(node, None)
        if pieces is not None and kept:
            self.reached[node] = self.start + steps
            self.nodes |= {node}
            for piece in pieces:
                self.owners[piece].add(node)


@dataclass(slots=True)
class Attendance:
    """Whether a program drives a session that has a name, and what has to be done while none does."""

    away: bool = False  # its client is: what it has come to is stored
    claimed: bool = False  # by another client, which waits for that
    left: bool = False  # the one that claimed it is away, too
    unsure: bool = False  # another process ran it, and its client is away, too: nobody knows how many steps are done
    unknown: bool = False  # likewise, and the workers that know are not back
    tries: int = 0  # in a row to store it
    again: Wait = field(default_factory=Wait)

    def __bool__(self) -> bool:
        return self.away or self.claimed

    def over(self) -> None:
        """A program drives it."""
        self.away = self.claimed = self.left = self.unsure = self.unknown = False
        self.stored()

    def handed_over(self) -> None:
        """The claimant may have it.  It is away if the claimant is gone by now."""
        left = self.left
        self.over()
        self.away = left

    def stored(self) -> None:
        self.tries = 0
        self.again.end()


@dataclass(slots=True)
class Read:
    """A value that its caller waits for."""

    value: int  # the steps that it has to be after
    attempts: int = 0
    begun: bool = False


def validate(
    plan: CurrentPlan | None,
    copies: Iterable[Copy],
    nodes: frozenset[str],
    done: int,
    held_from: int,
    returning: bool,
) -> None:
    """Assert that a session's plan and copies need no worker that is not there, and no feed that is gone, but for those
    that are waited for while workers are `returning`."""
    if plan is not None:
        assert plan.nodes <= nodes, "a plan uses a node that is gone"
        assert plan.start <= done, "a plan went back"
        assert not (plan.running and plan.away), "a plan runs without its workers"
        assert not plan.running or plan.steps.keys() == set(range(done - plan.start, plan.issued))
    known = list(copies)
    whole = any(copy.whole for copy in known)
    for copy in known:
        assert copy.whole or (copy.recoverable and (returning or not whole)), "a copy that nobody can give back"
        assert copy.value >= held_from, "the feeds after a copy are gone"
        assert set().union(*copy.holders.values()) <= nodes | {CLIENT}
