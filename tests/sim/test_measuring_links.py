"""What a Meter says of a link is what the wire does, and measuring holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from support.machines.links import Recorder, node

from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from mesh.simulation.virtual_network import Conditions
from wire.errors import Busy, MeshError, ProtocolError
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import Ballast, Landed, Message
from wire.transfer.link_probe import BYTES_MAX, OPEN_MAX, SECONDS, Meter


class Measuring(Recorder):
    """A handler with a meter."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()
        self.bytes = 0

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        self.bytes += size_bytes
        assert isinstance(header, Ballast)
        return self.meter.open_stream(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        assert isinstance(header, Ballast)
        self.meter.stream_done(link, header, buffer, error)

    def on_notify(self, link: Link, body: Message) -> None:
        assert isinstance(body, Landed)
        self.meter.landed(link, body)


def simulate(scenario: Callable[[SimulatedNetwork, Link, Measuring, Measuring], Awaitable[Any]]) -> None:
    async def run() -> None:
        network = SimulatedNetwork()
        ends = [Measuring(), Measuring()]
        here, there = (
            Endpoint(node(name, host_id=name), end, network.carrier(name)) for name, end in zip("ab", ends, strict=True)
        )
        link = await here.dial("b", await there.listen("", 0, 0))
        await scenario(network, link, *ends)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e6, 12.5e6, 1e8, 1.25e9])
@pytest.mark.parametrize("delay_s", [0.0002, 0.02])
def test_latency_and_bandwidth_are_found(bytes_per_s: float, delay_s: float) -> None:
    async def scenario(network: SimulatedNetwork, link: Link, here: Measuring, there: Measuring) -> None:
        network.set_way("a", "b", Conditions(delay_s=delay_s, bytes_per_s=bytes_per_s, buffer_bytes=64 << 20))
        network.set_way("b", "a", Conditions(delay_s=delay_s, bytes_per_s=1e9))
        began_s = asyncio.get_running_loop().time()
        found = await here.meter.measure(link, 10.0)
        took_s = asyncio.get_running_loop().time() - began_s
        assert found.rtt_s == pytest.approx(2 * delay_s, rel=0.05, abs=1e-3)
        assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=0.25)
        assert took_s < 3 * SECONDS + 2 * 16384 / bytes_per_s + 24 * delay_s
        assert there.bytes <= 2 * BYTES_MAX

    simulate(scenario)


def test_a_silent_link_ends_the_measurement() -> None:
    async def scenario(network: SimulatedNetwork, link: Link, here: Measuring, there: Measuring) -> None:
        network.block(["b"], ["a"])
        with pytest.raises((MeshError, TimeoutError)):
            await here.meter.measure(link, 1.0)
        assert not here.meter._sent

    simulate(scenario)


def test_nobody_can_fill_our_memory_with_measurements() -> None:
    meter, link, header = Meter(), cast(Link, None), Ballast(0)
    with pytest.raises(ProtocolError, match="the most are"):
        meter.open_stream(link, header, BYTES_MAX + 1)
    for _ in range(OPEN_MAX):
        meter.open_stream(link, header, 8)
    with pytest.raises(Busy):
        meter.open_stream(link, header, 8)


def test_a_note_about_nothing_is_ignored() -> None:
    async def scenario(network: SimulatedNetwork, link: Link, here: Measuring, there: Measuring) -> None:
        here.meter.landed(link, Landed(77))
        assert (await here.meter.measure(link, 5.0)).bytes_per_s > 0

    simulate(scenario)
