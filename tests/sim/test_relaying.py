"""A tensor through the coordinator arrives whole, a few pieces at a time, and nothing of it is left anywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.machines.links import Recorder, node

from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from mesh.simulation.virtual_network import Conditions
from wire.errors import NodeLost, ProtocolError
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import RELAY_BYTES_MAX, Done, Message, PlanKey, Push, Relay, Value
from wire.transfer.relay import PIECES_MAX, RelayReceiver, RelaySender, pass_on

PUSH = Push(PlanKey(1, 2), 3, 0, 1, Value("u8", (5,)))


@dataclass
class Room:
    """The pairs of workers between which tensors are relayed."""

    tensors: dict[str, bytearray] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)

    def allocate(self, node: str, push: Push, size_bytes: int) -> str:
        label = f"tensor {len(self.tensors)}"
        self.tensors[label] = bytearray(size_bytes)
        return label

    def write(self, label: str, offset: int, data: bytes) -> None:
        self.tensors[label][offset : offset + len(data)] = data

    def release(self, push: Push, label: str) -> None:
        self.released.append(label)


class Middle(Recorder):
    """The coordinator: passes pieces on, and counts those it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, Link] = {}
        self.held = self.held_max = 0

    async def on_request(self, link: Link, body: Message) -> Message:
        assert isinstance(body, Relay)
        self.held += 1
        self.held_max = max(self.held_max, self.held)
        try:
            return await pass_on(self.links.get(body.node), link.peer.node_id, body)
        finally:
            self.held -= 1


class End(Recorder):
    """The receiving worker."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room()
        self.receiver = RelayReceiver(self.room.allocate, self.room.write, self.room.release)
        self.complete: list[str] = []

    async def on_request(self, link: Link, body: Message) -> Message:
        assert isinstance(body, Relay)
        label = self.receiver.take(body)
        if label is not None:
            self.complete.append(label)
        return Done()


Scenario = Callable[[SimulatedNetwork, Link, Middle, End], Awaitable[Any]]


def simulate(scenario: Scenario) -> None:
    async def run() -> None:
        network, middle, end = SimulatedNetwork(), Middle(), End()
        ends = {"a": Recorder(), "middle": middle, "b": end}
        nodes = {
            name: Endpoint(node(name, host_id=name), handler, network.carrier(name)) for name, handler in ends.items()
        }
        port = await nodes["middle"].listen("", 0, 0)
        link = await nodes["a"].dial("middle", port)
        await nodes["b"].dial("middle", port)
        middle.links["id-b"] = nodes["middle"].links["id-b"]
        await scenario(network, link, middle, end)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


@pytest.mark.parametrize("size", [0, 1, RELAY_BYTES_MAX - 1, RELAY_BYTES_MAX, RELAY_BYTES_MAX + 1, 21_000_001])
def test_it_arrives_whole_and_few_pieces_are_under_way(size: int) -> None:
    async def scenario(network: SimulatedNetwork, link: Link, middle: Middle, end: End) -> None:
        network.set_way("middle", "b", Conditions(delay_s=0.02, bytes_per_s=2e6))
        data = random.Random(size).randbytes(size)
        await RelaySender().send(link, "id-b", PUSH, memoryview(data))
        assert end.complete == ["tensor 0"] and end.room.tensors["tensor 0"] == data
        assert middle.held_max <= PIECES_MAX and middle.held == 0

    simulate(scenario)


def test_pieces_of_many_tensors_share_the_same_room() -> None:
    async def scenario(network: SimulatedNetwork, link: Link, middle: Middle, end: End) -> None:
        network.set_way("middle", "b", Conditions(delay_s=0.02, bytes_per_s=2e6))
        sender, data = RelaySender(), memoryview(bytes(3 * RELAY_BYTES_MAX))
        pushes = [Push(PUSH.plan, PUSH.step, part, 0, PUSH.value) for part in range(10)]
        await asyncio.gather(*(sender.send(link, "id-b", push, data) for push in pushes))
        assert len(end.complete) == 10 and middle.held_max <= PIECES_MAX

    simulate(scenario)


def test_two_hops_on_a_fast_network_are_not_slower_than_their_cost_says() -> None:
    async def scenario(network: SimulatedNetwork, link: Link, middle: Middle, end: End) -> None:
        loop, size = asyncio.get_running_loop(), 50_000_000
        began_s = loop.time()
        await RelaySender().send(link, "id-b", PUSH, memoryview(bytes(size)))
        assert size / (loop.time() - began_s) > 1e8 / 2

    simulate(scenario)


def test_a_receiver_that_is_gone_or_goes_is_an_error_and_the_room_is_free_again() -> None:
    async def scenario(network: SimulatedNetwork, link: Link, middle: Middle, end: End) -> None:
        sender, data = RelaySender(), memoryview(bytes(40 * RELAY_BYTES_MAX))
        with pytest.raises(NodeLost, match="gone"):
            await sender.send(link, "id-c", PUSH, data)
        sending = asyncio.create_task(sender.send(link, "id-b", PUSH, data))
        await asyncio.sleep(0.05)
        network.kill("b")
        with pytest.raises(NodeLost):
            await sending
        await asyncio.sleep(0)
        assert middle.held == 0 and sender._room._value == PIECES_MAX

    simulate(scenario)


def test_giving_up_stops_the_pieces_and_what_arrived_is_released() -> None:
    async def scenario(network: SimulatedNetwork, link: Link, middle: Middle, end: End) -> None:
        sender, data = RelaySender(), memoryview(bytes(40 * RELAY_BYTES_MAX))
        sending = asyncio.create_task(sender.send(link, "id-b", PUSH, data))
        await asyncio.sleep(0.05)
        sending.cancel()
        await asyncio.sleep(1)
        assert middle.held == 0 and sender._room._value == PIECES_MAX and not end.complete
        end.receiver.forget(PUSH.plan, PUSH.step + 1)
        assert not end.room.released
        end.receiver.forget(PUSH.plan, PUSH.step)
        assert end.room.released == ["tensor 0"]

    simulate(scenario)


@pytest.mark.parametrize(
    ("offset", "size"), [(1, 5), (RELAY_BYTES_MAX, 5), (0, 6), (0, 4), (1 << 40, 0)], ids=lambda value: str(value)
)
def test_a_piece_that_does_not_belong_is_refused(offset: int, size: int) -> None:
    room = Room()
    receiver = RelayReceiver(room.allocate, room.write, room.release)
    with pytest.raises(ProtocolError, match="does not belong"):
        receiver.take(Relay("a", PUSH, 5, offset, bytes(size)))


def test_a_piece_that_comes_twice_is_refused() -> None:
    room = Room()
    receiver = RelayReceiver(room.allocate, room.write, room.release)
    piece = Relay("a", PUSH, RELAY_BYTES_MAX + 1, 0, bytes(RELAY_BYTES_MAX))
    assert receiver.take(piece) is None
    with pytest.raises(ProtocolError, match="does not belong"):
        receiver.take(piece)
