"""`Mesh.builder().simulate(n)`: the program of a user on a mesh that is simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.simulated.simulated import simulate

import mesh.numpy as mnp
from mesh import AsyncMesh, Mesh, errors
from mesh.simulation.cluster import Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from wire.errors import NodeLost
from wire.protocol.messages import Paused

X = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)


def tower(x: Any) -> Any:
    for _ in range(12):
        x = mnp.tanh(x @ x) * 0.5
    return x


def killed_in_the_middle(seed: int) -> tuple[bytes, str]:
    with Mesh.builder().mesh("sim").simulate(3, seed).build() as mesh:
        job = mesh.submit(tower, X, strategy="pipeline")
        mesh.simulation.kill("sim-1")
        first = job.result()
        mesh.simulation.start("sim-1")
        mesh.simulation.wait(5)
        states = {node.name: node.state for node in mesh.nodes}
        assert states == {"sim-0": "healthy", "sim-1": "healthy", "sim-2": "healthy"}
        second = mesh.run(tower, X, strategy="pipeline")
        assert sorted(mesh.report().workers) == ["sim-0", "sim-1", "sim-2"]
        np.testing.assert_array_equal(first, second)
        return first.tobytes(), mesh.simulation.transcript()


def test_tensors_of_the_same_bytes_keep_their_own_types() -> None:
    arrays = [np.array(3, np.int16), np.array([3], np.int16), np.array([3], np.uint16), np.array([[3, 0]], np.uint8)]
    with Mesh.builder().mesh("sim").simulate(1).build() as mesh:
        handles = [mesh.put(array) for array in arrays]
        assert len({handle.address for handle in handles}) == 1
        for array, handle in zip(arrays, handles, strict=True):
            same, more = mesh.run(lambda w: (w, w + w), handle)
            assert (same.dtype, same.shape, same.tolist()) == (array.dtype, array.shape, array.tolist())
            assert (more.dtype, more.shape, more.tolist()) == (array.dtype, array.shape, (array + array).tolist())


def test_a_simulated_mesh_computes_what_the_program_computes_alone() -> None:
    with Mesh.builder().mesh("sim").simulate(4).build() as mesh:
        held = mesh.put(X)
        for strategy in ("auto", "single", "pipeline"):
            found = mesh.run(tower, held, strategy=strategy)
            np.testing.assert_array_equal(found, mesh.run(tower, X, mode="off"))
        assert [node.name for node in mesh.nodes] == ["sim-0", "sim-1", "sim-2", "sim-3"]
        assert mesh.plan(tower, X, strategy="pipeline").workers


def test_a_death_is_survived_and_the_run_replays() -> None:
    answer, transcript = killed_in_the_middle(7)
    with Mesh.builder().mesh("sim").simulate(1).build() as mesh:
        assert answer == mesh.run(tower, X).tobytes()
    assert "sim-1 is killed" in transcript and "dead sim-1" in transcript
    assert killed_in_the_middle(7)[1] == transcript


def test_a_link_that_ends_while_its_worker_is_looked_up_joins_nobody() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, ended = cluster.coordinator, list[str]()

        def looked_up(node: str) -> None:
            if not ended:
                ended.append(node)
                coordinator.endpoint.links[node].fail(NodeLost("the network went"))

        cluster.kill("sim-1")
        await asyncio.sleep(5)
        coordinator.names_come_from(looked_up)
        cluster.start("sim-1")
        while not ended:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        assert ended[0] not in coordinator._members
        await asyncio.sleep(10)
        assert {node.name: node.state for node in coordinator.nodes()}["sim-1"] == "healthy"
        assert not coordinator._members[ended[0]].link.closed

    simulate(scenario, devices=[Device() for _ in range(2)])


@pytest.mark.parametrize("by", ["machine", ""])
def test_what_a_worker_says_while_it_is_looked_up_counts(by: str) -> None:
    """It has answered by then, and does not say it again."""

    async def scenario(cluster: Cluster) -> None:
        coordinator, told = cluster.coordinator, list[str]()

        def looked_up(node: str) -> None:
            told.append(node)
            link = coordinator.endpoint.links[node]
            for news in (Paused("machine"), Paused(by)):
                link._owner.handler.on_notify(link, news)

        cluster.kill("sim-1")
        await asyncio.sleep(5)
        coordinator.names_come_from(looked_up)
        cluster.start("sim-1")
        await asyncio.sleep(5)
        (node,) = told
        assert coordinator._members[node].paused == by
        assert (node in coordinator._state.nodes) == (not by)

    simulate(scenario, devices=[Device() for _ in range(2)])


def test_time_is_virtual_and_stands_still_while_nothing_is_asked() -> None:
    with Mesh.builder().mesh("sim").simulate(2, gflops=(1e-6, 1e-6)).build() as mesh:
        built_s = mesh.simulation.now_s
        assert mesh.simulation.now_s == built_s
        mesh.run(lambda x: x @ x, X, strategy="single")
        assert mesh.simulation.now_s - built_s > 500, "2 * 64**3 flops at 1000 flop/s"
        mesh.simulation.wait(600)
        assert mesh.simulation.now_s - built_s > 1100


def test_a_worker_that_is_cut_off_is_suspected_dies_and_returns() -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        seen: list[tuple[str, str]] = []
        mesh.watch(lambda event: seen.append((event["kind"], event["node"])))
        mesh.simulation.silence("sim-2")
        mesh.simulation.wait(0.8)
        assert {node.name: node.state for node in mesh.nodes}["sim-2"] == "suspect"
        mesh.simulation.wait(1.0)
        assert {node.name: node.state for node in mesh.nodes}["sim-2"] == "dead"
        np.testing.assert_array_equal(mesh.run(tower, X), mesh.run(tower, X, mode="off"))
        mesh.simulation.heal()
        mesh.simulation.wait(5)
        assert {node.name: node.state for node in mesh.nodes}["sim-2"] == "healthy"
    kinds = [kind for kind, node in seen if node == "sim-2"]
    assert kinds.index("suspect") < kinds.index("dead") < kinds.index("healthy")


def test_a_worker_that_went_in_good_order_has_left_and_is_not_dead() -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        mesh.simulation.leave("sim-1")
        mesh.simulation.kill("sim-2")
        mesh.simulation.wait(2.0)
        assert [node.state for node in mesh.nodes] == ["healthy", "left", "dead"]
        mesh.simulation.start("sim-1")
        mesh.simulation.wait(2.0)
        assert [(node.name, node.state) for node in mesh.nodes][1] == ("sim-1", "healthy")


def test_a_watcher_that_raises_keeps_nobody_from_going_on(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Mapping[str, Any]) -> None:
        seen.append(event["kind"])
        raise {"dead": KeyError, "suspect": ValueError}.get(event["kind"], TypeError)("a bug of its author")

    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        seen, after = list[str](), list[str]()
        mesh.watch(broken)
        mesh.watch(lambda event: after.append(event["kind"]))
        mesh.simulation.kill("sim-0")
        mesh.simulation.silence("sim-1")
        mesh.simulation.wait(3)
        mesh.simulation.heal()
        mesh.simulation.start("sim-0")
        job = mesh.submit(tower, X, mode="on")
        np.testing.assert_array_equal(job.result(), mesh.run(tower, X, mode="off"))
        mesh.simulation.wait(5)
        assert [node.state for node in mesh.nodes] == ["healthy", "healthy"]
    assert seen == after and seen.count("dead") == 2 and seen.count("healthy") >= 2
    told = [record for record in caplog.records if "watches the mesh" in record.message]
    assert [record.exc_info and record.exc_info[0] for record in told] == [KeyError, ValueError, TypeError], "once each"


def test_no_worker_left_is_an_error_after_virtual_seconds() -> None:
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        job = mesh.submit(tower, X, mode="on")
        mesh.simulation.kill("sim-0")
        mesh.simulation.kill("sim-1")
        with pytest.raises(errors.NodeLost):
            job.result()


def test_what_cannot_be_simulated_is_refused() -> None:
    builder = Mesh.builder().mesh("sim")
    with pytest.raises(errors.InputError, match="the number of simulated workers is an int from 1 to 1024, not 0"):
        builder.simulate(0)
    for count, gflops in ((2, (1.0,)), (1, (-1.0,))):
        with pytest.raises(errors.ConfigError, match="positive figure"):
            builder.simulate(count, gflops=gflops)
    with pytest.raises(errors.ConfigError, match="no real nodes"):
        builder.simulate(2).local(1).build()
    with builder.simulate(1).build() as mesh:
        with pytest.raises(errors.ConfigError, match="there is no worker 'sim-9'"):
            mesh.simulation.kill("sim-9")
        mesh.simulation.kill("sim-0")
        with pytest.raises(errors.ConfigError, match="does not run"):
            mesh.simulation.kill("sim-0")
    with pytest.raises(errors.ConfigError, match="virtual clock"):
        asyncio.run(builder.simulate(1).build_async())


def test_programs_with_a_loop_run_on_a_virtual_one() -> None:
    async def program() -> None:
        async with await AsyncMesh.builder().mesh("sim").simulate(2).build_async() as mesh:
            job = await mesh.submit(tower, X, strategy="pipeline")
            mesh.simulation.kill("sim-0")
            np.testing.assert_array_equal(await job.result(), await mesh.run(tower, X, mode="off"))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(program())
