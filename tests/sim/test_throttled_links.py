"""Links of a throttled node under the virtual clock: bytes leave at the rate, all of it arrives later by the delay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.machines.links import Recorder, node

from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from mesh.simulation.throttle import parse_throttle
from mesh.simulation.throttled_links import Line, ThrottledCarrier
from mesh.simulation.virtual_network import Conditions
from wire.limits import MIB
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import Ballast

MBIT_PER_S = 8.0  # a mebibyte takes a bit more than a second
AT_ONCE = Conditions(delay_s=0.0, bytes_per_s=1e12)


def on_links(throttle: str, others: int, scenario: Callable[[list[Link], list[Recorder]], Awaitable[None]]) -> None:
    """Run a scenario with the links of a throttled node to others, on a network that is nothing but quick."""

    async def run() -> None:
        network = SimulatedNetwork(0, AT_ONCE)
        slowness = parse_throttle(throttle)
        carrier = ThrottledCarrier(network.carrier("slow"), slowness.bytes_per_s, slowness.delay_s, 0.2)
        slow = Endpoint(node("slow", host_id="slow"), Recorder(), carrier)
        names, recorders, ends = [f"other-{number}" for number in range(others)], [], []
        for name in names:
            recorders.append(Recorder())
            ends.append(Endpoint(node(name, host_id=name), recorders[-1], network.carrier(name)))
            await ends[-1].listen(name, 7100, 7100)
        await scenario([await slow.dial(name, 7100) for name in names], recorders)
        for each in (slow, *ends):
            await each.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


async def timed(work: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await work
    return loop.time() - began_s


async def sent(links: list[Link], recorders: list[Recorder], size_bytes: int) -> None:
    """Send so much over every link and wait until all of it is there."""
    data = memoryview(bytes(size_bytes))
    await asyncio.gather(*(link.send_stream(Ballast(1), data) for link in links))
    await asyncio.gather(*(recorder.streams.get() for recorder in recorders))


@pytest.mark.parametrize("others", [1, 3])
def test_all_links_together_send_at_the_rate(others: int) -> None:
    async def scenario(links: list[Link], recorders: list[Recorder]) -> None:
        took_s = await timed(sent(links, recorders, MIB))
        assert took_s == pytest.approx(others * 8 * MIB / (MBIT_PER_S * 1e6), rel=0.01)

    on_links(f"rate={MBIT_PER_S:g}Mbit/s", others, scenario)


def test_everything_arrives_later_by_the_delay_and_nothing_comes_slower() -> None:
    async def scenario(links: list[Link], recorders: list[Recorder]) -> None:
        assert await timed(links[0].ping()) == pytest.approx(0.25, abs=1e-6), "one way of the two"
        assert await timed(sent(links, recorders, 64 * MIB)) < 5 * 0.25, "only the window is waited for"

    on_links("delay=250ms", 1, scenario)


def test_short_frames_do_not_wait_for_bulk() -> None:
    async def scenario(links: list[Link], recorders: list[Recorder]) -> None:
        sending = asyncio.ensure_future(sent(links, recorders, 4 * MIB))
        await asyncio.sleep(0.5)
        assert not sending.done() and await timed(links[0].ping()) < 0.01
        await sending

    on_links(f"rate={MBIT_PER_S:g}Mbit/s", 1, scenario)


def test_last_words_leave_before_a_link_ends() -> None:
    async def scenario(links: list[Link], recorders: list[Recorder]) -> None:
        await recorders[0].linked.get()
        links[0].notify(Ballast(7))
        links[0].close("done")
        assert await recorders[0].notes.get() == Ballast(7)
        _, error = await recorders[0].unlinked.get()
        assert error is None

    on_links("rate=1Mbit/s,delay=100ms", 1, scenario)


def test_what_short_frames_take_is_taken_from_bulk() -> None:
    line = Line(1000.0)
    assert line.send_s(10_000, 0.0) == 10.0 and line.send_s(500, 0.0) == 0.5
    assert line.send_s(10_000, 1.0) == pytest.approx(20.5) and line.send_s(1000, 30.0) == 31.0
    assert Line(0.0).send_s(1 << 30, 3.0) == 3.0, "no rate"
