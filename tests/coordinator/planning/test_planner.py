"""Plans: whole, within every budget, on devices that can, and right when carried out part by part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from support.by_seed import ranges
from support.cases.random_graphs import big_graph, random_graph
from support.compare import same_bits
from support.machines.profiles import NARROW, alike_profiles, device, near, random_profiles, worker
from support.machines.run_plan import memory_by_device, run_plan

from coordinator.planning.auto_strategy import GAIN_MIN
from coordinator.planning.model.cost_model import CostModel
from coordinator.planning.model.liveness import DUPLICATED
from coordinator.planning.model.plan import FromPart, Part, Plan
from coordinator.planning.model.profiles import Profiles, WorkerProfile
from coordinator.planning.model.unit_work import needs
from coordinator.planning.planner import make_plan
from mesh.util.units import parse_size
from wire.errors import InputError, NoSuchDevice, PlacementError
from wire.ir.dtypes import F32, F64
from wire.ir.graph import GraphBuilder
from wire.ir.ops import COLLECTIVES
from wire.policy.strategies import FOR_ANY_GRAPH, Single
from worker.cpu import evaluate

GRAPHS = 20
SIZE = r"[\d.]+ [KMG]?i?B"
TENTH = 0.1  # of itself is the most that a size in a message is off
GRAPHS_LONG = 1000
PREDICTIONS_OF_LARGE_MAX = 30  # about 25 ms each for 10,000 nodes


def check(plan: Plan, profiles: Profiles) -> None:
    """What holds for every plan."""
    if not plan.gangs:  # ranks share nodes
        wanted = Counter(node.op for node in plan.graph if node.op not in DUPLICATED)
        assert sum((_ops(part) for part in plan.parts), Counter()) == wanted, "every node runs exactly once"
    assert [part.index for part in plan.parts] == list(range(len(plan.parts)))
    brought = {(edge.part, edge.slot): edge.source for edge in plan.edges}
    for part in plan.parts:
        able = workers_of(profiles)[part.node].devices[part.device]
        for index, node in enumerate(part.graph.nodes):
            if node.op not in DUPLICATED | COLLECTIVES:
                assert all(able.supports(*need) for need in needs(part.graph, index)), "a device gets what it cannot do"
        assert len(part.graph.inputs) == len(part.sources)
        for slot, source in enumerate(part.sources):
            if isinstance(source, FromPart):
                assert brought.pop((part.index, slot)) == source, "no edge brings what a part reads"
                assert source.part < part.index, "parts are not in order"
                assert source.slot < len(plan.parts[source.part].graph.outputs)
    assert not brought, "an edge brings what nobody reads"
    assert len(plan.outputs) == len(plan.graph.outputs)


def _ops(part: Part) -> Counter[str]:
    return Counter(node.op for node in part.graph if node.op not in DUPLICATED)


def workers_of(profiles: Profiles) -> dict[str, WorkerProfile]:
    return {each.node_id: each for each in profiles.workers}


def check_memory(plan: Plan, profiles: Profiles) -> None:
    """Every device holds what its parts read and make, counted anew from the parts themselves."""
    needed = memory_by_device(plan)
    for share in plan.workers:
        worker = workers_of(profiles)[share.node]
        mine = {device: size for (node, device), size in needed.items() if node == share.node}
        assert sum(mine.values()) == share.memory_bytes <= share.budget_bytes == worker.memory_bytes
        assert all(size <= worker.devices[device].memory_bytes for device, size in mine.items())


def assert_same_bits(plan: Plan, seed: int, strategy: str) -> None:
    """Of the program as it is; of one that `auto` split, of the program so split, whose sums have another order."""
    case = random_graph(seed)
    expected = evaluate(plan.graph if plan.gangs else case.graph, case.inputs, case.params)
    found = run_plan(plan, case.inputs, case.params)
    for got, wanted in zip(found, expected, strict=True):
        assert same_bits(got, wanted), (seed, strategy)


def sweep(seed: int, workers: int) -> tuple[int, int]:
    """Plans of a random graph under a random budget, checked and carried out; how many were possible, and how many not.

    A budget is between a fifth and twice of what all tensors take.
    """
    graph = random_graph(seed).graph
    rng = np.random.default_rng([seed, workers])
    budget = int(rng.uniform(0.2, 2.0) * sum(kind.size_bytes for kind in graph.types))
    profiles = random_profiles(rng, workers, budget)
    possible = refused = 0
    for strategy in FOR_ANY_GRAPH:
        try:
            plan = make_plan(graph, profiles, strategy)
        except PlacementError as error:
            assert_names_need_and_have(error, profiles)
            refused += 1
        else:
            check(plan, profiles)
            check_memory(plan, profiles)
            assert_same_bits(plan, seed, strategy)
            possible += 1
    return possible, refused


def assert_names_need_and_have(error: PlacementError, profiles: Profiles) -> None:
    rows = re.findall(rf"(worker-\d+) needs ({SIZE}) and has ({SIZE})", str(error))
    assert [name for name, _, _ in rows] == [each.name for each in profiles.workers]
    missing = [max(read(need) - read(have), 0) for _, need, have in rows]  # needs are rounded up, and room is down
    assert sum(missing) > 0
    (said,) = re.findall(rf"Raise --max-memory by ({SIZE}) in all", str(error))
    apart = sum(2 * TENTH * max(map(read, row[1:])) for row, lacking in zip(rows, missing, strict=True) if lacking)
    assert sum(missing) - apart <= read(said) <= sum(missing) + TENTH * sum(missing)


def read(size: str) -> int:
    return parse_size(size) if size != "0 B" else 0


def test_plans_are_whole_within_budget_and_right() -> None:
    counts = [sweep(seed, 2 + seed % 4) for seed in range(GRAPHS)]
    possible, refused = (sum(each) for each in zip(*counts, strict=True))
    assert possible >= GRAPHS
    assert refused >= GRAPHS // 10


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
def test_a_thousand_plans_are_whole_within_budget_and_right(workers: int) -> None:
    assert sum(sweep(seed, workers)[0] for seed in range(GRAPHS_LONG)) >= GRAPHS_LONG


def test_pipeline_uses_every_worker_and_single_one() -> None:
    for seed in range(40):
        graph = random_graph(seed).graph
        profiles = random_profiles(np.random.default_rng([seed, 2]), 4)
        pipeline = make_plan(graph, profiles, "pipeline")
        assert len({part.node for part in pipeline.parts}) == 4, seed
        everywhere = Profiles(tuple(worker(n, device(0, 1.0, 1.0)) for n in range(4)))
        assert {part.node for part in make_plan(graph, everywhere, "pipeline").parts} == {f"node-{n}" for n in range(4)}
        assert len({part.node for part in make_plan(graph, everywhere, "single").parts}) == 1


@pytest.mark.parametrize("seeds", ranges(15, 40), ids=str)
def test_auto_is_never_slower_than_the_other_strategies(seeds: range) -> None:
    for seed in seeds:
        graph = random_graph(seed).graph
        profiles = random_profiles(np.random.default_rng([seed, 3]), 3)
        plans = {strategy: make_plan(graph, profiles, strategy) for strategy in FOR_ANY_GRAPH}
        auto, least_s = plans["auto"], min(plan.seconds for plan in plans.values())
        alone = len({part.node for part in auto.parts}) == 1  # as long as more workers save next to nothing
        assert auto.seconds <= least_s * (1 + 1e-9) / (1 - GAIN_MIN * alone), seed


def test_the_same_question_gets_the_same_plan() -> None:
    graph = random_graph(7).graph
    for strategy in FOR_ANY_GRAPH:
        plans = [make_plan(graph, random_profiles(np.random.default_rng(7), 4), strategy) for _ in range(2)]
        assert plans[0] == plans[1]


def test_what_a_device_lacks_goes_to_one_that_has_it() -> None:
    builder = GraphBuilder()
    wide = builder.add("exp", builder.input("x", (8,), F64))
    narrow = builder.add("tanh", builder.add("cast", wide, dtype="f32"))
    graph = builder.build([narrow])
    some = worker(0, device(0, 100.0, 100.0, dtypes=("f32",)))
    every = worker(1, device(0, 1.0, 1.0))
    plan = make_plan(graph, Profiles((some, every)), "auto")
    assert {node.op for part in plan.parts if part.node == "node-1" for node in part.graph} >= {"exp", "cast"}
    with pytest.raises(PlacementError, match=r"no worker can compute exp on f64\[8\].*Add a worker"):
        make_plan(graph, Profiles((some,)), "auto")


def test_the_complex_part_of_a_program_goes_to_the_cpu_engine_beside_a_gpu() -> None:
    made = GraphBuilder()
    x = made.input("x", (512, 512), F32)
    real = made.add("dot", x, x, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    spectrum = made.add("fft", made.add("complex", real, made.add("tanh", real)), axis=1, inverse=0)
    size = made.add("abs", spectrum)
    last = made.add("dot", size, x, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    profiles = near(worker(0, device(0, 1e4, 1e3, NARROW), device(1, 10.0, 10.0)))
    plan = make_plan(made.build([last]), profiles)
    placed = {node.op: part.device for part in plan.parts for node in part.graph}
    assert (placed["dot"], placed["complex"], placed["fft"], placed["abs"]) == (0, 1, 1, 1)
    assert any("computes fft on c64" in reason for reason in plan.reasons)


def test_a_graph_that_fits_nowhere_says_need_and_have() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (1024, 1024), F32)
    graph = builder.build([builder.add("exp", x)])
    small = Profiles((worker(0, device(0, 1.0, 1.0), memory_bytes=1 << 20),))
    with pytest.raises(PlacementError, match=r"needs 8\.0 MiB and has 1\.0 MiB.*Raise --max-memory by 7\.0 MiB in all"):
        make_plan(graph, small)


def test_a_plan_is_counted_in_the_order_in_which_its_parts_run() -> None:
    """Both outputs leave the part, `early` first, so its sum is computed while `early` is held; predicted is less."""
    builder = GraphBuilder()
    x, y = builder.input("x", (100,), F32), builder.input("y", (50,), F32)
    early = builder.add("neg", y)
    late = builder.add("mul", builder.add("reduce_sum", builder.add("exp", x), axes=(0,)), early)
    graph = builder.build([late, early])
    budget = 1100
    one = Profiles((worker(0, device(0, 1.0, 1.0), memory_bytes=budget),))
    model = CostModel(graph, one)
    assert model.predict([0] * len(model.index.units)).fits
    with pytest.raises(PlacementError, match=r"needs 1\.2 KiB and has 1\.0 KiB.*by 104 B in all"):
        make_plan(graph, one)
    two = near(*(worker(n, device(0, 1.0, 1.0), memory_bytes=budget) for n in range(2)))
    plan = make_plan(graph, two)
    assert len(plan.parts) > 1
    check_memory(plan, two)


def test_a_graph_too_large_for_one_worker_is_cut() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (256, 256), F32)
    for number in range(8):
        weight = builder.param(f"w{number}", (256, 256), F32)
        x = builder.add("dot", x, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    graph = builder.build([x])
    half = 5 * 256 * 256 * 4 + (1 << 20)
    profiles = Profiles(tuple(worker(n, device(0, 10.0, 10.0), memory_bytes=half) for n in range(2)))
    plan = make_plan(graph, profiles, "auto")
    assert len(plan.parts) == 2
    check(plan, profiles)


@pytest.mark.parametrize("strategy", FOR_ANY_GRAPH)
def test_ten_thousand_nodes_are_planned(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is bench/planner.py's to measure; a prediction is what takes it, so they are counted."""
    predictions = []
    predict = CostModel.predict
    monkeypatch.setattr(CostModel, "predict", lambda *given: predictions.append(1) or predict(*given))
    graph = big_graph(10_000)
    profiles = near(*(worker(n, device(0, 1.0 + n, 1.0)) for n in range(8)))
    plan = make_plan(graph, profiles, strategy)
    check(plan, profiles)
    assert len(plan.parts) <= 16
    assert len(predictions) <= PREDICTIONS_OF_LARGE_MAX


@pytest.mark.parametrize("make", [alike_profiles, random_profiles])
def test_of_many_workers_the_best_are_looked_at(make: Callable[..., Profiles]) -> None:
    graph = random_graph(8, 6, 24).graph  # nothing in it asks for ranks
    profiles = make(np.random.default_rng(0), 200)
    for strategy in FOR_ANY_GRAPH:
        plan = make_plan(graph, profiles, strategy)
        check(plan, profiles)
        chosen = any("fastest and roomiest" in reason for reason in plan.reasons)
        assert chosen == (strategy != "pipeline") and "of 200 workers" in plan.reasons[0]
    fastest = max(profiles.workers, key=lambda each: each.devices[0].gflops)
    assert fastest in profiles.best(16).workers and len(profiles.best(16).workers) == 16


@pytest.mark.parametrize("number", [0, 8, 30, 39])
def test_a_device_goes_by_its_number_among_all_however_many_there_are(number: int) -> None:
    workers = [worker(n, device(0, 50.0 - n, 1.0, engine="wgsl"), device(1, 1.0, 1.0)) for n in range(40)]
    builder = GraphBuilder()
    moved = builder.add("transfer", builder.input("x", (8,), F32), device=f"accelerator {number}")
    graph = builder.build([builder.add("sin", moved)])
    named = sorted(workers, key=lambda each: each.name)[number]
    for strategy in ("auto", Single(workers=(named.name, "worker-3")).text):
        plan = make_plan(graph, near(*workers), strategy)
        assert [(part.node, part.device) for part in plan.parts] == [(named.node_id, 0)]
    others = tuple(each.name for each in workers if each is not named)
    with pytest.raises(NoSuchDevice, match=f"no device '{named.name}:0'"):
        make_plan(graph, near(*workers), Single(workers=others).text)


def test_more_workers_are_looked_at_where_the_best_have_too_little_memory() -> None:
    builder = GraphBuilder()
    last = builder.add("broadcast", builder.input("x", (), F32), shape=(64,))  # without rows there is nothing to split
    for number in range(40):
        last = builder.add("add", last, builder.add("exp", builder.param(f"w{number}", (64,), F32)))
    graph = builder.build([last])
    small = [worker(number, device(0, 1.0, 1.0), memory_bytes=1400) for number in range(64)]
    plan = make_plan(graph, near(*small))
    assert len({part.node for part in plan.parts}) > 16


def test_nonsense_is_refused() -> None:
    graph = random_graph(1).graph
    with pytest.raises(InputError, match=r"strategy='fast'.*'auto', 'single', 'pipeline'"):
        make_plan(graph, Profiles((worker(0, device(0, 1.0, 1.0)),)), "fast")
    with pytest.raises(PlacementError, match="Start mesh-worker"):
        make_plan(graph, Profiles(()))


def test_a_graph_without_work_needs_no_worker_time() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (2,), F32)
    graph = builder.build([x, builder.const(np.ones(3, np.float32))])
    plan = make_plan(graph, Profiles((worker(0, device(0, 1.0, 1.0)),)))
    assert plan.parts == ()
    assert CostModel(graph, Profiles((worker(0, device(0, 1.0, 1.0)),))).index.units == ()
