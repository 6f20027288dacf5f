"""Two coordinators and three voting members on a network that is cut in any way, with disks and a clock of their own.

Only the pure machines run here: `coordinator/standby/state.py` and `wire/standby/voter.py`.  A node may die between any
two actions; what it kept is there when it is back.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.standby import events as ev
from coordinator.standby.state import StandbyState, StandbyTimes
from wire.standby.configuration import Ballot, Record
from wire.standby.voter import Keep, Say, Voter

from ..commit_log import Appended, Began, History, wrong_in

COORDINATORS = ("first", "second")
MEMBERS = ("ann", "bob", "cay")
NODES = COORDINATORS + MEMBERS
LEASE_S = 1.0  # a member hears its coordinator for so long after its last word
CHAOS_S = 25.0
CALM_S = 60.0  # within which somebody serves again, once nothing is broken any more
DELAY_S = (0.001, 0.02)
DISK_S = (0.001, 0.03)
TICK_S = 0.1


def partitions(nodes: Sequence[str]) -> Iterator[list[list[str]]]:
    """Every way to cut the nodes into groups: 52 for five nodes."""
    if not nodes:
        yield []
        return
    first, rest = nodes[0], nodes[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [first, *group], *groups[at + 1 :]]


PARTITIONS = tuple(partitions(NODES))


class Died(Exception):
    """The node is killed between two actions."""


@dataclass(slots=True)
class Node:
    """What outlives a node's process, and a number that grows with each of its lives."""

    name: str
    record: Record = field(default_factory=Record)
    log: list[int] = field(default_factory=list)
    life: int = 0
    up: bool = False


@dataclass(slots=True)
class Member(Node):
    """A worker that votes."""

    voter: Voter = field(init=False)
    owner: str = ""
    heard_s: float = -100.0


@dataclass(slots=True)
class Coordinator(Node):
    """A coordinator with a disk that does one write after another."""

    state: StandbyState = field(init=False)
    waiting: dict[int, tuple[int, float]] = field(default_factory=dict)  # value and time by place
    ballot: Ballot = field(default_factory=Ballot)
    disk_free_s: float = 0.0
    writes: int = 0  # grows when those under way are of no use any more
    pending: int = 0  # entries that are being written


class StandbySimulation:
    """One seed; `run` raises AssertionError for what must not be.  `mortal` nodes die between actions, too."""

    machine: type[StandbyState] = StandbyState
    voting: type[Voter] = Voter

    def __init__(self, seed: int, arbiters: Sequence[str] = MEMBERS) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.history = History()
        self.story: list[str] = []
        self.served = 0
        self._arbiters = frozenset(arbiters)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._values = itertools.count(1)
        self._groups = dict.fromkeys(NODES, 0)
        self._cut: set[tuple[str, str]] = set()
        self._loss = 0.0
        self._deadly = 0.0
        self.nodes: dict[str, Any] = {name: Coordinator(name) for name in COORDINATORS}
        self.nodes |= {name: Member(name) for name in MEMBERS}

    # -- the story of a seed

    def run(self) -> None:
        try:
            for name in NODES:
                self._start(name)
            self._every(TICK_S, self._tick_all)
            self._every(0.15, self._append)
            self._until(4.0)
            self._chaos()
            self._settle()
            wrong = wrong_in(self.history)
            assert not wrong, wrong
        except AssertionError as error:
            error.add_note(f"seed {self.seed}\n" + "\n".join(self.story))
            raise

    def _chaos(self) -> None:
        rng = self.rng
        self._loss, self._deadly = rng.choice((0.0, 0.05, 0.2)), rng.choice((0.0, 0.0, 0.01))
        self._divide(PARTITIONS[self.seed % len(PARTITIONS)])
        while self.now < CHAOS_S:
            self._until(self.now + rng.choice((rng.uniform(0, 0.2), rng.uniform(0, 5.0))))
            rng.choice(
                (self._divide_somehow, self._heal, self._crash, self._crash, self._cut_one_way, self._name_others)
            )()
            wrong = wrong_in(self.history)
            assert not wrong, wrong

    def _settle(self) -> None:
        self._loss = self._deadly = 0.0
        self._heal()
        for name in NODES:
            if not self.nodes[name].up:
                self._start(name)
        acknowledged, until_s = len(self.history.appended), self.now + CALM_S
        while len(self.history.appended) < acknowledged + 3:
            assert self.now < until_s, "nobody serves although nothing is broken"
            self._until(self.now + 0.5)
        self._until(self.now + 5.0)
        serving = [name for name in COORDINATORS if self.nodes[name].state.serving]
        assert len(serving) == 1, f"{serving} serve"

    # -- faults

    def _divide_somehow(self) -> None:
        self._divide(self.rng.choice(PARTITIONS))

    def _divide(self, groups: Sequence[Sequence[str]]) -> None:
        self._tell(f"the network is cut: {' | '.join('+'.join(group) for group in groups)}")
        self._groups = {name: number for number, group in enumerate(groups) for name in group}

    def _heal(self) -> None:
        self._tell("the network is whole")
        self._groups = dict.fromkeys(NODES, 0)
        self._cut.clear()

    def _cut_one_way(self) -> None:
        here, there = self.rng.sample(NODES, 2)
        self._tell(f"{here} no longer reaches {there}")
        self._cut.add((here, there))

    def _crash(self) -> None:
        self._kill(self.rng.choice([*NODES, *COORDINATORS]))

    def _name_others(self) -> None:
        """Other members vote from now on, perhaps those on the other side of a cut; none, where none did."""
        if not self._arbiters:
            return
        others = [name for name in MEMBERS if name not in self._arbiters]
        if others and self.rng.random() < 0.5:
            here, there = self.rng.sample(COORDINATORS, 2)
            self._divide([[here, *others], [there, *self._arbiters]])
        else:
            others = self.rng.sample(MEMBERS, self.rng.randint(1, len(MEMBERS)))
        self._arbiters = frozenset(others)
        self._tell(f"{sorted(self._arbiters)} vote")
        for name in COORDINATORS:
            self._feed(name, ev.Named(self._arbiters))

    def _kill(self, name: str) -> None:
        node = self.nodes[name]
        if not node.up:
            return
        self._tell(f"{name} dies")
        node.up = False
        node.life += 1
        self._after(self.rng.choice((0.05, 0.5, self.rng.uniform(0, 6.0))), lambda: self._start(name))

    # -- nodes

    def _start(self, name: str) -> None:
        node = self.nodes[name]
        if node.up:
            return
        node.up = True
        node.life += 1
        self._tell(f"{name} starts")
        if isinstance(node, Member):
            node.voter, node.owner = self.voting(name, self._remembered(node)), ""
            return
        node.waiting.clear()
        node.writes += 1
        node.pending = 0
        node.state = self.machine(name, COORDINATORS, node.record, self.now, node.life << 20, StandbyTimes())
        node.state.voter = self.voting(name, node.record)
        self._feed(name, ev.Named(self._arbiters))
        if name == COORDINATORS[0]:
            self._feed(name, ev.Begin())

    def _remembered(self, node: Node) -> Record:
        return node.record

    def _feed(self, name: str, event: ev.Event) -> None:
        node = self.nodes[name]
        if not node.up:
            return
        try:
            for action in node.state.handle(event, self.now):
                if self.rng.random() < self._deadly:
                    raise Died
                self._perform(node, action)
        except Died:
            self._kill(name)

    def _perform(self, node: Coordinator, action: ev.Action) -> None:
        match action:
            case Keep(record):
                node.record = record
            case Say(to, message):
                self._send(node.name, to, message)
            case ev.Send(to, message):
                values = self._values_of(node, message) if isinstance(message, ev.Entries) else ()
                self._send(node.name, to, message, values)
            case ev.Acknowledge(last):
                self._acknowledged(node, last)
            case ev.Serve(ballot):
                self._serves(node, ballot)
            case ev.StepDown(why):
                self._tell(f"{node.name} steps down: {why}")
                node.waiting.clear()
                node.writes += 1
                node.pending = 0
            case ev.Write():
                raise AssertionError("written where it arrives")

    def _serves(self, node: Coordinator, ballot: Ballot) -> None:
        self._tell(f"{node.name} serves by {ballot} with {len(node.log)} entries")
        self.served += 1
        node.ballot = ballot
        node.writes += 1
        node.pending = 0
        node.waiting.clear()
        self.history.began.append(Began(ballot, tuple(node.log)))
        self._after(0.0, lambda: self._feed(node.name, ev.Wrote(len(node.log))), node)

    def _acknowledged(self, node: Coordinator, last: int) -> None:
        for place in [place for place in node.waiting if place <= last]:
            value, asked_s = node.waiting.pop(place)
            self.history.appended.append(Appended(value, place, node.ballot, asked_s, self.now))

    # -- entries

    def _append(self) -> None:
        """A client appends at whoever says that it serves."""
        for name in COORDINATORS:
            node = self.nodes[name]
            if not node.up or not node.state.serving:
                continue
            value, asked_s, writes = next(self._values), self.now, node.writes

            def wrote(
                name: str = name, node: Any = node, value: int = value, asked_s: float = asked_s, writes: int = writes
            ) -> None:
                if node.writes != writes:
                    return
                node.log.append(value)
                node.waiting[len(node.log)] = value, asked_s
                self._feed(name, ev.Wrote(len(node.log)))

            self._to_disk(node, wrote)

    def _values_of(self, node: Coordinator, message: ev.Entries) -> tuple[int, ...]:
        return tuple(node.log[max(message.first - 1, 0) : message.last])

    def _got(self, name: str, message: ev.Entries, values: tuple[int, ...]) -> None:
        """What is to be written is written while the standby decides other things."""
        node = self.nodes[name]
        for action in node.state.handle(message, self.now):
            if isinstance(action, ev.Write):
                self._write(node, message, values)
            else:
                self._perform(node, action)

    def _write(self, node: Coordinator, message: ev.Entries, values: tuple[int, ...]) -> None:
        writes = node.writes

        def wrote() -> None:
            if node.writes != writes:
                return
            node.log[:] = values if message.whole else [*node.log[: message.first - 1], *values]
            self._feed(node.name, ev.Stored(message.stream, message.last))

        self._to_disk(node, wrote)

    def _to_disk(self, node: Coordinator, then: Callable[[], None]) -> None:
        node.disk_free_s = max(node.disk_free_s, self.now) + self.rng.uniform(*DISK_S)
        self._after(node.disk_free_s - self.now, then, node)

    # -- members, messages, time

    def _tick_all(self) -> None:
        for name in COORDINATORS:
            self._feed(name, ev.Tick())
            if self.nodes[name].up and self.nodes[name].state.serving:
                for member in MEMBERS:
                    self._send(name, member, "beat")

    def _send(self, sender: str, to: str, message: Any, values: tuple[int, ...] = ()) -> None:
        for _ in range(2 if self._loss and self.rng.random() < 0.05 else 1):
            linked = self._groups[sender] == self._groups[to] and (sender, to) not in self._cut
            if linked and self.rng.random() >= self._loss:
                wait_s = self.rng.uniform(*DELAY_S) * (40 if self.rng.random() < self._loss / 4 else 1)
                self._after(wait_s, lambda: self._deliver(sender, to, message, values))

    def _deliver(self, sender: str, to: str, message: Any, values: tuple[int, ...]) -> None:
        node = self.nodes[to]
        if not node.up:
            return
        if isinstance(node, Member):
            self._deliver_to_member(node, sender, message)
        elif isinstance(message, ev.Entries):
            self._got(to, message, values)
        else:
            self._feed(to, message)

    def _deliver_to_member(self, node: Member, sender: str, message: Any) -> None:
        heard = self.now - node.heard_s < LEASE_S
        if message == "beat":
            if node.owner == sender or not heard:
                node.owner, node.heard_s = sender, self.now
            return
        for action in node.voter.asked(message, node.owner if heard else ""):
            if isinstance(action, Keep):
                node.record = action.record
            if self.rng.random() < self._deadly:
                self._kill(node.name)
                return
            if isinstance(action, Say):
                self._send(node.name, action.node, action.message)

    def _after(self, wait_s: float, then: Callable[[], None], node: Node | None = None) -> None:
        life = node.life if node is not None else 0

        def unless_dead() -> None:
            if node is None or node.life == life:
                then()

        heapq.heappush(self._queue, (self.now + wait_s, next(self._count), unless_dead))

    def _every(self, wait_s: float, then: Callable[[], None]) -> None:
        def again() -> None:
            then()
            self._after(wait_s * self.rng.uniform(0.8, 1.2), again)

        self._after(wait_s, again)

    def _until(self, at_s: float) -> None:
        while self._queue and self._queue[0][0] <= at_s:
            self.now, _, then = heapq.heappop(self._queue)
            then()
        self.now = at_s

    def _tell(self, text: str) -> None:
        self.story.append(f"{self.now:8.3f} {text}")
