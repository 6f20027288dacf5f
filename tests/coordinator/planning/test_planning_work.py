"""Planning a large graph: what repeats is looked at once, what a bound refuses is not predicted, and no plan changes by
that.  Work is counted, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from support.call_count import calls_of
from support.cases.large_graphs import LARGE, chain, irregular, transformer
from support.cases.random_graphs import big_graph, random_graph
from support.machines.profiles import alike_profiles, device, near, random_profiles, worker

import mesh
from coordinator.planning import planner
from coordinator.planning.model import unit_work
from coordinator.planning.model.cost_model import CostModel
from coordinator.planning.model.profiles import DeviceProfile, Profiles
from coordinator.planning.placement import partition
from coordinator.planning.placement.least_seconds import LeastSeconds
from coordinator.planning.placement.partition import Partitioner
from coordinator.planning.planner import make_plan
from mesh import collectives
from wire.ir import graph as graphs
from wire.ir.codec import decode_graph, encode_graph
from wire.ir.graph import GraphBuilder, WireGraph
from wire.passes.simplify import simplify
from wire.policy.strategies import DataParallel


def unlike(count: int) -> Profiles:
    return random_profiles(np.random.default_rng(0), count)


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> Counter[str]:
    """Count the calls of a function from now on, under its name."""
    calls, plain = Counter[str](), getattr(where, name)

    def counting(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return plain(*args, **options)

    monkeypatch.setattr(where, name, counting)
    return calls


def test_units_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    for nodes in (700, 2100):
        graph = decode_graph(encode_graph(big_graph(nodes)))
        with monkeypatch.context() as patched:
            kinds, types = counted(patched, unit_work, "_kind"), counted(patched, graphs, "infer")
            make_plan(graph, unlike(4), "single")
        looked.append((kinds["_kind"], types["infer"] - len(graph.params)))
    assert looked[0] == looked[1] and max(looked[0]) < 40


def test_kinds_say_of_every_unit_what_holds_of_it() -> None:
    for seed in range(30):
        graph = random_graph(seed, 20, 60).graph
        kinds = unit_work.kinds_of(graph)
        for unit, index in enumerate(unit_work.units_of(graph)):
            kind = kinds.each[kinds.of[unit]]
            made = graph.siblings.get(index, (index,))
            assert kind == unit_work._kind(graph, index, made), f"seed {seed}, node {index}"


def test_a_graph_that_is_simple_is_not_made_again() -> None:
    graph = big_graph(300)
    assert simplify(graph) is graph
    made = decode_graph(encode_graph(graph))
    assert simplify(made) is made


@pytest.mark.parametrize("kind", LARGE)
def test_the_bound_is_below_every_prediction(kind: str) -> None:
    graph = simplify(LARGE[kind](400))
    rng = np.random.default_rng(1)
    for make in (random_profiles, alike_profiles):
        model = CostModel(graph, make(rng, 4))
        bounds = LeastSeconds(model)
        units = len(model.index.units)
        for pieces in (1, 2, 5, 40, units):
            chosen = np.sort(rng.integers(0, pieces, units))
            workers = rng.integers(0, 4, pieces)[chosen]
            assignment = [w if w in able else able[0] for w, able in zip(workers.tolist(), model.able, strict=True)]
            for first in (1, units // 3, units):  # however the others are assigned
                assert bounds.of(assignment[:first]) <= model.predict(assignment).seconds


@pytest.mark.parametrize("seeds", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_plans_are_the_same_without_bounds(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0

    def auto(model: CostModel, refine_max: int, of: Callable[..., float]) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(LeastSeconds, "of", of)
            return Partitioner(model, exact_max=0, refine_max=refine_max).auto

    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        graph = random_graph(seed, 12, 40).graph
        make = random_profiles if rng.random() < 0.7 else alike_profiles
        model = CostModel(graph, make(rng, int(rng.integers(5, 9))))
        with monkeypatch.context() as patched:
            refine_max = 0 if seed % 2 else 600
            predicted = counted(patched, CostModel, "predict")
            found = auto(model, refine_max, LeastSeconds.of)
            with_bounds = predicted.total()
            without = auto(model, refine_max, lambda bounds, assignment: 0.0)
            assert without[0].objective == found[0].objective, f"seed {seed}"
            refused += 2 * with_bounds < predicted.total()
    assert refused > seeds // 4, "most bounds refuse nothing"


def test_few_proposals_for_a_large_graph_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = big_graph(2000)
    predicted = counted(monkeypatch, CostModel, "predict")
    make_plan(graph, unlike(16), "single")
    assert predicted["predict"] <= 4, "of 16 workers, those that are slower by far need no prediction"


def products(x: Any, weights: list[Any]) -> Any:
    return reduce(lambda value, weight: value @ weight, weights, x)


@pytest.mark.parametrize(("layers", "workers"), [(12, 3), (19, 2), (4, 16)])
def test_the_best_way_to_place_a_few_large_products_is_soon_known(
    layers: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are nearly alike, and one product after another takes about as long wherever it is."""
    weight = np.ones((1024, 1024), np.float32)
    graph = simplify(mesh.trace(products, weight, [weight] * layers))
    model = CostModel(graph, near(*(worker(n, device(0, 10 + n / 10, 10.0)) for n in range(workers))))
    predicted = counted(monkeypatch, CostModel, "predict")
    partitioner = Partitioner(model)
    assert partitioner.auto[0].fits and partitioner.exact
    assert predicted["predict"] <= 1500, "of up to half a million ways"


def test_a_search_that_takes_long_ends_and_claims_nothing() -> None:
    weight = np.ones((512, 512), np.float32)
    side_by_side = simplify(mesh.trace(lambda x, *all: [x @ each for each in all], weight, *[weight] * 10))
    model = CostModel(side_by_side, near(*(worker(n, device(0, 10 + n / 10, 10.0)) for n in range(3))))
    partitioner = Partitioner(model, predictions_max=300)
    found, assignment = partitioner.auto
    assert not partitioner.exact and found.objective <= partitioner.single[0].objective
    assert model.predict(assignment) == found


def cutting(count: int) -> Profiles:
    """Workers so near and so slow that cutting a large graph pays."""
    speeds = np.random.default_rng(3).uniform(0.01, 0.1, count)
    return near(*(worker(n, device(0, float(speed), float(speed) / 5)) for n, speed in enumerate(speeds)))


@pytest.mark.parametrize("kind", LARGE)
def test_the_work_grows_as_the_graph_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of any function while a plan is made: of twice the nodes, about twice as many."""
    monkeypatch.setattr(planner, "add_splits", lambda *_: None)  # graphs as large as those that are meant have none
    calls = []
    for nodes in (1200, 2400):
        graph = decode_graph(encode_graph(LARGE[kind](nodes)))
        calls.append(calls_of(lambda graph=graph: make_plan(graph, cutting(8), "auto")) / len(graph))
    assert calls[1] <= 1.15 * calls[0]
    assert calls[1] <= 270, "calls for each node"


def test_one_search_serves_the_cut_and_the_worker_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "add_splits", lambda *_: None)
    graph = transformer(1300, trained=True)
    made = counted(monkeypatch, planner, "CostModel")
    plan = make_plan(graph, cutting(16), "auto")
    assert {candidate.name for candidate in plan.candidates if candidate.seconds} >= {"cut 16", "single"}
    assert plan.candidate == "cut 16"
    assert made["CostModel"] == 1


def test_a_part_is_what_a_builder_makes_of_its_nodes() -> None:
    parts = 0
    for seed in range(20):
        graph = random_graph(seed, 20, 60).graph
        for strategy in ("single", "pipeline"):
            for part in make_plan(graph, unlike(4), strategy).parts:
                builder = GraphBuilder()
                outputs = builder.graph(part.graph, {})
                made = builder.build(outputs, part.graph.output_names)
                for what in ("nodes", "types", "outputs", "output_names"):
                    assert getattr(made, what) == getattr(part.graph, what)
                parts += 1
    assert parts > 50


def test_orders_that_begin_alike_are_cut_as_each_alone() -> None:
    model = CostModel(simplify(irregular(300)), unlike(6))
    slices = partition._Slices(model)
    for count in (2, 4, 6):
        for combine in (np.add, np.maximum):
            for order in partition._orders(model, count):
                assert slices.cut(order, combine) == partition._Slices(model).cut(order, combine)


def test_list_scheduling_is_by_earliest_finish() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        make = random_profiles if seed % 3 else alike_profiles
        model = CostModel(random_graph(seed, 20, 60).graph, make(rng, 5))
        assert partition._earliest_finish(model) == heft(model), f"seed {seed}"


def heft(model: CostModel) -> list[int]:
    """Every worker tried for every unit."""
    workers, index = model.profiles.workers, model.index
    link = model.profiles.link(workers[0].node_id, workers[1].node_id)
    rank = [0.0] * len(index.units)
    for unit in reversed(range(len(rank))):
        mean_s = float(np.mean([model.seconds[w][unit] for w in model.able[unit]]))
        ahead = [rank[consumer] for consumer in index.consumers[unit]]
        rank[unit] = mean_s + (link.seconds(model.sent_bytes[unit]) + max(ahead) if ahead else 0.0)
    free, finish, assignment = [0.0] * len(workers), [0.0] * len(rank), [0] * len(rank)
    for unit in sorted(range(len(rank)), key=lambda unit: (-rank[unit], unit)):
        best = (float("inf"), 0)
        for w in model.able[unit]:
            arrivals = [
                finish[operand] + (0.0 if assignment[operand] == w else link.seconds(model.sent_bytes[operand]))
                for operand in index.operands[unit]
            ]
            best = min(best, (max([free[w], *arrivals]) + model.seconds[w][unit], w))
        finish[unit], assignment[unit] = best
        free[best[1]] = best[0]
    return assignment


def test_a_crowd_is_asked_for_links_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for crowd in (100, 400):
        rng = np.random.default_rng(0)
        profiles = near(*(worker(n, device(0, float(rng.uniform(1, 2)), 1.0)) for n in range(crowd)))
        with monkeypatch.context() as patched:
            calls, looks = counted(patched, Profiles, "link"), counted(patched, DeviceProfile, "supports")
            make_plan(matrix_product(), profiles, DataParallel(8).text)
        asked.append(calls["link"])
        assert looks["supports"] <= 100, "devices that compute the same are asked once"
    assert asked[1] <= 4.5 * asked[0]
    assert asked[1] <= 40 * 400


def test_the_same_ranks_are_priced_once_however_many_seeds_they_were_found_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, count = mesh.PartitionSpec("dp"), 40
    total = mesh.shard_map(lambda x: collectives.all_reduce(x, "dp"), mesh.Grid((count,), ("dp",)), rows, rows)
    graph = mesh.trace(total, np.ones((count, 4), np.float32))
    calls = counted(monkeypatch, Profiles, "link")
    workers = (worker(n, device(0, 1.0 + n / 100, 1.0)) for n in range(50))
    assert len(make_plan(graph, Profiles(tuple(workers)), "ranks").gangs[0].parts) == count
    assert calls["link"] <= 5 * count * count


def test_a_pipeline_through_a_crowd_looks_at_as_many_as_it_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Profiles, "link")
    plan = make_plan(chain(40), alike_profiles(np.random.default_rng(1), 1000), "pipeline")
    assert len({part.node for part in plan.parts}) > 20
    assert calls["link"] <= 20_000, "of a thousand workers there are a million links"


def matrix_product() -> WireGraph:
    return mesh.trace(lambda x, w: x @ w, np.ones((64, 64), np.float32), np.ones((64, 64), np.float32))
