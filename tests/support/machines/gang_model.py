"""Several workers' machines, joined by messages that take any time, and devices on which the parts of a gang end only
when all of them run.  What is not decided by the machines is decided by chance, so a seed is a timing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from wire.errors import Cancelled
from wire.protocol.messages import Deploy, PartSpec, PlanKey, Source, SourceKind, Target
from worker.state import events as ev
from worker.state.worker_state import WorkerState

COORD, EPOCH = "coord", 7
GRAPH = b"g" * 32
TENSOR = ev.Inline("f32", (2,), b"12345678")
Place = tuple[str, int]  # worker, device
Run = tuple[PlanKey, int, int]  # plan, step, part
Event = tuple[str, ev.Event]  # of a worker


@dataclass(frozen=True, slots=True)
class Unit:
    """Parts that run at the same time, one per place; all get what each of `sources` (earlier units) makes."""

    places: tuple[Place, ...]
    sources: tuple[int, ...] = ()


@dataclass(slots=True)
class Mesh:
    """`plans` are units in an order in which they can run; those in `free` are not ordered."""

    chance: random.Random
    plans: dict[PlanKey, tuple[Unit, ...]]
    free: frozenset[PlanKey] = frozenset()
    devices: int = 2
    workers: dict[str, WorkerState] = field(default_factory=dict)
    ran: set[tuple[PlanKey, int, str]] = field(default_factory=set)
    began: dict[Place, list[Run]] = field(default_factory=dict)  # what each device ran, in order
    _pending: list[Event] = field(default_factory=list)  # may happen now, in any order
    _wires: dict[str, deque[Event]] = field(default_factory=dict)  # coordinator to worker, in order
    _running: dict[tuple[str, int], Run] = field(default_factory=dict)
    _made: dict[tuple[str, int], ev.PartOutput] = field(default_factory=dict)
    _began: set[Run] = field(default_factory=set)
    _requests: int = 0

    def __post_init__(self) -> None:
        names = sorted({node for units in self.plans.values() for unit in units for node, _ in unit.places})
        for node in names:
            self.workers[node] = WorkerState(node, self.devices)
            self._wires[node] = deque()
            self._tell(node, ev.JoinRequested(COORD, self._request(), COORD, EPOCH, 0.1, 0.0))
        for key in self.plans:
            for node in self.nodes(key):
                self._tell(node, ev.DeployRequested(COORD, self._request(), self._deploy(key, node)))

    def nodes(self, key: PlanKey) -> list[str]:
        return sorted({node for unit in self.plans[key] for node, _ in unit.places})

    def run(self, key: PlanKey, step: int) -> None:
        """As the coordinator does it: the Runs of one step to all its workers, before those of the next."""
        for node in self.nodes(key):
            self._send(node, ev.RunRequested(COORD, self._request(), key, step, ()))

    def cancel(self, key: PlanKey, step: int) -> None:
        for node in self.nodes(key):
            self._send(node, ev.CancelRequested(COORD, key, step))

    def drop(self, key: PlanKey) -> None:
        for node in self.nodes(key):
            self._send(node, ev.DropRequested(COORD, self._request(), key))

    def kill(self, node: str) -> None:
        """A worker is gone; the coordinator drops every plan that used it."""
        del self.workers[node]
        self._running = {at: run for at, run in self._running.items() if at[0] != node}
        for key in self.plans:
            if node in self.nodes(key):
                self.drop(key)

    def settle(self) -> None:
        """Everything that can happen, in an order by chance."""
        while self._happen():
            pass

    def settle_some(self) -> None:
        """Some of it."""
        for _ in range(self.chance.randint(0, 30)):
            self._happen()

    def waiting(self) -> list[str]:
        """The workers that did not finish everything they were asked for."""
        return [node for node, worker in self.workers.items() if worker.queue_depth or worker.used()]

    # -- how things happen

    def _happen(self) -> bool:
        """One thing that can happen now, if there is any."""
        choices: list[Callable[[], object]] = [partial(self._next_of, wire) for wire in self._wires.values() if wire]
        choices += [partial(self._do, event) for event in self._pending]
        choices += [partial(self._end, *at) for at, run in self._running.items() if self._together(run)]
        if choices:
            self.chance.choice(choices)()
        return bool(choices)

    def _next_of(self, wire: deque[Event]) -> None:
        self._tell(*wire.popleft())

    def _do(self, event: Event) -> None:
        self._pending.remove(event)
        self._tell(*event)

    def _together(self, run: Run) -> bool:
        """Whether all parts of its gang run or did: then it can end."""
        return all((*run[:2], part) in self._began for part in self._gang(run))

    def _gang(self, run: Run) -> range:
        first = 0
        for unit in self.plans[run[0]]:
            if run[2] < first + len(unit.places):
                return range(first, first + len(unit.places))
            first += len(unit.places)
        raise AssertionError("no such part")

    def _end(self, node: str, number: int) -> None:
        del self._running[node, number]
        self._tell(node, ev.PartExecuted(number, (self._made[node, number],), 0.0))

    def _send(self, node: str, event: ev.Event) -> None:
        self._wires[node].append((node, event))

    def _tell(self, node: str, event: ev.Event) -> None:
        worker = self.workers.get(node)
        if worker is None:
            return
        actions = worker.handle(event, 0.0)
        worker.validate()
        for action in actions:
            self._perform(node, action)

    def _perform(self, node: str, action: ev.Action) -> None:
        match action:
            case ev.LinkTo(other):
                self._tell(node, ev.NodeLinked(other))
            case ev.Prepare(_, prepared):
                self._tell(node, ev.PartPrepared(prepared, 0.0, False))
            case ev.Execute(device, number, _, _, (wish,)):
                run = next(each for each in self.workers[node].running if self._at(each) == (node, device))
                self._running[node, number] = run
                self._began.add(run)
                kept = ev.DeviceTensor("f32", (2,), device, wish.keep) if wish.keep else None
                self._made[node, number] = ev.PartOutput(inline=TENSOR, kept=kept)
                self.began.setdefault((node, device), []).append(run)
            case ev.StopRun(_, number):
                if self._running.pop((node, number), None) is not None:
                    self._pending.append((node, ev.ExecuteFailed(number, Cancelled("stopped"))))
            case ev.SendPush(push, other, key, step, part, slot, tensor):
                self._pending.append((other, ev.TensorArrived(node, key, step, part, slot, tensor)))
                self._pending.append((node, ev.PushSent(push)))
            case ev.ReplyRan(_, _, key, step):
                self.ran.add((key, step, node))

    # -- what is deployed

    def _at(self, run: Run) -> Place:
        places = [place for unit in self.plans[run[0]] for place in unit.places]
        return places[run[2]]

    def _deploy(self, key: PlanKey, node: str) -> Deploy:
        units = self.plans[key]
        firsts = [sum(len(unit.places) for unit in units[:index]) for index in range(len(units))]
        readers: dict[int, list[Target]] = {}
        for unit, first in zip(units, firsts, strict=True):
            for slot, source in enumerate(unit.sources):
                targets = [Target(place[0], first + at, slot) for at, place in enumerate(unit.places)]
                readers.setdefault(firsts[source], []).extend(targets)
        parts = []
        for unit, first in zip(units, firsts, strict=True):
            sources = tuple(
                Source(SourceKind.EDGE, firsts[each], 0, node=units[each].places[0][0]) for each in unit.sources
            )
            for at, (worker, device) in enumerate(unit.places):
                if worker == node:
                    targets = tuple(readers.get(first + at, ()))
                    parts.append(PartSpec(first + at, device, GRAPH, sources, (targets,)))
        peers = dict.fromkeys(self.nodes(key), ("127.0.0.1:1",))
        return Deploy(key, tuple(parts), {GRAPH: b"encoded"}, (), peers, ordered=key not in self.free)

    def _request(self) -> int:
        self._requests += 1
        return self._requests
