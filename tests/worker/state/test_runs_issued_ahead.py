"""Hosts that are told of a part while they do another: whatever happens, nothing is lost, kept or read too early."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace as with_fields
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    ME,
    TO_COORD,
    WEIGHT_IN,
    Driver,
    deploy,
    edge,
    part,
    weight,
)

from wire.errors import BlobMissing, Cancelled, ConnectFailed, DeviceLost, ExecuteFailed, MeshError
from wire.protocol.messages import Carry, Deploy, PartSpec, PlanKey, Target
from worker.state import events as ev

STATE, FEED = WEIGHT_IN, CALL_INPUT
DEVICES = 2
EVENTS = 120
LONG_S = 700.0  # after which the loss of a host before is no longer counted


def carrying(spec: PartSpec, *carries: Carry) -> PartSpec:
    return with_fields(spec, carries=carries)


PARTS = (  # two on each device: what the first makes goes to the second, to the other device, and to the next step
    carrying(part(0, [STATE, FEED], [[], [Target(ME, 1, 1), Target(ME, 3, 1)]]), Carry(0, 0, 0)),
    carrying(part(1, [STATE, edge(0, 1)], [[], TO_COORD]), Carry(0, 1, 0)),
    carrying(part(2, [STATE, FEED], [[Target(ME, 3, 0)]], device=1), Carry(0, 2, 0), Carry(0, 3, 2)),
    part(3, [edge(2, 0), edge(0, 1), STATE], [[Target("", 1, 0)]], device=1),
)
CALL = (part(0, [FEED], [TO_COORD]), part(1, [FEED], [[Target("", 1, 0)]], device=1))


@dataclass(slots=True)
class Lane:
    """An engine host: what it was told and did not do yet, and what it keeps."""

    inbox: deque[ev.Action] = field(default_factory=deque)
    keeps: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)

    @property
    def runs(self) -> list[ev.Execute]:
        return [action for action in self.inbox if isinstance(action, ev.Execute)]

    def will_keep(self) -> set[int]:
        """What it has once it did all that it was told."""
        keeps = set(self.keeps)
        for action in self.inbox:
            if isinstance(action, ev.Execute):
                keeps |= {wish.keep for wish in action.outputs if wish.keep}
            keeps -= given_away(action)
        return keeps


def given_away(action: ev.Action) -> set[int]:
    """The kept tensors that are not there after it."""
    uses = [use.tensor for use in action.inputs if use.last] if isinstance(action, ev.Execute) else []
    tensors = [action.tensor] if isinstance(action, ev.Release) else uses
    return {tensor.tensor for tensor in tensors if isinstance(tensor, ev.DeviceTensor)}


class Model:
    """A worker, its hosts, which do what they are told in order, and a coordinator that wants anything."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.drive = Driver(devices=DEVICES)
        self.hosts = [Lane() for _ in range(DEVICES)]
        self.starting: set[int] = set()
        self.files: set[str] = set()  # that are ours and not yet taken
        self.asked: set[int] = set()
        self.answers: Counter[int] = Counter()
        self.steps: dict[int, tuple[PlanKey, int]] = {}  # of runs
        self.done: Counter[PlanKey] = Counter()
        self.next: Counter[PlanKey] = Counter()
        self.epoch, self.generation, self.made = 7, 0, 0
        self.ordered = self.chance.random() < 0.5
        self.failures = self.chance.choice((0.0, 0.05))
        self.plans: list[PlanKey] = []
        self.runs: dict[int, PlanKey] = {}  # that were asked for, by request
        self.broken: set[PlanKey] = set()  # plans of which a step was not done

    # -- the coordinator

    def ask(self) -> None:
        """It wants something."""
        if not self.plans or (len(self.plans) < 3 and self.chance.random() < 0.02):
            self.deploy()
            return
        key, what = self.chance.choice(self.plans), self.chance.random()
        if key in self.broken:
            self.drop(key)
            return
        plan = self.drive.machine._plans.get(key)
        if plan is not None and not plan.deployed:
            return
        if what < 0.86:
            step, committed = self.next[key], self.chance.randint(0, self.done[key])
            self.next[key] += 1
            feeds = tuple((number, 1 if self.carries(key) else 0, self.file()) for number in self.fed(key))
            self.runs[self.request()] = key
            self.see(self.drive(ev.RunRequested(COORD, self.drive.requests, key, step, feeds, committed)))
        elif what < 0.88:
            self.see(self.drive(ev.CancelRequested(COORD, key, self.chance.randint(0, self.next[key]))))
        elif what < 0.94:
            step = max(0, self.done[key] - self.chance.randint(1, 2))
            self.see(self.drive(ev.SnapshotRequested(COORD, self.request(), key, step)))
        elif what < 0.96:
            self.drop(key)
        elif what < 0.975:
            self.see(self.drive(ev.PauseFileChanged("owner")))
            self.see(self.drive(ev.PauseFileChanged("")))
        elif what < 0.985:
            self.begin_anew()
        else:
            self.lose(self.chance.randrange(DEVICES))

    def fed(self, key: PlanKey) -> tuple[int, ...]:
        return (0, 2) if self.carries(key) else (0, 1)

    @staticmethod
    def carries(key: PlanKey) -> bool:
        return key.generation % 3 != 0

    def deploy(self) -> None:
        self.generation += 1
        key = PlanKey(self.epoch, self.generation)
        parts, blobs = (PARTS, (weight(),)) if self.carries(key) else (CALL, ())
        message: Deploy = with_fields(deploy(*parts, plan=key, blobs=blobs), ordered=self.ordered)
        self.plans.append(key)
        self.see(self.drive(ev.DeployRequested(COORD, self.request(), message)))

    def drop(self, key: PlanKey) -> None:
        self.plans.remove(key)
        self.see(self.drive(ev.DropRequested(COORD, self.request(), key, self.chance.random() < 0.5)))

    def begin_anew(self) -> None:
        """Another coordinator has it, or the same one again."""
        self.plans.clear()
        self.epoch += 1
        self.see(self.drive(ev.NodeUnlinked(COORD)))
        self.see(self.drive.join(epoch=self.epoch))
        self.answers[self.drive.requests] += 1

    def request(self) -> int:
        self.asked.add(self.drive.request())
        return self.drive.requests

    def file(self) -> ev.SharedFile:
        self.made += 1
        self.files.add(str(self.made))
        return ev.SharedFile("f32", (2,), "/shm", str(self.made))

    # -- the hosts

    def lose(self, device: int, error: MeshError | None = None) -> None:
        """A host dies, and what it kept is gone; so are exports that it was asked for."""
        if device in self.starting:
            return
        self.drive.now += LONG_S
        host, self.hosts[device] = self.hosts[device], Lane()
        for action in host.inbox:
            if isinstance(action, ev.MakeBlob):
                self.see(self.drive(ev.BlobNotMade(action.number, DeviceLost("gone"))))
        self.starting.add(device)
        self.see(self.drive(ev.HostLost(device, error or DeviceLost("gone"))))

    def work(self, device: int) -> None:
        """A host does the first of what it was told."""
        host = self.hosts[device]
        if device in self.starting:
            self.starting.discard(device)
            self.see(self.drive(ev.HostReady(device)))
            return
        match host.inbox.popleft() if host.inbox else None:
            case ev.Prepare(_, prepared):
                self.see(self.drive(ev.PartPrepared(prepared, 0.1, False)))
            case ev.MakeBlob(number, tensor):
                assert tensor.tensor in host.keeps, "a snapshot of what was freed"
                self.see(self.drive(ev.BlobMade(number, b"s" * 32)))
            case ev.Release(ev.DeviceTensor(tensor=tensor)):
                assert tensor in host.keeps, "freed twice"
                host.keeps.remove(tensor)
            case ev.Execute() as execute:
                self.execute(device, host, execute)

    def execute(self, device: int, host: Lane, execute: ev.Execute) -> None:
        kept = {use.tensor.tensor for use in execute.inputs if isinstance(use.tensor, ev.DeviceTensor)}
        missing = not kept <= host.keeps
        over = self.drive.machine._plans.step(*self.steps[execute.run]) is None
        assert over or not missing, "a step that somebody waits for reads what is not there"
        self.take(execute)
        host.keeps -= given_away(execute)
        error: MeshError | None = BlobMissing("of course") if missing else None
        if execute.run in host.stopped and self.chance.random() < 0.5:
            error = error or Cancelled("stopped")
        elif self.chance.random() < self.failures:
            error = error or self.chance.choice((ExecuteFailed("no"), DeviceLost("lost")))
        if error is not None:
            if isinstance(error, DeviceLost):  # it ends after saying so
                host.inbox = deque(action for action in host.inbox if isinstance(action, ev.MakeBlob))
            self.see(self.drive(ev.ExecuteFailed(execute.run, error)))
            if isinstance(error, DeviceLost):
                self.lose(device, error)
            return
        outputs = []
        for wish in execute.outputs:
            tensor = ev.DeviceTensor("f32", (2,), device, wish.keep) if wish.keep else None
            outputs.append(ev.PartOutput(files=tuple(self.file() for _ in range(wish.copies)), kept=tensor))
            host.keeps |= {wish.keep} - {0}
        self.see(self.drive(ev.PartExecuted(execute.run, tuple(outputs), 0.1)))

    def take(self, execute: ev.Execute) -> None:
        for use in execute.inputs:
            if isinstance(use.tensor, ev.SharedFile) and use.last:
                self.files.remove(use.tensor.name)

    # -- what the machine says

    def see(self, actions: list[ev.Action]) -> None:
        unable: list[ev.Execute] = []
        for action in actions:
            match action:
                case ev.Fetch(attempt):
                    self.see(self.drive(ev.BlobFound(attempt, "disk")))
                case ev.Reply(request) | ev.Refuse(request) | ev.ReplyRan(request):
                    self.answers[request] += 1
                case (
                    ev.Prepare(device)
                    | ev.MakeBlob(_, ev.DeviceTensor(device=device))
                    | ev.Release(ev.DeviceTensor(device=device))
                ):
                    self.tell(device, action)
                case ev.Release(ev.SharedFile(name=name)):
                    self.files.remove(name)
                case ev.Execute(device, run):
                    self.steps[run] = self.drive.machine._steps.runs[run][:2]
                    uses = {use.tensor.tensor for use in action.inputs if isinstance(use.tensor, ev.DeviceTensor)}
                    promised = {wish.keep for execute in unable for wish in execute.outputs}
                    assert uses <= self.hosts[device].will_keep() | promised, "it neither is there nor is made before"
                    if self.chance.random() < self.failures / 5:
                        unable.append(action)
                    else:
                        self.tell(device, action)
                case ev.StopRun(device, run):
                    first = self.hosts[device].runs[:1]  # none of a host that ends
                    assert all(action.run == run for action in first), "something else is stopped"
                    assert self.drive.machine._plans.step(*self.steps[run]) is None, "somebody waits for it"
                    self.hosts[device].stopped.add(run)
                case ev.SendBegan(_, began):
                    assert self.drive.machine._plans.step(began.plan, began.step), "a step began that is over"
            if isinstance(action, ev.Refuse) and action.request in self.runs:
                self.broken.add(self.runs[action.request])
            if isinstance(action, ev.ReplyRan):
                self.done[action.plan] = max(self.done[action.plan], action.step + 1)
                self.files -= {tensor.name for _, tensor in action.outputs if isinstance(tensor, ev.SharedFile)}
                assert all(run.wait_s >= 0 for run in action.parts)
        for execute in unable:  # the daemon could not even tell the host, and says so later
            self.take(execute)
            self.hosts[execute.device].keeps -= given_away(execute)
            self.see(self.drive(ev.ExecuteFailed(execute.run, ConnectFailed("no link to another rank"))))
        self.check()

    def tell(self, device: int, action: ev.Action) -> None:
        if device not in self.starting:  # to a host that is gone nothing is said
            self.hosts[device].inbox.append(action)

    def check(self) -> None:
        """What a host does now is of a step that lives, or is stopped."""
        for host in self.hosts:
            for execute in host.runs[:1]:
                alive = self.drive.machine._plans.step(*self.steps[execute.run])
                assert alive or execute.run in host.stopped, "nobody stops it"

    def settle(self) -> None:
        """All that was wanted is done, and nothing is wanted any more."""
        self.rest()
        assert all(self.answers[request] == 1 for request in self.runs), "a step never gets its input"
        for key in list(self.plans):
            self.drop(key)
        self.rest()

    def rest(self) -> None:
        """Hosts do all they were told."""
        while self.starting or any(host.inbox for host in self.hosts):
            for device in range(DEVICES):
                self.work(device)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_nothing_is_lost_kept_or_read_too_early_whatever_happens(first: int) -> None:
    for seed in range(first, first + 50):
        model = Model(seed)
        for _ in range(EVENTS):
            if model.chance.random() < 0.55:
                model.work(model.chance.randrange(DEVICES))
            else:
                model.ask()
            model.drive.now += 0.1
        model.settle()
        assert not any(host.keeps for host in model.hosts), f"seed {seed}: something stays on a device"
        assert not model.files, f"seed {seed}: a file stays"
        assert all(model.answers[request] == 1 for request in model.asked), f"seed {seed}: not answered once"
        assert not model.drive.machine.queue_depth and not model.drive.machine.running, f"seed {seed}"
