"""What a session's machine acts on, without processes: workers that carry pieces, lose them, die and come back.

A piece's value is known by the steps that made it, and its address says which.  Whatever the machine does with a value
that is not there, or is another one, is a failure.  Answers come in any order, by the seed.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from coordinator.planning.model.profiles import CLIENT
from coordinator.planning.redundancy.parity_groups import HeldContent, grouped
from coordinator.sessions import events as ev
from coordinator.sessions.state import Policy, SessionState
from wire.errors import BlobMissing, MeshError, NodeLost, StaleGeneration
from wire.policy.redundancy import copies_of
from wire.timeouts import DEFAULT_TIMEOUTS

PIECES = ("embedding", "head")


def address(piece: Any, value: int) -> bytes:
    return f"{piece}@{value}".encode()


def _value(blob: bytes) -> int:
    return int(blob.decode().split("@")[1])


def _unanswered(answer: ev.Event) -> list[ev.Event]:
    """What is told instead of an answer where the link ends before it."""
    gone = NodeLost("the link ended")
    match answer:
        case ev.NodeRan(generation, step, node) | ev.RunFailed(generation, step, node):
            return [ev.RunFailed(generation, step, node, gone)]
        case ev.DeployDone(generation, node) | ev.DeployFailed(generation, node):
            return [ev.DeployFailed(generation, node, gone)]
        case ev.SnapshotTaken(copy, node) | ev.CopyStored(copy, node) | ev.CopyFailed(copy, node):
            return [ev.CopyFailed(copy, node, gone)]
    return []


@dataclass
class Deployed:
    """A plan as its workers have it."""

    start: int
    owners: dict[Any, frozenset[str]] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    values: dict[str, int] = field(default_factory=dict)  # by node: what it has come to
    oldest: dict[str, int] = field(default_factory=dict)  # by node: the oldest value that it has still


@dataclass
class World:
    """Run `step` until nothing waits any more; `told` is what the caller heard, by number."""

    seed: int
    policy: Policy = field(default_factory=Policy)
    names: tuple[str, ...] = ("a", "b", "c")
    together: bool = False  # every plan has all pieces on one worker
    replicas: bool = False  # every worker of a plan has every piece
    cut: frozenset[str] = frozenset()  # workers that cannot fetch from each other
    roomless: bool = False  # by every plan workers have no room for each other's copies

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.alive = set(self.names)
        self.numbers = itertools.count(1)
        self.machine = SessionState(self.policy, self.alive, lambda: next(self.numbers), DEFAULT_TIMEOUTS)
        self.plans: dict[int, Deployed] = {}
        self.kept: dict[tuple[int, str], dict[Any, bytes]] = {}
        self.snapped: dict[tuple[int, str], dict[Any, set[bytes]]] = {}  # by plan: until that is dropped
        self.checked: dict[int, tuple[ev.Checked, ...]] = {}
        self.begins: dict[int, tuple[ev.Contents | None, ev.Holders]] = {}
        self.waiting: list[ev.Event] = []  # answers on their way
        self.told: dict[int, Any] = {}
        self.rejected: dict[int, MeshError] = {}
        self.states: dict[int, Any] = {}
        self.feeds_from = 0
        self.claimed: list[int] = []
        self.ended: list[MeshError | None] = []
        self.runs = 0
        self.manifest = self.machine.manifest  # as it was written down last
        self.recorded = self.machine.recorded
        self.perform(self.machine.begin(self.now))

    # -- what a test does

    def feed(self, event: ev.Event) -> None:
        actions = self.machine.handle(event, self.now)
        if self.recorded != self.machine.recorded:
            self.manifest, self.recorded = self.machine.manifest, self.machine.recorded
        self.perform(actions)
        self.machine.validate()

    def hear(self, steps: int) -> None:
        """The client says that it has the answers of so many steps."""
        self.feed(ev.AnswersHeard(steps))

    def restart(self, told: int, dead: str = "") -> None:
        """The coordinator dies with all that is on its way to it, and another one goes on: the client has the answers
        of `told` steps, and asks for the others anew.  A worker may die with it, and come back with nothing."""
        asked = self.machine.next_number
        self.told = {number: answer for number, answer in self.told.items() if number < told}
        self.waiting, self.rejected = [], {}
        for key in [key for key in self.kept if key[1] == CLIENT]:
            del self.kept[key]
        self.machine = SessionState.restored(
            self.manifest, told, self.policy, (), lambda: next(self.numbers), DEFAULT_TIMEOUTS
        )
        assert self.manifest.first_feed(told) >= self.feeds_from, "the client let feeds go that are needed"
        self.perform(self.machine.begin(self.now))
        self.machine.validate()
        for _ in range(told, asked):
            self.ask()
        self._all_come_back(dead)

    def restart_alone(self, dead: str = "") -> None:
        """The coordinator and the client die, and another client claims the session."""
        self.waiting, self.rejected = [], {}
        for key in [key for key in self.kept if key[1] == CLIENT]:
            del self.kept[key]
        self.machine = SessionState.restored(
            self.manifest, None, self.policy, (), lambda: next(self.numbers), DEFAULT_TIMEOUTS
        )
        self.told, self.feeds_from = {}, self.machine.held_from
        self.perform(self.machine.begin(self.now))
        self.machine.validate()
        self.feed(ev.ClaimRequested())
        self._all_come_back(dead)

    def _all_come_back(self, dead: str) -> None:
        for name in self.random.sample(sorted(self.alive), len(self.alive)):
            self.alive.discard(name)
        for name in self.names:
            if name == dead:
                for key in [key for key in [*self.kept, *self.snapped] if key[1] == name]:
                    self.kept.pop(key, None)
                    self.snapped.pop(key, None)
            if not self.ended:
                self.come_back(name, name == dead)

    def ask(self) -> int:
        number = self.machine.next_number
        self.feed(ev.StepRequested())
        return number

    def do(self, steps: int) -> None:
        """Ask for so many steps, and see them done."""
        for _ in range(steps):
            self.ask()
        self.settle()

    @property
    def owner(self) -> str:
        """Of a plan that has come to something: the one worker that has all."""
        (owner,) = next(plan.nodes for plan in self.plans.values() if plan.values)
        return owner

    def kill(self, name: str) -> None:
        self.alive.discard(name)
        for key in [key for key in self.kept if key[1] == name]:
            del self.kept[key]
        for key in [key for key in self.snapped if key[1] == name]:
            del self.snapped[key]
        for plan in self.plans.values():
            plan.values.pop(name, None)
        self.feed(ev.NodesChanged(frozenset(self.alive), NodeLost(f"{name} died", node=name)))

    def start(self, name: str) -> None:
        self.alive.add(name)
        self.feed(ev.NodesChanged(frozenset(self.alive)))

    def cut_off(self, name: str) -> None:
        """The link to a worker ends, and it lives: of what was on its way some arrives before, the rest never does."""
        for answer in [each for each in self.waiting if getattr(each, "node", "") == name]:
            self.waiting.remove(answer)
            if self.random.random() < 0.5:
                self.feed(answer)
                continue
            if isinstance(answer, ev.NodeRan) and self.random.random() < 0.5:  # nor does it end what it did
                plan = self.plans[answer.generation]
                if name in plan.values:
                    plan.values[name] = min(plan.values[name], plan.start + answer.step)
            self.waiting += _unanswered(answer)
        self.alive.discard(name)
        away = frozenset({name})
        self.feed(ev.NodesChanged(frozenset(self.alive), NodeLost("its link ended", node=name), away))

    def come_back(self, name: str, died: bool = False) -> None:
        """It joins again, and drops what the session does not need; one that `died` has nothing."""
        wanted = frozenset() if died else self.machine.kept
        for number in [number for number, plan in self.plans.items() if number not in wanted]:
            self.plans[number].values.pop(name, None)
            self.snapped.pop((number, name), None)
        for key in [key for key in self.kept if key[1] == name and key[0] not in wanted]:
            del self.kept[key]
        here = {number for number, plan in self.plans.items() if name in plan.values}
        here |= {number for number, node in self.kept if node == name}
        self.alive.add(name)
        self.feed(ev.NodesChanged(frozenset(self.alive)))
        made = {number: self.plans[number].values[name] - self.plans[number].start for number in here & {*self.plans}}
        self.feed(ev.NodeReturned(name, frozenset(here), made))

    def deliver(self) -> bool:
        """One answer arrives, if one is on its way; no time passes."""
        return self.step() if self.waiting else False

    def lose_values(self, name: str) -> None:
        """A worker's engine host dies: its plans are gone, and it lives."""
        for plan in self.plans.values():
            plan.values.pop(name, None)

    def step(self) -> bool:
        """One answer arrives, or time passes; False if nothing waits."""
        if self.waiting:
            self.feed(self.waiting.pop(self.random.randrange(len(self.waiting))))
            return True
        due = self.machine.next_deadline()
        if due is None:
            return False
        self.now = max(self.now, due)
        self.feed(ev.Tick())
        return True

    def settle(self) -> None:
        for _ in range(20_000):
            if not self.step():
                return
        raise AssertionError("it never comes to rest")

    # -- what the machine does

    def perform(self, actions: list[Any]) -> None:
        for action in actions:
            getattr(self, f"_{type(action).__name__}")(action)

    def _MakePlan(self, action: ev.MakePlan) -> None:
        value = self._value_of(action.job.contents)
        assert value >= self.feeds_from, "the feeds that this plan needs are gone"
        plan = self.plans[action.generation] = Deployed(value)
        count = 1 if self.together else self.random.randint(1, len(action.nodes))
        plan.nodes = frozenset(self.random.sample(sorted(action.nodes), count))
        places = sorted(plan.nodes)
        owners = {
            piece: plan.nodes if self.replicas else frozenset({places[index % len(places)]})
            for index, piece in enumerate(PIECES)
        }
        plan.owners = owners
        self.begins[action.generation] = action.job.contents, action.job.holders
        self.waiting.append(ev.PlanMade(action.generation, plan.nodes, 1, owners=owners, roomless=self.roomless))

    def _SendDeploy(self, action: ev.SendDeploy) -> None:
        plan = self.plans[action.generation]
        assert action.node in self.alive
        contents, holders = self.begins[action.generation]
        mine = [piece for piece, nodes in plan.owners.items() if action.node in nodes]
        if contents is not None and not all(
            self._has(piece, contents[piece], self._reached(action.node, holders[piece]))
            or self._makes(piece, contents[piece])
            for piece in mine
        ):
            self.waiting.append(ev.DeployFailed(action.generation, action.node, BlobMissing("no holder has it")))
            return
        plan.values[action.node] = plan.start
        self.waiting.append(ev.DeployDone(action.generation, action.node))

    def _SendRun(self, action: ev.SendRun) -> None:
        plan = self.plans[action.generation]
        assert action.number >= self.feeds_from
        assert plan.start + action.step == action.number
        assert action.step - action.committed < self.policy.ahead, "a worker holds more values than it has room for"
        assert action.node in self.alive
        if action.node not in plan.values:
            error = StaleGeneration("that plan is not here")
            self.waiting.append(ev.RunFailed(action.generation, action.step, action.node, error))
            return
        self.runs += 1
        plan.oldest[action.node] = plan.start + action.committed
        plan.values[action.node] = max(plan.values[action.node], action.number + 1)
        answers: list[ev.Event] = [ev.NodeRan(action.generation, action.step, action.node)]
        if action.node == min(plan.nodes):
            answers.append(ev.OutputArrived(action.generation, action.step, 0, action.number))
        self.waiting += answers

    def _SendCancel(self, action: ev.SendCancel) -> None:
        """It comes too late, or ends the step, and all after it."""
        assert action.node in self.alive
        plan, value = self.plans[action.generation], self.plans[action.generation].start + action.step
        if plan.values.get(action.node, -1) > value and self.random.random() < 0.5:
            plan.values[action.node] = value
            mine = (action.generation, action.node)
            self.waiting = [
                each
                for each in self.waiting
                if not (
                    isinstance(each, ev.NodeRan) and (each.generation, each.node) == mine and each.step >= action.step
                )
            ]

    def _ReportStuckStep(self, action: ev.ReportStuckStep) -> None:
        return

    def _TakeSnapshot(self, action: ev.TakeSnapshot) -> None:
        plan = self.plans[action.generation]
        value = plan.start + action.step + 1
        if not plan.oldest.get(action.node, plan.start) <= value <= plan.values.get(action.node, -1):
            error = BlobMissing("that value is not here")
            self.waiting.append(ev.CopyFailed(action.copy, action.node, error))
            return
        contents = {piece: address(piece, value) for piece, nodes in plan.owners.items() if action.node in nodes}
        snapped = self.snapped.setdefault((action.generation, action.node), {})
        for piece, blob in contents.items():
            snapped.setdefault(piece, set()).add(blob)
        self.waiting.append(ev.SnapshotTaken(action.copy, action.node, contents))

    def _MakeChecks(self, action: ev.MakeChecks) -> None:
        """Who died meanwhile made none."""
        held = [HeldContent(piece, 1, frozenset({node})) for piece, node in action.owners.items()]
        found = []
        for group in grouped(held, action.nodes, copies_of(self.policy.copies)):
            pieces = tuple(each.content for each in group.members)
            blob = b"+".join(action.contents[piece] for piece in pieces)
            found.append(ev.Checked(pieces, 1, tuple((keeper, blob) for keeper in group.keepers)))
        involved = {*action.owners.values(), *(node for each in found for node, _ in each.checks)}
        ways = [(node, action.owners[piece]) for each in found for node, _ in each.checks for piece in each.pieces]
        if not involved <= self.alive or not all(self._reached(node, frozenset({owner})) for node, owner in ways):
            self.waiting.append(ev.ChecksFailed(action.copy, NodeLost("it is gone")))
            return
        self.checked[action.copy] = tuple(found)
        self.waiting.append(ev.ChecksMade(action.copy, tuple(found)))

    def _makes(self, piece: Any, blob: bytes) -> bool:
        """Whether enough is kept to make a piece again."""
        for copy, groups in self.checked.items():
            for group in groups:
                there = sum(
                    self._has(each, address(each, _value(blob)), frozenset(self.alive)) for each in group.pieces
                )
                for node, check in group.checks:
                    there += self.kept.get((copy, node), {}).get(ev.Check(check, 1)) == check
                if piece in group.pieces and blob in group.checks[0][1].split(b"+") and there >= len(group.pieces):
                    return True
        return False

    def _StoreCopy(self, action: ev.StoreCopy) -> None:
        assert action.node in self.alive | {CLIENT}
        pieces = {piece: blob for piece, blob in action.contents.items() if not isinstance(piece, ev.Check)}
        if pieces:
            self._value_of(pieces)
        reached = {piece: self._reached(action.node, nodes) for piece, nodes in action.holders.items()}
        if not all(
            self._has(piece, blob, reached[piece]) or (action.node == CLIENT and self._makes(piece, blob))
            for piece, blob in pieces.items()
        ):
            self.waiting.append(ev.CopyFailed(action.copy, action.node, BlobMissing("no holder has it")))
            return
        self.kept.setdefault((action.copy, action.node), {}).update(action.contents)
        self.waiting.append(ev.CopyStored(action.copy, action.node))

    def _ReleaseCopy(self, action: ev.ReleaseCopy) -> None:
        self.kept.pop((action.copy, action.node), None)

    def _SendDrop(self, action: ev.SendDrop) -> None:
        assert action.node in self.alive
        self.plans[action.generation].values.pop(action.node, None)
        self.snapped.pop((action.generation, action.node), None)

    def _ForgetPlan(self, action: ev.ForgetPlan) -> None:
        return

    def _ForgetFeeds(self, action: ev.ForgetFeeds) -> None:
        assert action.below > self.feeds_from
        self.feeds_from = action.below

    def _Resolve(self, action: ev.Resolve) -> None:
        assert action.number not in self.told and action.outputs == {0: action.number}
        assert not self.told or action.number == max(self.told) + 1, "told out of order"
        self.told[action.number] = action.outputs[0]

    def _Reject(self, action: ev.Reject) -> None:
        self.rejected[action.number] = action.error

    def _Claimed(self, action: ev.Claimed) -> None:
        """Whoever goes on has no feed of the steps before."""
        self.claimed.append(action.steps)
        self.told = {number: number for number in range(action.steps)}

    def _DeliverState(self, action: ev.DeliverState) -> None:
        assert action.contents is None or all(CLIENT in nodes for nodes in action.holders.values())
        self.states[action.request] = self._value_of(action.contents)

    def _RejectState(self, action: ev.RejectState) -> None:
        self.states[action.request] = action.error

    def _EndSession(self, action: ev.EndSession) -> None:
        self.ended.append(action.error)

    def _reached(self, node: str, holders: frozenset[str]) -> frozenset[str]:
        """Whom of these a node can fetch from."""
        return holders - (self.cut - {node} if node in self.cut else set())

    def _has(self, piece: Any, blob: bytes, holders: frozenset[str]) -> bool:
        snapped = (blobs.get(piece, set()) for key, blobs in self.snapped.items() if key[1] in holders)
        kept = (pieces.get(piece) for key, pieces in self.kept.items() if key[1] in holders)
        return blob in kept or any(blob in blobs for blobs in snapped)

    def _value_of(self, contents: ev.Contents | None) -> int:
        if contents is None:
            return 0
        values = {int(blob.decode().split("@")[1]) for blob in contents.values()}
        assert len(values) == 1, "pieces of two values"
        assert all(blob == address(piece, int(blob.decode().split("@")[1])) for piece, blob in contents.items())
        return values.pop()
