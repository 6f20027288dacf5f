"""Links come back by themselves, from either side, and dead ones are noticed: idle, asleep, or at another address."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from support.machines.links import Recorder, node
from support.simulated.simulated import simulate as simulate_mesh
from support.waiting import until

from mesh.simulation.cluster import COORDINATOR, PORT, Cluster
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from wire.errors import Busy, ConnectFailed, MeshError, NodeLost
from wire.link.endpoint import Endpoint
from wire.link.keepalive import LOOK_S, TICK_S, LinkWatch, resting_s, revived
from wire.link.link import Link
from wire.link.reconnect import stay_linked
from wire.link.sleep_detector import STOOD_S_MIN
from wire.timeouts import DEFAULT_TIMEOUTS as LAN

HOUR_S = 3600.0


def simulate(scenario: Callable[[SimulatedNetwork], Awaitable[object]], seed: int = 0) -> None:
    async def run() -> None:
        await scenario(SimulatedNetwork(seed))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def endpoint(network: SimulatedNetwork, name: str) -> Endpoint:
    chance = random.Random(name).random
    return Endpoint(node(name, host_id=name), Recorder(), network.carrier(name), chance=chance)


def test_a_node_that_comes_back_is_linked_again_however_long_it_was_gone() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here = endpoint(network, "a")
        staying = asyncio.create_task(stay_linked(here, lambda: ("b:7100",)))
        for gone_s in (0.0, 1.0, 60.0, 4 * HOUR_S):
            await asyncio.sleep(gone_s)
            there = endpoint(network, "b")
            await there.listen("", 7100, 7100)
            await until(lambda: bool(here.links), 5.5)
            network.kill("b")
            await until(lambda: not here.links, 1.0)
        staying.cancel()

    simulate(scenario)


def test_errors_of_the_moment_are_never_final() -> None:
    """EHOSTUNREACH and ENETUNREACH arrive as ConnectFailed, like everything else that a network may say."""

    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        await there.listen("", 7100, 7100)
        failures: list[MeshError] = []
        connect, left = here._carrier.connect, [50]

        async def unreachable(address: str, port: int) -> object:
            left[0] -= 1
            if left[0] >= 0:
                raise ConnectFailed(f"no node answers at {address}:{port}", cause="No route to host")
            return await connect(address, port)

        here._carrier.connect = unreachable
        staying = asyncio.create_task(stay_linked(here, lambda: ("b:7100",), failed=failures.append))
        await until(lambda: bool(here.links), 50 * 5.0)
        assert [error.cause for error in failures] == ["No route to host"] * 50
        staying.cancel()

    simulate(scenario)


def test_one_that_refuses_is_asked_less_and_less_often() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        await there.listen("", 7100, 7100)
        asked: list[float] = []

        async def busy(link: Link) -> None:
            asked.append(asyncio.get_running_loop().time())
            link.close("could not join")
            raise Busy("serves another")

        staying = asyncio.create_task(stay_linked(here, lambda: ("b:7100",), busy))
        await asyncio.sleep(60)
        assert 12 < len(asked) < 80
        staying.cancel()

    simulate(scenario)


def test_a_link_that_the_other_side_made_counts() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        await here.listen("", 7100, 7100)
        await there.listen("", 7100, 7100)
        both = [
            asyncio.create_task(stay_linked(here, lambda: ("b:7100",))),
            asyncio.create_task(stay_linked(there, lambda: ("a:7100",))),
        ]
        for _ in range(20):
            await until(lambda: bool(here.links and there.links), 5.5)
            assert here.links["id-b"].link_id == there.links["id-a"].link_id
            here.links["id-b"].close("a fault")
            await asyncio.sleep(0.5)
        for each in both:
            each.cancel()

    simulate(scenario)


def test_an_idle_link_is_asked_and_a_dead_one_ended() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        link = await here.dial("b", await there.listen("", 0, 0))
        watching = asyncio.create_task(LinkWatch(here, wall=asyncio.get_running_loop().time).run())
        await asyncio.sleep(10 * LAN.keepalive_idle_s)
        assert not link.closed
        network.block(["b"], ["a"])
        assert await until(lambda: link.closed, 60.0) < LAN.keepalive_idle_s + LAN.keepalive_answer_s + 2 * TICK_S
        watching.cancel()

    simulate(scenario)


def test_a_link_that_nothing_depends_on_is_asked_seldom_and_at_once_when_something_does() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        link = await here.dial("b", await there.listen("", 0, 0))
        watch = LinkWatch(here, wall=asyncio.get_running_loop().time)
        needed: set[str] = set()
        watch.needed = lambda: needed
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(5)
        before = network.frames
        await asyncio.sleep(20 * LAN.keepalive_resting_s)
        assert 28 <= network.frames - before <= 42  # a question and an answer each time
        assert await revived(link, LAN)
        network.block(["b"], ["a"])
        needed.add("id-b")
        assert await until(lambda: link.closed, 60.0) < LAN.keepalive_idle_s + LAN.keepalive_answer_s + 2 * TICK_S
        assert not await revived(link, LAN)
        watching.cancel()

    simulate(scenario)


@pytest.mark.parametrize("side", ["dialler", "acceptor"])
def test_a_link_that_nothing_depends_on_does_not_die_unnoticed_for_long(side: str) -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, there = endpoint(network, "a"), endpoint(network, "b")
        await here.dial("b", await there.listen("", 0, 0))
        watched = here if side == "dialler" else there
        (link,) = watched.links.values()
        watch = LinkWatch(watched, wall=asyncio.get_running_loop().time)
        watch.needed = tuple
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(100)
        network.block(["a"], ["b"])
        network.block(["b"], ["a"])
        later_s = 0.0 if side == "dialler" else 2 * LOOK_S
        noticed_s = LAN.keepalive_resting_s + later_s + LOOK_S + LAN.keepalive_answer_s + 2 * TICK_S
        assert await until(lambda: link.closed, 120.0) < noticed_s
        watching.cancel()

    simulate(scenario)


@pytest.mark.parametrize(("links", "asked_s"), [(1, 15.0), (100, 15.0), (210, 30.0), (1000, 60.0)])
def test_many_links_are_asked_less_often_each(links: int, asked_s: float) -> None:
    assert resting_s(links, LAN.keepalive_resting_s) == asked_s


@pytest.mark.parametrize("how", ["slept", "moved"])
def test_after_sleep_or_a_move_all_links_are_asked_at_once(how: str) -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        here, alive, dead = (endpoint(network, name) for name in "abc")
        links = [await here.dial(each.identity.name, await each.listen("", 0, 0)) for each in (alive, dead)]
        clock = asyncio.get_running_loop().time
        ahead_s, changes = [0.0], [False]
        watch = LinkWatch(here, lambda: changes.pop() if changes else False, lambda: clock() + ahead_s[0])
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(3)
        network.block(["c"], ["a"])
        if how == "slept":
            ahead_s[0] = 8 * HOUR_S
        else:
            changes.append(True)
        assert await until(lambda: links[1].closed, 60.0) < TICK_S + LAN.keepalive_doubtful_answer_s + 0.1
        assert not links[0].closed
        watching.cancel()

    simulate(scenario)


def test_a_process_that_was_held_up_gives_others_the_usual_time() -> None:
    """The machine is busy, and those who answer may be held up as well."""

    async def scenario(network: SimulatedNetwork) -> None:
        here, other = (endpoint(network, name) for name in "ab")
        link = await here.dial(other.identity.name, await other.listen("", 0, 0))
        watch = LinkWatch(here)
        watch.answer_s = LAN.keepalive_answer_s
        network.block(["b"], ["a"])
        before_s = STOOD_S_MIN + 1.0
        watch._waking.tick(asyncio.get_running_loop().time() - before_s, watch.wall() - before_s)
        watching = asyncio.create_task(watch.run())
        assert LAN.keepalive_answer_s <= await until(lambda: link.closed, 60.0) < LAN.keepalive_answer_s + 0.1
        watching.cancel()

    simulate(scenario)


def test_a_node_that_moved_replaces_its_old_link_at_once() -> None:
    """A node dials from another address while the other side still holds its earlier link."""

    async def scenario(network: SimulatedNetwork) -> None:
        hub, before = endpoint(network, "hub"), endpoint(network, "wifi")
        port = await hub.listen("", 0, 0)
        link = await before.dial("hub", port)
        network.block(["wifi"], ["hub"])
        network.block(["hub"], ["wifi"])
        old = hub.links["id-wifi"]
        link.fail(ConnectFailed("no answer"))  # as LinkWatch does; nothing of it reaches the other side
        before._carrier = network.carrier("cable")
        began_s = asyncio.get_running_loop().time()
        await before.dial("hub", port)
        assert asyncio.get_running_loop().time() - began_s < 0.01
        assert old.closed and hub.links["id-wifi"] is not old

    simulate(scenario)


def test_a_worker_looks_for_the_coordinator_that_dialled_it_and_finds_it_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.coordinator.endpoint.listen(COORDINATOR, PORT, PORT)
        cluster.kill("sim-0")
        await asyncio.sleep(1)
        cluster.start("sim-0")
        await until(lambda: "sim-0" in alive(cluster), 10.0)
        cluster.coordinator.forget("sim-0", PORT)
        for _ in range(3):
            node_id = next(node.node_id for node in cluster.coordinator.nodes() if node.name == "sim-0")
            cluster.coordinator.endpoint.links[node_id].fail(NodeLost("a fault"))
            await until(lambda: "sim-0" not in alive(cluster), 1.0)
            await until(lambda: "sim-0" in alive(cluster), 10.0)

    simulate_mesh(scenario)


def alive(cluster: Cluster) -> set[str]:
    return {node.name for node in cluster.coordinator.nodes() if node.state == "healthy"}


def test_a_worker_alone_for_long_warns_once_and_again_only_after_somebody_wanted_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        for _ in range(2):
            cluster.silence("sim-0")
            await asyncio.sleep(5 * LAN.no_coordinator_warning_s)
            cluster.heal()
            await until(lambda: "sim-0" in alive(cluster), 60.0)
            await asyncio.sleep(LAN.no_coordinator_warning_s)

    simulate_mesh(scenario)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("no coordinator in")]
    assert len(said) == 2
    assert all("sim-0:7100" in each and "mDNS is off" in each for each in said)
