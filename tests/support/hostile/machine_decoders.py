"""The worker's machine and what members of its mesh tell it, ready for damaged messages.

The messages are well formed, or the decoder would have refused them: it is their meaning that is damaged here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles, worker_profile
from coordinator.planning.model.unit_work import needs
from coordinator.planning.planner import make_plan
from wire.errors import FrameError, MeshError
from wire.ir.dtypes import DTYPES
from wire.ir.ops import OPS
from wire.protocol.messages import (
    CancelStep,
    Deploy,
    DeviceReport,
    Drop,
    Feed,
    Joined,
    Message,
    PlanKey,
    Push,
    Run,
    Source,
    SourceKind,
    Suspected,
    Value,
    decode_message,
    encode_message,
)
from worker.state import events as ev

from ..cases.random_graphs import random_graph
from ..machines.worker_machine import (
    COORD,
    EDGE_IN,
    KEY,
    ONE_PART,
    PEER,
    SMALL,
    TO_COORD,
    WEIGHT,
    Driver,
    deploy,
    part,
    weight,
)
from .fuzzing import Target, refused_with
from .tampering import MSGPACK

MESSAGES_MAX = 30  # that one machine hears; then there is another
PARTS = ONE_PART, part(1, [EDGE_IN, EDGE_IN, Source(SourceKind.PARAM, 0, 0, WEIGHT)], [TO_COORD, TO_COORD], device=1)


def worker_orders(folder: Path) -> Target:
    """Plans, runs, tensors and what ends them; other nodes and the engine hosts do what the machine asks of them."""
    value = Value(SMALL.dtype, SMALL.shape, SMALL.data)
    messages: list[Message] = [Suspected(3), Drop(PlanKey(7, 0))]
    messages += [deploy(*PARTS, plan=PlanKey(7, number), blobs=(weight(PEER),)) for number in range(1, 15)]
    for step in range(5):
        messages += [Run(KEY, step, (Feed(0, 0, value),)), CancelStep(KEY, step)]
        messages += [Push(KEY, step, 1, slot, value) for slot in range(2)] * 2
    worker = _Worker()
    return Target([encode_message(message) for message in messages], worker.attempt, MSGPACK, whole=0.4)


class _Worker:
    """A machine that has a plan, and everybody around it."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._drive = Driver()
        self._drive.deployed(deploy(*PARTS, blobs=(weight(PEER),)))
        self._left = MESSAGES_MAX

    def attempt(self, data: bytes) -> bool:
        try:
            message = decode_message(data)
        except FrameError:
            return True
        if not self._left:
            self._renew()
        self._left -= 1
        try:
            actions = self._tell(message)
        except MeshError:
            return True
        return any(isinstance(action, ev.Refuse) for action in self._until_quiet(actions))

    def _tell(self, message: Message) -> list[ev.Action]:
        drive = self._drive
        match message:
            case Deploy():
                return drive.ask_deploy(message)
            case Run():
                return drive.run(message.step, *map(_feed, message.feeds), plan=message.plan)
            case Push():
                tensor = _tensor(message.value)
                return drive.push(message.part, message.slot, tensor, message.step, message.plan)
            case Drop():
                return drive(ev.DropRequested(COORD, drive.request(), message.plan))
            case CancelStep():
                return drive(ev.CancelRequested(COORD, message.plan, message.step))
            case Suspected():
                return drive(ev.SuspectedBy(COORD, message.incarnation))
        return []

    def _until_quiet(self, actions: Iterable[ev.Action]) -> list[ev.Action]:
        """Answer what the machine asks for, and what it asks for then; every action."""
        seen, waiting = [], [*actions]
        while waiting:
            seen += waiting
            waiting = list(itertools.chain.from_iterable(map(self._answered, waiting)))
        return seen

    def _answered(self, action: ev.Action) -> list[ev.Action]:
        drive = self._drive
        match action:
            case ev.LinkTo(node):
                return drive(ev.NodeLinked(node))
            case ev.Fetch(attempt):
                return drive(ev.BlobFound(attempt, "disk"))
            case ev.Prepare(_, prepared):
                return drive(ev.PartPrepared(prepared, 0.5, False))
            case ev.Execute():
                made = tuple(ev.PartOutput(inline=SMALL) for _ in action.outputs)
                return drive(ev.PartExecuted(action.run, made, 0.1))
        return []


def _feed(feed: Feed) -> tuple[int, int, ev.Tensor]:
    return feed.part, feed.slot, _tensor(feed.value)


def _tensor(value: Value) -> ev.Tensor:
    if value.data is not None:
        return ev.Inline(value.dtype, value.shape, value.data)
    return ev.SharedFile(value.dtype, value.shape, "/shm/elsewhere", value.shared)


# -- a coordinator and what workers tell of themselves -----------------------------------------------------


def worker_reports(folder: Path) -> Target:
    """What a worker says of its devices: it is refused, or there is a plan with it beside a good one."""
    graph = random_graph(3, 4, 8).graph
    ops = frozenset(OPS)
    every = {need.op for index in range(len(graph)) for need in needs(graph, index)}
    dtypes = {op: tuple(dtype.name for dtype in DTYPES) for op in every}
    cpu = DeviceReport(0, "cpu", "", "numpy", "", True, 1 << 30, {}, dtypes, 5.0, 10.0, 1e-4)
    second = msgspec.structs.replace(cpu, index=1)
    gpu = DeviceReport(0, "wgsl", "card", "Vulkan", "1", False, 1 << 32, {"x": 1}, {"add": ("f32",)}, 900.0, 90.0, 1e-4)
    good = worker_profile("good", "good", Joined((cpu,), 1 << 30, ()), ops)

    def read(data: bytes) -> Plan:
        message = decode_message(data)
        if not isinstance(message, Joined):
            raise FrameError("no worker")
        return make_plan(graph, Profiles((worker_profile("odd", "odd", message, ops), good)))

    def check(plan: Plan, data: bytes) -> None:
        assert 0 <= plan.seconds < math.inf

    originals = [encode_message(Joined(devices, 1 << 30, ())) for devices in ((cpu,), (gpu, second), (cpu, second))]
    return Target(originals, refused_with(MeshError, read, check), MSGPACK)
