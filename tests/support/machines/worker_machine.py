"""The worker's machine on its own: plans to deploy, and a driver that validates it after every event."""

from __future__ import annotations

from typing import TypeVar

from wire.protocol.messages import BlobSpec, Deploy, PartSpec, PlanKey, Source, SourceKind, Target
from worker.state import events as ev
from worker.state.bounds import Bounds
from worker.state.worker_state import WorkerState

A = TypeVar("A")
COORD, ME, PEER = "coord", "me", "peer"
GRAPH = b"g" * 32
WEIGHT = b"w" * 32
KEY = PlanKey(7, 1)
SMALL = ev.Inline("f32", (2,), b"12345678")
CALL_INPUT = Source(SourceKind.INPUT)
WEIGHT_IN = Source(SourceKind.PARAM, blob=WEIGHT)
EDGE_IN = Source(SourceKind.EDGE, 9, 0, node=PEER)  # output 0 of part 9, which is somewhere else


def big(name: str) -> ev.SharedFile:
    return ev.SharedFile("f32", (1024, 1024), "/shm/elsewhere", name)


def part(number: int, sources: list[Source], targets: list[list[Target]], device: int = 0) -> PartSpec:
    return PartSpec(number, device, GRAPH, tuple(sources), tuple(tuple(each) for each in targets))


def deploy(*parts: PartSpec, plan: PlanKey = KEY, blobs: tuple[BlobSpec, ...] = (), force: bool = False) -> Deploy:
    return Deploy(plan, parts, {GRAPH: b"encoded"}, blobs, {ME: ("127.0.0.1:1",), PEER: ("127.0.0.1:2",)}, force)


def edge(number: int, output: int, node: str = PEER) -> Source:
    """An input that is an output of a part."""
    return Source(SourceKind.EDGE, number, output, node=node)


def weight(*holders: str) -> BlobSpec:
    return BlobSpec(WEIGHT, 400, "f32", (10, 10), holders)


TO_COORD = [Target("", 0, 0)]
ONE_PART = part(0, [CALL_INPUT], [TO_COORD])


class Driver:
    """Feeds events, validates after each, and remembers the actions."""

    def __init__(self, devices: int = 2, bounds: Bounds | None = None, join: bool = True) -> None:
        self.machine = WorkerState(ME, devices, bounds=bounds)
        self.now = 100.0
        self.requests = 0
        if join:
            self.join()

    def __call__(self, event: ev.Event, after_s: float = 0.0) -> list[ev.Action]:
        self.now += after_s
        actions = self.machine.handle(event, self.now)
        self.machine.validate()
        return actions

    def join(self, node: str = COORD, epoch: int = 7, silence_s: float = 0.0) -> list[ev.Action]:
        return self(ev.JoinRequested(node, self.request(), node, epoch, 0.1, silence_s))

    def request(self) -> int:
        self.requests += 1
        return self.requests

    def ask_deploy(self, message: Deploy, node: str = COORD) -> list[ev.Action]:
        return self(ev.DeployRequested(node, self.request(), message))

    def deployed(self, message: Deploy) -> list[ev.Action]:
        """Deploy and answer everything it waits for; the last actions."""
        actions = self.ask_deploy(message)
        seen = list(actions)
        while actions:
            after: list[ev.Action] = []
            for action in actions:
                match action:
                    case ev.LinkTo(node):
                        after += self(ev.NodeLinked(node))
                    case ev.Fetch(attempt):
                        after += self(ev.BlobFound(attempt, "disk"))
                    case ev.Prepare(_, prepared):
                        after += self(ev.PartPrepared(prepared, 0.5, False))
            seen += after
            actions = after
        assert one(ev.Reply, seen).request == self.requests
        return seen

    def run(self, step: int = 0, *feeds: tuple[int, int, ev.Tensor], plan: PlanKey = KEY) -> list[ev.Action]:
        return self(ev.RunRequested(COORD, self.request(), plan, step, feeds))

    def push(self, part: int, slot: int, tensor: ev.Tensor, step: int = 0, plan: PlanKey = KEY) -> list[ev.Action]:
        return self(ev.TensorArrived(PEER, plan, step, part, slot, tensor))


def of(kind: type[A], actions: list[ev.Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def one(kind: type[A], actions: list[ev.Action]) -> A:
    found = of(kind, actions)
    assert len(found) == 1, f"expected one {kind.__name__} in {actions}"
    return found[0]


def made(*tensors: ev.Inline) -> tuple[ev.PartOutput, ...]:
    return tuple(ev.PartOutput(inline=tensor) for tensor in tensors)
