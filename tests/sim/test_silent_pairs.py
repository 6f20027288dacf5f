"""Two workers that are well and hear nothing of each other: noticed within the node time-out, and relayed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import numpy as np
import pytest
from numpy.typing import NDArray
from support.machines.links import Recorder, node
from support.simulated.simulated import simulate

from coordinator.calls.state import STALLED_S_MIN
from coordinator.planning.model.program import Program
from mesh.simulation.cluster import COORDINATOR, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import SimulatedNetwork
from mesh.simulation.virtual_network import Conditions
from wire.errors import NodeLost
from wire.ir.dtypes import dtype_named
from wire.ir.graph import GraphBuilder
from wire.limits import Limits
from wire.link.endpoint import Endpoint
from wire.link.keepalive import StepKeepalive
from wire.link.link import Link
from wire.protocol.messages import PlanKey, Push, Value
from wire.timeouts import BEATS, SILENT
from worker.cpu import evaluate

NOTICED_S = 2.0  # from the silence until the work goes on through the coordinator
BEAT_S = 0.1
PUSH = Push(PlanKey(1, 2), 3, 0, 1, Value("u8", (5,)))


# -- in a mesh


def alone(program: Program, x: NDArray[np.float32]) -> np.float32:
    """What one machine computes."""
    return evaluate(program.graph, {"x": x})[0]


def large(size: int) -> tuple[Program, NDArray[np.float32]]:
    """Parts of a pipeline that hand each other `size` floats."""
    made = GraphBuilder()
    value = made.input("x", (size,), dtype_named("f32"))
    for _ in range(6):
        value = made.add("sin", value)
    return Program(made.build([made.add("reduce_sum", value, axes=(0,))]), {}, "pipeline"), np.ones(size, np.float32)


async def cut_in_the_middle(cluster: Cluster, size: int, pairs: list[tuple[str, str]], ways: int) -> float:
    """Seconds that a call takes longer where pairs are cut in the middle of it; its answer is right."""
    (program, x), loop = large(size), asyncio.get_running_loop()
    wanted = alone(program, x)
    _, report = await cluster.coordinator.call(program, {"x": x})
    assert len(report.workers) == 3
    await asyncio.sleep(8)

    async def timed() -> float:
        began_s = loop.time()
        (found,), _ = await cluster.coordinator.call(program, {"x": x})
        assert found == wanted
        return loop.time() - began_s

    await timed()
    usual_s = await timed()
    call = asyncio.create_task(timed())
    await asyncio.sleep(usual_s / 2)
    for one, other in pairs:
        cluster.block(one, other)
        if ways == 2:
            cluster.block(other, one)
    took_s = max(await call, await timed())  # the second where the first was through already
    assert not [event for event in cluster.coordinator.events if event.kind in ("dead", "suspect")]
    if len(pairs) == 1:
        assert await timed() < 3 * usual_s + 0.2, "and later calls do not run into it"
    return took_s - 3 * usual_s  # it is done again, and what is relayed takes twice as long


PAIRS = [("sim-0", "sim-1"), ("sim-0", "sim-2"), ("sim-1", "sim-2")]


@pytest.mark.parametrize(
    ("size", "ways"),
    [(1000, 1), (4_000_000, 2), *(pytest.param(*each, marks=pytest.mark.long) for each in ((1000, 2), (4_000_000, 1)))],
)
def test_a_silence_in_the_middle_of_a_step_costs_about_the_node_timeout(size: int, ways: int) -> None:
    """Small tensors are lost without a word, large ones stop in the middle of their stream."""
    lost = []
    for pair in PAIRS:

        async def scenario(cluster: Cluster, pair: tuple[str, str] = pair) -> None:
            lost.append(await cut_in_the_middle(cluster, size, [pair], ways))

        simulate(scenario, devices=[Device(dispatch_s=0.05) for _ in range(3)])
    assert max(lost) > 0.5, "one of them was in use"
    assert max(lost) < NOTICED_S, lost


@pytest.mark.parametrize("ways", [1, 2])
def test_where_nobody_hears_anybody_each_pair_is_found_in_turn(ways: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert await cut_in_the_middle(cluster, 1000, PAIRS, ways) < 5 * NOTICED_S

    simulate(scenario, devices=[Device(dispatch_s=0.05) for _ in range(3)])


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_worker_that_gave_a_resting_link_up_does_not_wait_for_one_that_still_trusts_it(
    pair: tuple[str, str], end: int
) -> None:
    """A small tensor is sent into the dead link, and its sender is done: only the receiver can know better."""
    took: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        (program, x), loop = large(1000), asyncio.get_running_loop()
        for _ in range(2):
            await cluster.coordinator.call(program, {"x": x})
        await asyncio.sleep(8)
        cluster.block(*pair)
        cluster.block(*reversed(pair))
        daemon = cluster._processes[pair[end]].daemon
        assert daemon is not None
        links = {link.peer.name: link for link in daemon._endpoint.links.values()}
        links[pair[1 - end]].fail(NodeLost("no answer", node=pair[1 - end], cause=SILENT))
        await asyncio.sleep(1.5)
        for _ in range(3):
            began_s = loop.time()
            (found,), _ = await cluster.coordinator.call(program, {"x": x})
            assert found == alone(program, x)
            took.append(loop.time() - began_s)

    simulate(scenario)
    assert took[0] < 2 * NOTICED_S and max(took[1:]) < NOTICED_S, took


@pytest.mark.parametrize("bytes_per_s", [1e9, 1e7, 2e6])
def test_a_busy_link_is_not_silent(bytes_per_s: float) -> None:
    """Streams that take a minute, in both directions, while answers are late by up to a second."""
    program, x = large(2_000_000)
    wanted = alone(program, x)

    async def scenario(cluster: Cluster) -> None:
        for one in cluster.names:
            for other in cluster.names:
                if one != other:
                    slow = Conditions(delay_s=0.2, jitter_s=0.3, bytes_per_s=bytes_per_s, loss=0.01)
                    cluster.network.set_way(one, other, slow)
        await asyncio.sleep(10)
        calls = [asyncio.create_task(cluster.coordinator.call(program, {"x": x})) for _ in range(4)]
        for (found,), report in await asyncio.gather(*calls):
            assert found == wanted and len(report.workers) == 3 and len(report.generations) == 1

    assert SILENT not in simulate(scenario)


def test_a_pair_that_hears_of_each_other_again_is_linked_again() -> None:
    program, x = large(1000)

    async def scenario(cluster: Cluster) -> None:
        await cluster.coordinator.call(program, {"x": x})
        await asyncio.sleep(5)
        call = asyncio.create_task(cluster.coordinator.call(program, {"x": x}))
        for one, other in PAIRS:
            cluster.block(one, other)
        await call
        paths = {pair.path for pair in cluster.coordinator.pairs() if COORDINATOR not in (pair.source, pair.target)}
        assert "relay" in paths
        cluster.heal()
        await asyncio.sleep(90)
        await cluster.coordinator.call(program, {"x": x})
        assert not any(pair.path == "relay" for pair in cluster.coordinator.pairs())

    simulate(scenario)


# -- over one link


async def watched(network: SimulatedNetwork, stream: int = 0, beats: int = 40, reads: bool = True) -> tuple[Link, Link]:
    """Two nodes over one link, both keeping a vigil for so many beats while one sends a stream."""
    handlers = Recorder(), Recorder()
    ends = [
        Endpoint(node(name, host_id=name), handler, network.carrier(name), Limits())
        for name, handler in zip("ab", handlers, strict=True)
    ]
    port = await ends[1].listen("", 0, 0)
    link = await ends[0].dial("b", port)
    await asyncio.sleep(0.1)
    other = ends[1].links["id-a"]

    async def keep(end: Endpoint, nodes: Collection[str]) -> None:
        vigil = StepKeepalive(end)
        for _ in range(beats):
            vigil.check(nodes)
            await asyncio.sleep(BEAT_S)

    sending = asyncio.ensure_future(link.send_stream(PUSH, memoryview(bytes(stream)))) if stream else None
    await asyncio.gather(keep(ends[0], ["id-b"]), keep(ends[1], ["id-a"]))
    if sending is not None:
        sending.cancel()
    return link, other


def over_a_link(conditions: Conditions, back: Conditions, **how: int) -> bool:
    """Whether the link still stands after all that."""

    async def run() -> bool:
        network = SimulatedNetwork()
        network.set_way("a", "b", conditions)
        network.set_way("b", "a", back)
        link, other = await watched(network, **how)
        return not link.closed and not other.closed

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


FAST, SLOW = Conditions(delay_s=0.0004), Conditions(delay_s=0.3, jitter_s=0.6, bytes_per_s=4e5, loss=0.02)


@pytest.mark.parametrize(("there", "back"), [(FAST, FAST), (SLOW, FAST), (FAST, SLOW), (SLOW, SLOW)])
@pytest.mark.parametrize("stream", [0, 30_000_000])
def test_no_line_that_carries_anything_is_silent(there: Conditions, back: Conditions, stream: int) -> None:
    assert over_a_link(there, back, stream=stream, beats=300)


@pytest.mark.parametrize("blocked", ["a", "b", "ab"])
@pytest.mark.parametrize("stream", [0, 30_000_000])
@pytest.mark.parametrize(("beats", "ended"), [(BEATS - 2, False), (BEATS + 4, True)])
def test_a_silence_either_way_ends_the_link_in_time(blocked: str, stream: int, beats: int, ended: bool) -> None:
    async def run() -> None:
        network = SimulatedNetwork()
        watching = asyncio.create_task(watched(network, stream, beats=10 + beats))
        await asyncio.sleep(0.1 + 10 * BEAT_S)
        for source in blocked:
            network.block([source], ["a" if source == "b" else "b"])
        link, other = await watching
        assert (link.closed or other.closed) == ended

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_a_process_that_stood_still_blames_nobody() -> None:
    """One check heard nothing, after five seconds in which the process read nothing."""

    async def run() -> None:
        network, recorder = SimulatedNetwork(), Recorder()
        a = Endpoint(node("a", host_id="a"), recorder, network.carrier("a"))
        b = Endpoint(node("b", host_id="b"), recorder, network.carrier("b"))
        link = await a.dial("b", await b.listen("", 0, 0))
        vigil = StepKeepalive(a)
        for _ in range(10):
            for _ in range(5):
                vigil.check(["id-b"])
                await asyncio.sleep(BEAT_S)
            await asyncio.sleep(5.0)
        assert not link.closed

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


@pytest.mark.parametrize("down_s", [0.0, 0.3])
@pytest.mark.parametrize(("one", "other"), [("sim-0", "sim-1"), ("sim-1", "sim-2"), ("sim-2", "sim-0")])
def test_calls_end_where_a_worker_starts_again_behind_a_cut_link(one: str, other: str, down_s: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        program, x = large(1000)
        for _ in range(2):
            await cluster.coordinator.call(program, {"x": x})
        await asyncio.sleep(3)
        await cluster.coordinator.call(program, {"x": x})
        for source, target in ((one, other), (other, one)):
            cluster.network.block([source], [target])
        cluster.kill(other)
        await asyncio.sleep(down_s)
        cluster.start(other)
        for _ in range(3):
            async with asyncio.timeout(2 * STALLED_S_MIN):
                (found,), _ = await cluster.coordinator.call(program, {"x": x})
            np.testing.assert_allclose(found, alone(program, x), rtol=1e-6)
            await asyncio.sleep(0.3)

    simulate(scenario, devices=[Device(dispatch_s=0.01) for _ in range(3)])
