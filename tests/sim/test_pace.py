"""Plans follow the pace of devices where that pays, and nothing moves for noise or for what devices always were."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from support.simulated.simulated import simulate

from coordinator.plan_service.migration_cost import WEIGHTS_MOVE
from coordinator.plan_service.straggler_mitigation import RETRY_S_FIRST
from coordinator.planning.model.program import Program
from mesh.simulation.cluster import COORDINATOR, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.virtual_network import Conditions
from wire.ir.codec import hash_array
from wire.ir.dtypes import dtype_named
from wire.ir.graph import GraphBuilder

X = np.ones((32, 32), np.float32)
KFLOPS = X.size * 16  # of one sin
SETTLED = 20  # calls within which what was worth it has moved
LATER = 60  # calls after which also what gains little has
NEAR = 1.04 / WEIGHTS_MOVE.ratio  # times the best: what is left is not worth a move


def chain(length: int, strategy: str = "auto") -> Program:
    made = GraphBuilder()
    node = made.input("x", X.shape, dtype_named("f32"))
    for _ in range(length):
        node = made.add("sin", node)
    return Program(made.build([node]), {}, strategy)


def device(node_s: float) -> Device:
    """One that takes so long for a node of the chain."""
    return Device(gflops=KFLOPS / node_s / 1e9, gbytes_per_s=1e6, dispatch_s=1e-4)


def alike(count: int = 3) -> list[Device]:
    return [device(0.004) for _ in range(count)]


def unlike() -> list[Device]:
    """The devices of a mesh at home: a graphics card, and processors up to thirty times slower."""
    return [device(0.001), device(0.004), device(0.030)]


def each_once(*values: Sequence[Any]) -> list[Any]:
    """Every combination; the default run has two, in which each of two values is once; the long suite has all."""
    chosen = {tuple(place % len(each) for each in values) for place in range(2)}
    return [
        pytest.param(
            *(each[index] for each, index in zip(values, indices, strict=True)),
            marks=[] if indices in chosen else pytest.mark.long,
        )
        for indices in itertools.product(*(range(len(each)) for each in values))
    ]


@dataclass
class Calls:
    """What calls took and which plans they went by."""

    cluster: Cluster
    seconds: list[float] = field(default_factory=list)
    nodes: list[list[str]] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)

    async def run(self, program: Program, count: int, before: Callable[[], object] = lambda: None) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            before()
            began_s = loop.time()
            _, report = await self.cluster.coordinator.call(program, {"x": X})
            self.seconds.append(loop.time() - began_s)
            self.nodes.append(sorted(report.workers))
            self.generations.append(report.generation)

    def events_of(self, kind: str) -> list[str]:
        return [event.text for event in self.cluster.coordinator.events if event.kind == kind]


def knowing(devices: Sequence[Device], program: Program) -> float:
    """What a call takes on a mesh that was measured when its devices were already like this."""
    took: list[float] = []

    async def scenario(cluster: Cluster) -> None:
        calls = Calls(cluster)
        await calls.run(program, 5)
        took.append(calls.seconds[-1])

    measured = [
        Device(each.gflops / each.slower, each.gbytes_per_s / each.slower, each.dispatch_s * each.slower)
        for each in devices
    ]
    simulate(scenario, devices=measured)
    return took[0]


@pytest.mark.parametrize(("devices", "strategy"), each_once((alike, unlike), ("auto", "pipeline")))
def test_at_steady_state_no_plan_changes(devices: Callable[[], list[Device]], strategy: str) -> None:
    """Three hundred calls of three programs in turn, on devices of which one is thirty times slower than another."""

    async def scenario(cluster: Cluster) -> None:
        calls = Calls(cluster)
        programs = [chain(length, strategy) for length in (3, 8, 20)]
        for _ in range(100):
            for program in programs:
                await calls.run(program, 1)
        assert (
            len(set(calls.generations)) == len(programs)
            and not calls.events_of("moved")
            and not calls.events_of("pace")
        )

    simulate(scenario, devices=devices())


def jitter(chance: random.Random) -> float:
    return chance.uniform(0.7, 1.3)


def hiccups(chance: random.Random) -> float:
    return 50.0 if chance.random() < 0.02 else chance.uniform(0.95, 1.05)


@pytest.mark.parametrize("noise", [jitter, hiccups])
@pytest.mark.parametrize("strategy", ["auto", "pipeline"])
def test_noise_moves_nothing(noise: Callable[[random.Random], float], strategy: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        calls, chance = Calls(cluster), random.Random(5)

        def shake() -> None:
            for each in cluster.devices:
                each.slower = noise(chance)

        await calls.run(chain(10, strategy), 500, shake)
        assert len(set(calls.generations)) == 1 and not calls.events_of("moved")

    simulate(scenario, devices=unlike())


def test_a_split_that_takes_longer_than_one_worker_is_given_up_for_good() -> None:
    """Two devices are slower than measured from their first call on, so no past of theirs says it: what calls take
    does."""

    async def scenario(cluster: Cluster) -> None:
        calls, program = Calls(cluster), chain(20)
        await calls.run(program, 12)
        assert len(calls.nodes[-1]) > 1
        split_s = calls.seconds[-1]
        await calls.run(program, 60)
        assert len(calls.nodes[-1]) == 1 and calls.seconds[-1] < 0.7 * split_s
        assert len(calls.events_of("moved")) == 1
        await calls.run(program, 300)
        assert len(calls.events_of("moved")) == 1, "both are known"

    simulate(scenario, devices=[device(0.004), *(replace(device(0.004), slower=6.0) for _ in range(2))])


@pytest.mark.parametrize(
    ("devices", "strategy", "times"), each_once((alike, unlike), ("auto", "pipeline"), (2.0, 10.0, 5.0))
)
def test_a_device_that_becomes_slower_costs_a_few_calls(
    times: float, strategy: str, devices: Callable[[], list[Device]]
) -> None:
    """After the change a call takes what it takes on a mesh that knew it from the start; the same once it is well."""
    program = chain(8, strategy)
    slow = devices()
    slow[0].slower = times
    well_s, best_s = knowing(devices(), program), knowing(slow, program)

    async def scenario(cluster: Cluster) -> None:
        calls = Calls(cluster)
        await calls.run(program, 10)
        assert calls.seconds[-1] == pytest.approx(well_s, rel=0.05)
        assert "sim-0" in calls.nodes[-1]
        cluster.slow("sim-0", times)
        await calls.run(program, SETTLED)
        slow_s = calls.seconds[10]
        assert calls.seconds[-1] <= NEAR * best_s or best_s > 0.65 * slow_s
        await calls.run(program, LATER)
        assert calls.seconds[-1] <= NEAR * best_s, (calls.seconds, best_s)
        moved = len(calls.events_of("moved"))
        assert moved <= 1
        for _ in range(8):  # nothing goes to and fro while it stays slow
            await asyncio.sleep(RETRY_S_FIRST)
            await calls.run(program, 5)
        assert len(calls.events_of("moved")) == moved
        cluster.slow("sim-0", 1.0)
        await asyncio.sleep(300)
        await calls.run(program, LATER)
        assert calls.seconds[-1] <= NEAR * well_s
        assert len(calls.events_of("moved")) <= 2 * moved
        await calls.run(program, 50)
        assert len(set(calls.generations[-50:])) == 1

    simulate(scenario, devices=devices())


def test_a_spell_that_is_over_at_once_moves_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        calls = Calls(cluster)
        for _ in range(10):
            cluster.devices[0].slower = 1.0
            await calls.run(chain(6), 30)
            cluster.devices[0].slower = 8.0
            await calls.run(chain(6), 3)
        assert len(set(calls.generations)) == 1 and not calls.events_of("moved")

    simulate(scenario, devices=alike())


def test_weights_do_not_move_before_staying_has_cost_as_much() -> None:
    """Four MiB over 1 MB/s are not sent for a few tenths of a second, but for a program that is called on and on."""
    made, weights = GraphBuilder(), np.ones((1024, 1024), np.float32)
    node = made.input("x", X.shape, dtype_named("f32"))
    param = made.param("w", weights.shape, dtype_named("f32"))
    corner = made.add("slice", param, start=(0, 0), stop=X.shape, step=(1, 1))
    for _ in range(6):
        node = made.add("sin", made.add("add", node, corner))
    program = Program(made.build([node]), {"w": (hash_array(weights), made.types[param])}, "single")

    async def scenario(cluster: Cluster) -> None:
        for name in cluster.names:
            cluster.network.set_way(COORDINATOR, name, Conditions(bytes_per_s=1e6))
        cluster.coordinator.hold(hash_array(weights), weights)
        await asyncio.sleep(20)  # the links are measured by then
        calls = Calls(cluster)
        await calls.run(program, 10)
        (chosen,) = calls.nodes[-1]
        cluster.slow(chosen, 5.0)
        began_s = asyncio.get_running_loop().time()
        await calls.run(program, 60)
        assert len(set(calls.generations)) == 1, "not yet"
        await calls.run(program, 300)
        assert len(set(calls.generations)) == 2 and len(calls.events_of("moved")) == 1
        (moved,) = (event for event in cluster.coordinator.events if event.kind == "moved")
        assert 4 <= moved.at_s - began_s <= 20

    simulate(scenario, devices=alike())


def pair(length: int) -> Program:
    """Two ranks, each with half of the columns, who know the largest of all at the end."""
    body = GraphBuilder()
    node = body.input("0", (32, 16), dtype_named("f32"))
    for _ in range(length):
        node = body.add("sin", node)
    most = body.add("all_reduce", node, axes=("dp",), sizes=(2,), reduction="max")
    attrs = {"body": body.build([most]), "axes": ("dp",), "sizes": (2,), "in_specs": ("- dp",), "out_specs": ("- -",)}
    made = GraphBuilder()
    return Program(
        made.build([made.add("spmd", made.input("x", X.shape, dtype_named("f32")), **attrs, output=0)]), {}, "ranks"
    )


def test_a_rank_whose_device_became_slow_is_replaced() -> None:
    async def scenario(cluster: Cluster) -> None:
        calls = Calls(cluster)
        await calls.run(pair(12), 40)
        first = calls.nodes[-1]
        assert len(first) == 2 and len(set(calls.generations)) == 1
        cluster.slow(first[0], 5)
        await calls.run(pair(12), LATER)
        assert first[0] not in calls.nodes[-1] and len(calls.nodes[-1]) == 2
        assert sum(calls.seconds[-5:]) < 1.2 * sum(calls.seconds[35:40])

    simulate(scenario, devices=alike())
