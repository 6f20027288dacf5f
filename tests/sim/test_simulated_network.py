"""Real endpoints over the simulated network, under the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.machines.links import Recorder, node

from mesh.simulation.loop import Stuck, VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from mesh.simulation.virtual_network import Conditions
from wire.errors import ConnectFailed, NodeLost
from wire.link.endpoint import Endpoint
from wire.protocol.messages import Done, LogLines, TailLog


def simulate(scenario: Callable[[SimulatedNetwork], Awaitable[object]], seed: int = 0) -> float:
    """Run a scenario to its end; the virtual seconds it took."""

    async def run() -> float:
        await scenario(SimulatedNetwork(seed))
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def endpoint(network: SimulatedNetwork, name: str) -> Endpoint:
    return Endpoint(node(name, host_id=name), Recorder(), network.carrier(name))


def test_time_jumps_and_an_end_of_everything_is_noticed() -> None:
    async def wait() -> None:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))

    loop = VirtualLoop()
    loop.run_until_complete(wait())
    assert loop.time() == pytest.approx(7200)
    with pytest.raises(Stuck):
        loop.run_until_complete(asyncio.Event().wait())
    loop.close()


def test_a_moment_that_never_ends_is_noticed() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    loop = VirtualLoop()
    task = loop.create_task(spin())
    with pytest.raises(Stuck, match=r"still 0\.000000 s"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_request_takes_as_long_as_the_way_there_and_back() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.conditions = Conditions(delay_s=0.05)
        here, there = endpoint(network, "a"), endpoint(network, "b")
        port = await there.listen("", 0, 0)
        link = await here.dial("b", port)
        began_s = asyncio.get_running_loop().time()
        assert await link.request(TailLog(3)) == TailLog(3)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(0.1, rel=1e-3)
        await here.close()
        await there.close()

    simulate(scenario)


def test_a_stream_takes_its_bandwidth_and_small_messages_pass_it() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.conditions = Conditions(delay_s=0.001, bytes_per_s=1e6, buffer_bytes=64 * 1024)
        here, there = endpoint(network, "a"), endpoint(network, "b")
        link = await here.dial("b", await there.listen("", 0, 0))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        sending = asyncio.ensure_future(link.send_stream(LogLines(()), memoryview(bytes(3_000_000))))
        await link.request(Done())
        assert loop.time() - began_s < 0.5
        await sending
        handler = there.handler
        assert isinstance(handler, Recorder)
        _, buffer, error = await handler.streams.get()
        assert (len(buffer), error) == (3_000_000, None)
        assert loop.time() - began_s == pytest.approx(3.0, rel=0.1)

    simulate(scenario)


def test_a_killed_host_is_noticed_at_once_and_a_silent_one_by_nobody() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        port = await there.listen("", 0, 0)
        link = await here.dial("b", port)
        network.block(["a"], ["b"])
        network.block(["b"], ["a"])
        asking = asyncio.ensure_future(link.request(Done()))
        await asyncio.sleep(60)
        assert not asking.done()
        assert not link.closed
        network.heal()
        assert await asking == Done()
        network.kill("b")
        with pytest.raises(NodeLost):
            await link.request(Done())
        assert link.closed
        with pytest.raises(ConnectFailed):
            await here.dial("b", port)

    simulate(scenario)


def test_both_may_dial_at_once_and_keep_one_link() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        ports = await here.listen("", 0, 0), await there.listen("", 0, 0)
        links = await asyncio.gather(here.dial("b", ports[1]), there.dial("a", ports[0]))
        assert links[0].link_id == links[1].link_id
        assert [len(each.links) for each in (here, there)] == [1, 1]

    for seed in range(50):
        simulate(scenario, seed)


def test_the_same_seed_gives_the_same_run() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.conditions = Conditions(delay_s=0.01, jitter_s=0.02, loss=0.1)
        here, there = endpoint(network, "a"), endpoint(network, "b")
        link = await here.dial("b", await there.listen("", 0, 0))
        await asyncio.gather(*(link.request(TailLog(number)) for number in range(100)))

    assert simulate(scenario, 1) == simulate(scenario, 1) != simulate(scenario, 2)


def test_a_node_is_reached_at_whichever_of_its_addresses_answers_and_there_again() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there, elsewhere = (endpoint(network, name) for name in "abc")
        port, other = await there.listen("", 0, 0), await elsewhere.listen("", 0, 0)
        addresses = [f"nobody:{port}", f"c:{other}", f"b:{port}"]
        link = await here.reach(addresses, "id-b")
        assert (link.peer.node_id, link.address) == ("id-b", f"b:{port}")
        network.block(["a"], ["nobody", "c"])  # which no longer matters, since b's own address goes first
        link.close()
        began_s = asyncio.get_running_loop().time()
        assert (await here.reach(addresses, "id-b")).address == f"b:{port}"
        assert asyncio.get_running_loop().time() - began_s < 0.01

    simulate(scenario)


def test_another_node_at_the_address_is_not_taken_for_the_one_that_is_meant() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        port = await there.listen("", 0, 0)
        with pytest.raises(ConnectFailed, match="another node"):
            await here.reach([f"b:{port}"], "id-c")
        assert not here.links and not there.links
        with pytest.raises(ConnectFailed, match="no address"):
            await here.reach([], "id-c")

    simulate(scenario)
