"""Strategies as values, and device maps: every layer where it was said to be, or an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

import mesh
from coordinator.planning.model.plan import FromParam, Plan
from coordinator.planning.planner import make_plan
from mesh import Auto, DeviceMap, Pipeline, Single
from wire.errors import InputError, NoSuchDevice, PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.policy.strategies import DataParallel, strategy_of, text_of

NAMES = ["params/embed/w", *(f"params/blocks/{index}/w" for index in range(12)), "params/head/w"]
RNG = np.random.default_rng(5)
WEIGHTS = {name: RNG.standard_normal((4, 4)).astype(np.float32) for name in NAMES}
X = RNG.standard_normal((4, 4)).astype(np.float32)
THREE = near(*(worker(number, device(0, 1.0, 1.0)) for number in range(3)))
MAP = DeviceMap().layer("embed", "worker-0").layers("blocks.0..5", "worker-1").layers("blocks.5..12", "worker-2")
WHOLE = MAP.layer("head", "worker-0")


def stack() -> WireGraph:
    """tanh(x @ w) for every layer in turn, of x scaled first."""
    builder = GraphBuilder()
    value = builder.add("mul", builder.input("x", (4, 4), F32), builder.const(np.float32(0.5)))
    for name in NAMES:
        weight = builder.param(name, (4, 4), F32)
        product = builder.add("dot", value, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
        value = builder.add("tanh", product)
    return builder.build([value])


def where(plan: Plan) -> dict[str, str]:
    """The worker that holds each param."""
    sources = ((part, source) for part in plan.parts for source in part.sources)
    return {source.name: part.node for part, source in sources if isinstance(source, FromParam)}


def test_every_layer_is_where_the_map_says() -> None:
    plan = make_plan(stack(), THREE, WHOLE.text)
    found = where(plan)
    assert found["params/embed/w"] == found["params/head/w"] == "node-0"
    assert {found[f"params/blocks/{index}/w"] for index in range(5)} == {"node-1"}
    assert {found[f"params/blocks/{index}/w"] for index in range(5, 12)} == {"node-2"}
    assert [part.node for part in plan.parts] == ["node-0", "node-1", "node-2", "node-0"], "each part once"
    (output,) = run_plan(plan, {"x": X}, WEIGHTS)
    (expected,) = run_plan(make_plan(stack(), THREE, "single"), {"x": X}, WEIGHTS)
    assert np.array_equal(output, expected)


def test_layers_are_on_the_devices_of_one_machine_that_the_map_says() -> None:
    two = near(worker(0, device(0, 1.0, 1.0), device(1, 1e-3, 1e-3, engine="wgsl")), *THREE.workers[1:])
    layers = DeviceMap().layers("blocks.0..12", "worker-0:1").layer("embed", "worker-0:0").layer("head", "worker-0")
    plan = make_plan(stack(), two, layers.text)
    assert [(part.node, part.device) for part in plan.parts] == [("node-0", 0), ("node-0", 1), ("node-0", 0)]
    assert not [reason for reason in plan.reasons if "because" in reason], "it was asked for"
    (output,) = run_plan(plan, {"x": X}, WEIGHTS)
    (expected,) = run_plan(make_plan(stack(), THREE, "single"), {"x": X}, WEIGHTS)
    assert np.array_equal(output, expected)
    with pytest.raises(
        NoSuchDevice, match=r"no device 'worker-0:2'. There are worker-0:0 \(cpu\), worker-0:1 \(wgsl\)"
    ):
        make_plan(stack(), two, DeviceMap().layer("", "worker-0:2").text)
    with pytest.raises(NoSuchDevice, match="no worker 'worker-0:x'"):
        make_plan(stack(), two, DeviceMap().layer("", "worker-0:x").text)


@pytest.mark.parametrize("there", ["worker-1", "worker-2"])
def test_what_a_program_puts_on_a_worker_is_there_whatever_the_map_says_of_layers(there: str) -> None:
    builder = GraphBuilder()
    x, product = builder.input("x", (4, 4), F32), {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,)}
    first, second = (
        builder.add("dot", x, builder.param(name, (4, 4), F32), **product, rhs_contract=(0,)) for name in "ab"
    )
    moved = builder.add("tanh", builder.add("transfer", first, device=f"worker - {there}"))
    by_map = DeviceMap().layer("a", "worker-0").layer("b", "worker-2")
    plan = make_plan(builder.build([moved, second]), THREE, by_map.text)
    assert where(plan) == {"a": "node-0", "b": "node-2"}
    moving = {part.node for part in plan.parts for node in part.graph.nodes if node.op in ("transfer", "tanh")}
    assert moving == {f"node-{there[-1]}"}


def test_a_map_of_everything_is_one_worker_whatever_others_could_do() -> None:
    fast = near(worker(0, device(0, 1.0, 1.0)), worker(1, device(0, 1e3, 1e3)))
    assert {part.node for part in make_plan(stack(), fast, DeviceMap().layer("", "worker-0").text).parts} == {"node-0"}


@pytest.mark.parametrize(
    "made",
    [
        lambda: WHOLE.layers("blocks.11..13", "worker-0"),
        lambda: WHOLE.layer("blocks", "worker-0"),
        lambda: WHOLE.layer("blocks.3.attention", "worker-0"),
        lambda: WHOLE.layer("embed", "worker-1"),
        lambda: DeviceMap().layer("", "worker-0").layer("embed", "worker-0"),
    ],
)
def test_layers_that_overlap_are_refused_at_once(made: Any) -> None:
    with pytest.raises(InputError, match="overlap"):
        made()


def test_a_map_without_layers_says_so() -> None:
    with pytest.raises(InputError, match="the device map is empty"):
        make_plan(stack(), near(worker(0, device(0, 1.0, 1.0))), DeviceMap().text)


def test_ranges_are_half_open_and_must_be_ranges() -> None:
    first = DeviceMap().layers("blocks.0..5", "a")
    assert [first.row_of(f"blocks.{index}.w") for index in (0, 4, 5)] == [0, 0, None]
    assert first.layers("blocks.5..12", "b").row_of("blocks.5.w") == 1
    assert DeviceMap().layers("0..2", "a").row_of("params/1/w") == 0
    for wrong in ("blocks", "blocks.3..3", "blocks.5..3", "blocks.a..b"):
        with pytest.raises(InputError, match="no range"):
            DeviceMap().layers(wrong, "a")


def test_a_gap_an_unknown_layer_and_an_unknown_worker_raise() -> None:
    with pytest.raises(InputError, match="no layer for 'params/head/w'"):
        make_plan(stack(), THREE, MAP.text)
    with pytest.raises(InputError, match="'tail'"):
        make_plan(stack(), THREE, WHOLE.layer("tail", "worker-0").text)
    with pytest.raises(NoSuchDevice, match="worker-7"):
        make_plan(stack(), THREE, MAP.layer("head", "worker-7").text)
    with pytest.raises(InputError, match="no worker"):
        DeviceMap().layer("embed", 3)


def test_a_worker_that_cannot_is_an_error_and_no_other_takes_its_place() -> None:
    unable = replace(device(0, 1.0, 1.0), dtypes_by_op={"mul": ("f32",)})
    profiles = near(worker(0, unable), worker(1, device(0, 1.0, 1.0)), worker(2, device(0, 1.0, 1.0)))
    with pytest.raises(PlacementError, match="worker-0 cannot compute dot"):
        make_plan(stack(), profiles, WHOLE.text)
    small = near(worker(0, device(0, 1.0, 1.0), memory_bytes=100), *THREE.workers[1:])
    with pytest.raises(PlacementError, match="worker-0 needs"):
        make_plan(stack(), small, WHOLE.text)


def test_a_strategy_has_a_text_and_comes_back_from_it() -> None:
    for strategy in (Auto(), Single(), Pipeline(), DeviceMap(), WHOLE):
        assert strategy_of(strategy.text) == strategy and text_of(strategy) == strategy.text
    assert text_of("single") == "single"


def test_a_strategy_has_the_name_of_its_class_too() -> None:
    for name in ("data_parallel", "data-parallel", "DataParallel", "DATA_PARALLEL", "data parallel"):
        assert text_of(name) == "data"
    assert [text_of(name) for name in ("tensor_parallel", "fully_sharded", "Auto")] == [
        "tensor",
        "fully-sharded",
        "auto",
    ]
    with pytest.raises(InputError, match=r"'datas' is not known. Did you mean 'data'\? Choose one of"):
        strategy_of("datas")
    with pytest.raises(InputError, match=r"DeviceMap\(\).layer"):
        strategy_of("model_parallel")
    with pytest.raises(InputError, match=r"It is a class: DataParallel\(\) is a strategy"):
        strategy_of(DataParallel)


@pytest.mark.parametrize(("written", "schedule"), [("GPipe", "gpipe"), ("1F1B", "1f1b"), ("PipeDream", "pipedream")])
def test_a_schedule_is_written_as_in_its_paper(written: str, schedule: str) -> None:
    assert Pipeline(4, 8, written) == Pipeline(4, 8, schedule)
    assert strategy_of(Pipeline(4, 8, written).text).text == Pipeline(4, 8, schedule).text
    with pytest.raises(InputError, match=r"schedule='chimera' is not known. Choose one of gpipe"):
        Pipeline(4, 8, "chimera")


@pytest.mark.parametrize("text", ["", "fastest", "single 3", "placed", "placed [1]", 'placed [["a","b"]]', 7, None])
def test_what_is_no_strategy_is_refused(text: Any) -> None:
    with pytest.raises(InputError):
        strategy_of(text)


def test_a_program_takes_a_strategy_as_a_value_or_by_name() -> None:
    with pytest.raises(InputError, match="'fastest' is not known"):
        strategy_of("fastest")
    with mesh.Mesh.builder().simulate(2).build() as simulated:
        names = [node.name for node in simulated.nodes]
        held = simulated.put({"w": np.ones((2, 2), np.float32)})
        placed = DeviceMap().layer("w", simulated.nodes[1])
        found = simulated.run(lambda p, x: p["w"] + x, held, np.float32(1), strategy=placed)
        assert np.array_equal(found, np.full((2, 2), 2))
        assert list(simulated.report().workers) == [names[1]]
        simulated.run(lambda p, x: p["w"] + x, held, np.float32(1), strategy=Single())
        with pytest.raises(InputError):
            simulated.run(lambda x: x + 1, np.float32(1), strategy="fastest")


# -- only some of the workers


@pytest.mark.parametrize("strategy", [Auto, Single, Pipeline, mesh.TensorParallel, mesh.DataParallel])
@pytest.mark.parametrize("named", [("worker-1", "node-2"), ("node-2", "worker-1", "worker-9")])
def test_only_the_workers_that_a_strategy_names_compute(strategy: Any, named: tuple[str, ...]) -> None:
    asked = strategy(workers=named)
    assert strategy_of(asked.text) == asked
    plan = make_plan(stack(), THREE, asked.text)
    assert {part.node for part in plan.parts} <= {"node-1", "node-2"}
    assert plan.strategy == asked.text
    assert plan.reasons[0] == f"only {', '.join(named)} may compute it"
    (output,) = run_plan(plan, {"x": X}, WEIGHTS)
    (expected,) = run_plan(make_plan(stack(), THREE, "single"), {"x": X}, WEIGHTS)
    np.testing.assert_allclose(output, expected, rtol=1e-5)


def test_of_workers_that_are_all_gone_none_computes() -> None:
    with pytest.raises(PlacementError, match=r"\(worker-8, worker-9\) none is there.*worker-0, worker-1, worker-2"):
        make_plan(stack(), THREE, Single(workers=("worker-8", "worker-9")).text)


@pytest.mark.parametrize("workers", ["anna", ["anna"], ("",), (3,), None])
def test_the_workers_of_a_strategy_are_a_tuple_of_names(workers: Any) -> None:
    with pytest.raises(InputError, match="workers is a tuple of names"):
        Auto(workers=workers)


def test_a_device_map_names_its_workers_itself() -> None:
    with pytest.raises(InputError, match="Leave out workers"):
        DeviceMap(workers=("anna",))
