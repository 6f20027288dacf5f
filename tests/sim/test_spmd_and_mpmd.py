"""One program on every rank, and another one on every worker: what is compiled, what fails, and what runs where."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest
from support.cases.unlike_ranks import X as UNLIKE_X
from support.cases.unlike_ranks import Y as UNLIKE_Y
from support.cases.unlike_ranks import program, shared
from support.machines.profiles import device as profile
from support.machines.profiles import near, worker
from support.simulated.simulated import simulate

import mesh
import mesh.numpy as mnp
from coordinator.planning import plan_messages
from coordinator.planning.model.program import Program
from coordinator.planning.planner import make_plan
from mesh import Grid, Mesh, PartitionSpec, collectives, shard_map
from mesh.simulation.cluster import Cluster
from mesh.simulation.engine_host import Device
from wire.errors import CompileFailed, MeshError
from wire.ir.graph import WireGraph
from wire.passes.unroll_spmd import unroll
from wire.protocol.messages import PlanKey
from wire.timeouts import COLLECTIVE_TIMEOUT_S
from worker.cpu import evaluate
from worker.engine.protocol import Engine, Executable

X = np.random.default_rng(5).standard_normal((8, 4)).astype(np.float32)
GRID = Grid((4,), ("dp",))
SUMS = mesh.trace(
    shard_map(
        lambda x: collectives.all_reduce(mnp.tanh(x), "dp"),
        GRID,
        in_specs=PartitionSpec("dp"),
        out_specs=PartitionSpec(),
    ),
    X,
)
RIGHT = np.tanh(X).reshape(4, 2, 4).sum(0)


class Counting:
    """An engine that tells what it compiles, or refuses to."""

    def __init__(self, engine: Engine, refuses: bool = False) -> None:
        self._engine = engine
        self._refuses = refuses
        self.compiled: list[bytes] = []

    def compile(self, graph: WireGraph, force: bool = False) -> Executable:
        if self._refuses and graph.free_axes:
            raise CompileFailed("the test's driver takes no such kernel")
        self.compiled.append(graph.hash)
        return self._engine.compile(graph, force)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def counting(count: int, refuses: int = -1) -> tuple[list[Device], list[Counting]]:
    """Devices whose engines are counted, one of which may refuse."""
    made: list[Counting] = []

    def device(number: int) -> Device:
        one = Device()

        def wrap(engine: Engine) -> Engine:
            made.append(Counting(engine, number == refuses))
            return cast(Engine, made[-1])

        one.wrap = wrap
        return one

    return [device(number) for number in range(count)], made


async def ran(cluster: Cluster, graph: WireGraph) -> Any:
    """What it gives as ranks."""
    _, outputs, _ = cluster.coordinator.submit(Program(graph, {}, "ranks"), {"x": X})
    return (await outputs)[0]


def test_the_graph_of_all_ranks_is_compiled_once_on_each_whatever_it_is_called() -> None:
    devices, engines = counting(4)

    async def scenario(cluster: Cluster) -> None:
        for name in ("one", "one", "another"):
            graph = WireGraph(SUMS.nodes, SUMS.outputs, SUMS.output_names, SUMS.types, name)
            np.testing.assert_allclose(await ran(cluster, graph), RIGHT, rtol=1e-6)

    simulate(scenario, devices=devices)
    ranks = [[each for each in engine.compiled if each in _rank_graphs()] for engine in engines]
    assert [len(each) for each in ranks] == [1] * 4
    assert len({each for one in ranks for each in one}) == 1


def test_ranks_that_take_other_branches_are_of_unlike_devices_and_each_compiles_its_own_graph() -> None:
    devices, engines = counting(3)
    for each, gflops in zip(devices, (2e-4, 4e-4, 1e-4), strict=True):
        each.gflops = gflops
    graph = program(shared((3, 2, 1)), out=PartitionSpec())
    right = evaluate(unroll(graph), {"x": UNLIKE_X, "y": UNLIKE_Y})

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            _, outputs, _ = cluster.coordinator.submit(Program(graph, {}, "ranks"), {"x": UNLIKE_X, "y": UNLIKE_Y})
            for one, other in zip(await outputs, right, strict=True):
                np.testing.assert_array_equal(one, other)

    simulate(scenario, devices=devices)
    plan = make_plan(
        graph, near(*(worker(n, profile(0, each.gflops, 10.0)) for n, each in enumerate(devices))), "ranks"
    )
    mine = [part.graph.hash for part in plan.parts[:3]]
    assert [part.node for part in plan.parts[:3]] == ["node-1", "node-0", "node-2"]
    assert [engines[number].compiled.count(each) for number, each in zip((1, 0, 2), mine, strict=True)] == [1, 1, 1]
    assert [sum(each in mine for each in engine.compiled) for engine in engines] == [1, 1, 1]


def test_a_session_of_ranks_that_take_other_branches_carries_its_state() -> None:
    def step(state: Any, x: Any) -> Any:
        def local(state: Any, x: Any) -> Any:
            rank = collectives.axis_index("dp")
            sums = mesh.cond(rank == 1, lambda: mnp.sum(x[:1], axis=0), lambda: mnp.sum(x, axis=0))
            total = collectives.all_reduce(sums, "dp")
            return state + total, total

        return shard_map(local, GRID, (PartitionSpec(), PartitionSpec("dp")), (PartitionSpec(), PartitionSpec()))(
            state, x
        )

    expected = X.sum(0) - X[3]
    with Mesh.builder().simulate(4).build() as made, made.session(step, np.zeros(4, np.float32), X) as session:
        results = [session.step(X).result() for _ in range(3)]
        np.testing.assert_allclose(results, [expected] * 3, rtol=1e-5)
        np.testing.assert_allclose(session.state(), 3 * expected, rtol=1e-5)
        assert any("do not compute the same" in reason for reason in made.plan(step, results[0], X).data["reasons"])


def test_a_worker_with_several_ranks_is_sent_their_graph_once() -> None:
    profiles = near(worker(0, *(profile(number, 1.0, 1.0) for number in range(4))))
    plan = make_plan(SUMS, profiles, "ranks")
    message = plan_messages.deploy(plan, "node-0", PlanKey(1, 1), {}, plan_messages.Inventory({}, {}))
    assert len(message.parts) == 4
    assert {part.graph for part in message.parts} == message.graphs.keys() == _rank_graphs()


def test_a_rank_that_cannot_compile_fails_the_call_for_all_long_before_the_deadline() -> None:
    devices, _ = counting(4, refuses=2)

    async def scenario(cluster: Cluster) -> None:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(MeshError, match="takes no such kernel"):
            await ran(cluster, SUMS)
        assert asyncio.get_running_loop().time() - began_s < COLLECTIVE_TIMEOUT_S / 2
        assert not any(cluster.busy().values())

    simulate(scenario, devices=devices)


def test_two_workers_run_different_programs_in_one_step() -> None:
    def both(x: Any) -> Any:
        one = mesh.to_device(x, "sim-0")
        other = mesh.to_device(x, "sim-1")
        return mnp.sum(mnp.tanh(one)), mnp.max(mnp.exp(other) * other)

    with Mesh.builder().simulate(2).build() as made:
        found = made.run(both, X)
        np.testing.assert_allclose(found[0], np.tanh(X).sum(), rtol=1e-5)
        np.testing.assert_allclose(found[1], (np.exp(X) * X).max(), rtol=1e-5)
        report = made.report()
        assert {name for name, its in report.workers.items() if its.parts} == {"sim-0", "sim-1"}

        def step(state: Any, x: Any) -> Any:
            first, second = both(x)
            return state + first, second

        with made.session(step, np.float32(0), X) as session:
            results = [session.step(X).result() for _ in range(3)]
            np.testing.assert_allclose(session.state(), 3 * np.tanh(X).sum(), rtol=1e-5)
        np.testing.assert_allclose(results, [(np.exp(X) * X).max()] * 3, rtol=1e-5)


def _rank_graphs() -> set[bytes]:
    plan = make_plan(SUMS, near(*(worker(number, profile(0, 1.0, 1.0)) for number in range(4))), "ranks")
    return {plan.parts[part].graph.hash for gang in plan.gangs for part in gang.parts}
