"""The worker's machine under random events, with its invariants checked after every one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    EDGE_IN,
    ME,
    PEER,
    WEIGHT_IN,
    Driver,
    big,
    deploy,
    edge,
    part,
    weight,
)

from wire.errors import (
    BlobMissing,
    Cancelled,
    CompileFailed,
    DeviceLost,
    ExecuteFailed,
    NodeLost,
    OutOfMemory,
)
from wire.protocol.messages import PlanKey, Target
from worker.state import events as ev
from worker.state.bounds import Bounds


class World:
    """Random but possible events, with every tensor and request accounted for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.drive = Driver(devices=2, bounds=Bounds(early_bytes_max=1 << 23, fetches_max=2))
        self.alive: set[str] = set()  # files that somebody must consume or release
        self.answered: set[int] = {1}
        self.open: dict[str, list[Any]] = {
            "fetch": [],
            "prepare": [],
            "execute": [],
            "push": [],
            "link": [],
            "host": [],
        }
        self.asked: set[int] = set()  # runs that are to be suspended
        self.suspended: dict[int, ev.Execute] = {}
        self.stopped: set[int] = set()  # runs that were resumed only to end
        self.generation = 1
        self.serial = 0
        self.runs = 0
        self.coordinator = COORD

    def file(self) -> ev.SharedFile:
        self.serial += 1
        self.alive.add(f"f{self.serial}")
        return big(f"f{self.serial}")

    def feed(self, event: ev.Event) -> None:
        for action in self.drive(event):
            self.perform(action)

    def consume(self, tensor: ev.Tensor) -> None:
        if isinstance(tensor, ev.SharedFile):
            self.alive.remove(tensor.name)

    def answer(self, request: int) -> None:
        assert request not in self.answered, "a request is answered twice"
        self.answered.add(request)

    def perform(self, action: ev.Action) -> None:
        match action:
            case ev.Release(tensor):
                self.consume(tensor)
            case ev.Fetch():
                self.open["fetch"].append(action)
            case ev.AbandonFetch(attempt):
                self.open["fetch"] = [action for action in self.open["fetch"] if action.attempt != attempt]
            case ev.Prepare():
                self.open["prepare"].append(action)
            case ev.Execute():
                assert not any(each.device == action.device for each in self.open["execute"]), "two parts on one device"
                self.open["execute"].append(action)
            case ev.SuspendRun(device, run):
                assert any((each.device, each.run) == (device, run) for each in self.open["execute"])
                self.asked.add(run)
            case ev.ResumeRun(device, run, stop):
                assert not any(each.device == device for each in self.open["execute"]), "two parts on one device"
                self.open["execute"].append(self.suspended.pop(run))
                self.stopped |= {run} if stop else set()
            case ev.SendPush():
                self.open["push"].append(action)
            case ev.StopPush(push):
                stopped = [action for action in self.open["push"] if action.push == push]
                self.open["push"] = [action for action in self.open["push"] if action.push != push]
                for push in stopped:
                    self.consume(push.tensor)
            case ev.LinkTo():
                self.open["link"].append(action)
            case ev.StartHost():
                self.open["host"].append(action)
            case ev.ReplyRan(request, outputs=outputs):
                self.answer(request)
                for _, tensor in outputs:
                    self.consume(tensor)
            case ev.Reply(request) | ev.Refuse(request) | ev.ReplyJoined(request):
                self.answer(request)

    def take(self, kind: str) -> Any:
        waiting = self.open[kind]
        return waiting.pop(self.random.randrange(len(waiting))) if waiting else None

    def step(self) -> None:
        self.random.choice(
            [self.deploy, *[self.run] * 3, *[self.push] * 6, *[self.settle] * 8, *[self.execute] * 6, self.cancel,
             self.drop, self.lose, self.lose_host, self.start_host, *[self.wait] * 4, *[self.suspend] * 4]
        )()  # fmt: skip

    def key(self) -> PlanKey:
        return PlanKey(7, self.generation - (self.random.random() < 0.1))

    def step_number(self) -> int:
        return self.runs // 2 + self.random.randrange(3)

    def deploy(self) -> None:
        self.generation += self.random.random() < 0.3
        parts = (
            part(
                0,
                [CALL_INPUT, EDGE_IN],
                [[Target(PEER, 5, 0), Target(ME, 1, 0)], [Target(ME, 2, 1), Target("", 0, 0)]],
            ),
            part(1, [edge(0, 0), WEIGHT_IN], [[Target("", 0, 1)]]),
            part(2, [EDGE_IN, edge(0, 1)], [[Target(PEER, 5, 1)]], device=1),
        )
        message = deploy(*parts, plan=self.key(), blobs=(weight(PEER, ""),))
        self.feed(ev.DeployRequested(self.coordinator, self.drive.request(), message))

    def run(self) -> None:
        feeds = ((0, 0, self.file()),) if self.random.random() < 0.8 else ()
        self.runs += 1
        self.feed(ev.RunRequested(self.coordinator, self.drive.request(), self.key(), self.step_number(), feeds))

    def push(self) -> None:
        where, slot = self.random.choice([(0, 1), (2, 0), (0, 0), (1, 0), (8, 8)])
        self.feed(ev.TensorArrived(PEER, self.key(), self.step_number(), where, slot, self.file()))

    def execute(self) -> None:
        execute = self.take("execute")
        if execute is None:
            return
        for use in execute.inputs:
            if use.last:
                self.consume(use.tensor)
        if execute.run in self.stopped:
            self.feed(ev.ExecuteFailed(execute.run, Cancelled("the run was stopped")))
            return
        if self.random.random() < 0.05:
            self.feed(ev.ExecuteFailed(execute.run, ExecuteFailed("no luck")))
            return
        outputs = tuple(
            ev.PartOutput(
                files=tuple(self.file() for _ in range(wish.copies)),
                kept=ev.DeviceTensor("f32", (1024, 1024), execute.device, wish.keep) if wish.keep else None,
            )
            for wish in execute.outputs
        )
        self.feed(ev.PartExecuted(execute.run, outputs, 0.001))

    def wait(self) -> None:
        self.drive.now += self.random.choice((0.01, 0.3, 0.3))
        self.feed(ev.Tick())

    def suspend(self) -> None:
        asked = next((action for action in self.open["execute"] if action.run in self.asked), None)
        if asked is not None:
            self.open["execute"].remove(asked)
            self.suspended[asked.run] = asked
            self.feed(ev.RunSuspended(asked.run, self.random.choice((0, 1 << 30))))

    def settle(self) -> None:
        kind = self.random.choice(["fetch", "prepare", "push", "link"])
        action = self.take(kind)
        lucky = self.random.random() < 0.95
        match action:
            case ev.Fetch(attempt):
                self.feed(ev.BlobFound(attempt, "shared") if lucky else ev.BlobNotFound(attempt, BlobMissing("no")))
            case ev.Prepare(_, prepared):
                fine = ev.PartPrepared(prepared, 0.1, True, self.random.choice((0, 100)))
                crowded = any(each.device == action.device for each in self.suspended.values())
                failed = ev.PrepareFailed(prepared, CompileFailed("no"))
                later = ev.PrepareFailed(prepared, OutOfMemory("no"), postponed=True)
                self.feed(later if crowded and self.random.random() < 0.5 else fine if lucky else failed)
            case ev.SendPush(push):
                self.consume(action.tensor)
                self.feed(ev.PushSent(push) if lucky else ev.PushFailed(push, NodeLost("no")))
            case ev.LinkTo(node):
                self.feed(ev.NodeLinked(node) if lucky else ev.LinkFailed(node, NodeLost("no")))

    def cancel(self) -> None:
        self.feed(ev.CancelRequested(self.coordinator, self.key(), self.step_number()))

    def drop(self) -> None:
        if self.random.random() < 0.1:
            self.feed(ev.DropRequested(self.coordinator, self.drive.request(), self.key()))

    def lose(self) -> None:
        """The link ends, with a goodbye or without; whoever asked over it no longer waits."""
        if self.random.random() < 0.05:
            self.feed(ev.NodeUnlinked(self.coordinator, goodbye=self.random.random() < 0.5))
            for request in set(range(1, self.drive.requests + 1)) - self.answered:
                self.answered.add(request)
                self.feed(ev.RequestGone(request))
            kept = tuple(generation for generation in range(self.generation + 1) if self.random.random() < 0.7)
            self.feed(ev.JoinRequested(self.coordinator, self.drive.request(), COORD, 7, 0.1, 0.0, continued=kept))

    def lose_host(self) -> None:
        """What it ran and was to prepare is never answered."""
        device = self.random.randrange(2)
        if self.random.random() > 0.2 or any(action.device == device for action in self.open["host"]):
            return
        for kind in ("execute", "prepare"):
            self.open[kind] = [action for action in self.open[kind] if action.device != device]
        self.suspended = {run: each for run, each in self.suspended.items() if each.device != device}
        if self.drive.machine._devices[device].recovery.up:
            self.feed(ev.HostLost(device, DeviceLost("no luck")))

    def start_host(self) -> None:
        self.drive.now += self.random.choice((0.1, 5.0, 400.0))
        self.feed(ev.Tick())
        start = self.take("host")
        if start is not None:
            lucky = self.random.random() < 0.9
            self.feed(ev.HostReady(start.device) if lucky else ev.HostLost(start.device, DeviceLost("no luck")))

    def finish(self) -> None:
        """The coordinator goes, what runs ends: nothing may be left behind."""
        self.feed(ev.NodeUnlinked(self.coordinator, goodbye=True))
        while self.open["execute"] or self.open["prepare"]:
            self.execute()
            if (compiled := self.take("prepare")) is not None:  # the host does that before it resumes a run
                self.feed(ev.PartPrepared(compiled.prepared, 0.1, False))
        assert not self.suspended, "runs stay suspended"
        for push in self.open["push"]:
            self.consume(push.tensor)
        assert not self.alive, "tensors leaked"
        assert self.answered == set(range(1, self.drive.requests + 1)), "requests without an answer"


@pytest.mark.parametrize("seed", range(60))
def test_random_events_keep_the_invariants_and_leak_nothing(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.finish()


def test_random_worlds_do_reach_the_end_of_steps() -> None:
    finished = 0
    for seed in range(40):
        world = World(seed)
        for _ in range(600):
            world.step()
        finished += sum(entry.text.startswith("ran ") for entry in world.drive.machine.log)
    assert finished > 10
