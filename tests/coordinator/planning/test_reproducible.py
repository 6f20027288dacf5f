"""reproducible: plans differ as machines do, and their results do not, in any bit; what cannot have that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases.towers import layers
from support.cases.training import batch, first_state, train
from support.kept_kernels import native_engine
from support.machines.profiles import NARROW, device, near, worker
from support.machines.run_plan import run_plan

import mesh
import mesh.numpy as mnp
from coordinator.planning.audit.result_audit import audit_graph, audited
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import CLIENT, Link, Profiles, WorkerProfile
from coordinator.planning.model.reproducible import EXCLUDED
from coordinator.planning.placement.sticky_placement import sticky_plan
from coordinator.planning.planner import make_plan
from coordinator.planning.session_planner import Stateful, interim_plan, session_plan
from mesh import AsyncInferenceServer, Auto, DataParallel, DistributedTrainer, Mesh, Pipeline, Single, nn, random
from mesh import PartitionSpec as P
from mesh.functions.step_trace import Stepping
from mesh.simulation.loop import VirtualLoop
from wire.errors import InputError, PlacementError
from wire.ir.graph import WireGraph
from wire.policy.strategies import DeviceMap, strategy_of, text_of
from worker.cpu import evaluate
from worker.cpu.engine import ordered
from worker.cpu.process import arithmetic

RNG = np.random.default_rng(11)
SAME = Auto(reproducible=True).text
ROUND = {"haswell": "numpy 2.4.6 X86_V3, openblas 0.3.31 Haswell", "skylake": "numpy 2.4.6 X86_V4, openblas SkylakeX"}


def machines(gflops: Sequence[float], link: Link | None = None) -> Profiles:
    """Workers of these speeds, on one machine or behind links alike."""
    workers = [worker(number, device(0, each, 1e3)) for number, each in enumerate(gflops)]
    names = [CLIENT, *(each.node_id for each in workers)]
    ways = {(a, b): link for a in names for b in names if a != b} if link else {}
    return Profiles(tuple(workers), frozenset(names), ways)


MESHES = {
    "alone": machines([0.01]),
    "alike": machines([0.01] * 4),
    "unlike": machines([0.01, 0.03, 0.001]),
    "slow": machines([1e-4] * 4, Link(1e-6, 1e12)),
    "far": machines([0.01] * 3, Link(1e-2, 1e6)),
}


def values_of(graph: WireGraph) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    kinds = {**graph.input_types, **graph.param_types}
    return {name: rng.standard_normal(kind.shape).astype(np.float32) / 8 for name, kind in kinds.items()}


def bits_of(plan: Plan, graph: WireGraph) -> list[bytes]:
    values = values_of(graph)
    inputs = {name: values[name] for name in graph.input_types}
    return [found.tobytes() for found in run_plan(plan, inputs, {name: values[name] for name in graph.param_types})]


# -- plans


@pytest.mark.parametrize("machine", MESHES)
def test_whatever_the_machines_auto_only_cuts_and_has_the_bits_of_one_device(machine: str) -> None:
    graph = layers(100, 200, 4)
    plan = make_plan(graph, MESHES[machine], SAME)
    assert not plan.gangs and plan.strategy == SAME
    assert bits_of(plan, graph) == [each.tobytes() for each in evaluate(graph, values_of(graph))]


def test_auto_would_split_there_and_the_reasons_say_what_was_excluded() -> None:
    graph = layers(100, 200, 4)
    assert make_plan(graph, MESHES["alike"], "auto").gangs, "or the tests above prove nothing"
    first, *_ = make_plan(graph, MESHES["alike"], SAME).reasons
    assert first == f"reproducible: excluded are {', '.join(EXCLUDED)}, whose last bits may differ"


@pytest.mark.parametrize("use_all", [False, True])
def test_sessions_are_cut_and_not_split_either(use_all: bool) -> None:
    step = Stepping(train, first_state(), batch(0), "auto")
    state = Stateful(step.carries, step.returned_count)
    asked = Auto(use_all=use_all)
    split = session_plan(step.graph, MESHES["slow"], asked.text, state)
    plan = session_plan(step.graph, MESHES["slow"], replace(asked, reproducible=True).text, state)
    assert split.gangs or use_all, "or this proves nothing"
    assert not plan.gangs and plan.reasons[0].startswith("reproducible: excluded are data")
    assert sum(reason.startswith("reproducible") for reason in plan.reasons) == 1


def test_for_the_time_being_a_session_is_reproducible_too() -> None:
    step = Stepping(train, first_state(), batch(0), "auto")
    asked = Pipeline(3, reproducible=True)
    lacking = PlacementError("too few workers")
    plan = interim_plan(step.graph, MESHES["alone"], asked, Stateful(step.carries, step.returned_count), lacking)
    assert strategy_of(plan.strategy) == Single(reproducible=True)


def annotated() -> WireGraph:
    """A product whose operands the program itself shares out, over two ranks."""
    grid = mesh.Grid((2,), ("x",))

    def apart(x: Any, w: Any) -> Any:
        return mnp.tanh(mesh.shard(x, P("x", None), grid) @ mesh.shard(w, P(None, None), grid))

    return mesh.trace(apart, np.zeros((99, 200), np.float32), np.zeros((200, 65), np.float32))


@pytest.mark.parametrize("strategy", ["auto", "ranks"])
def test_what_a_program_shares_out_itself_has_one_layout_wherever_it_runs(strategy: str) -> None:
    """Where too few devices are left, one computes the blocks of all ranks, and not the whole at once."""
    graph, asked = annotated(), text_of(strategy, reproducible=True)
    plans = [make_plan(graph, MESHES[name], asked) for name in ("alike", "unlike", "slow", "far")]
    alone = make_plan(graph, MESHES["alone"], SAME)
    assert all(plan.gangs for plan in plans) and not alone.gangs
    (shapes,) = {dots_of(part.graph) for plan in plans for part in plan.parts if dots_of(part.graph)}
    assert dots_of(alone.parts[0].graph) == shapes * 2, "the shapes of the blocks, twice"
    (expected,) = {tuple(bits_of(plan, graph)) for plan in plans}
    assert tuple(bits_of(alone, graph)) == expected


def dots_of(graph: WireGraph) -> tuple[Any, ...]:
    """The shapes of products and their operands."""
    shapes = [kind.shape for kind in graph.types]
    return tuple(
        (shapes[index], *(shapes[each] for each in node.inputs))
        for index, node in enumerate(graph.nodes)
        if node.op == "dot"
    )


def with_gpu(number: int) -> WorkerProfile:
    return worker(number, device(0, 1e3, 1e3, NARROW, engine="wgsl"), device(1, 0.01, 1e3))


@pytest.mark.parametrize("strategy", [Auto(), Single(), Pipeline()])
def test_only_cpu_engines_compute(strategy: Any) -> None:
    graph, profiles = layers(64, 64, 3), near(with_gpu(0), with_gpu(1))
    assert {part.engine for part in make_plan(graph, profiles, strategy.text).parts} == {"wgsl"}
    plan = make_plan(graph, profiles, text_of(strategy, reproducible=True))
    assert {(part.engine, part.device) for part in plan.parts} == {("cpu", 1)}
    assert "wgsl devices" in plan.reasons[0]


def rounding(*names: str) -> Profiles:
    return near(*(worker(n, replace(device(0, 1.0, 1.0), arithmetic=ROUND[each])) for n, each in enumerate(names)))


def test_workers_that_round_otherwise_are_refused_by_name() -> None:
    make_plan(layers(4, 4, 2), rounding("haswell", "haswell"), SAME)
    with pytest.raises(PlacementError) as caught:
        make_plan(layers(4, 4, 2), rounding("haswell", "skylake", "haswell"), SAME)
    assert f"worker-0, worker-2: {ROUND['haswell']}; worker-1: {ROUND['skylake']}" in caught.value.message
    assert "OPENBLAS_CORETYPE" in caught.value.next_step
    gpus = near(worker(0, device(0, 1.0, 1.0, engine="wgsl")))
    with pytest.raises(PlacementError, match="there are none"):
        make_plan(layers(4, 4, 2), gpus, SAME)


def test_after_a_death_what_stays_is_reproducible_too() -> None:
    graph = layers(64, 64, 4)
    homes = {"w0": {"node-0"}, "w1": {"node-1"}}
    plan = sticky_plan(graph, near(with_gpu(0), with_gpu(1)), SAME, homes)
    assert plan is not None and {part.engine for part in plan.parts} == {"cpu"}


@pytest.mark.parametrize(("others", "exact"), [("haswell", True), ("skylake", False)])
def test_audits_ask_for_equal_bits_of_those_only_that_round_alike(others: str, exact: bool) -> None:
    """Honest workers of two processor types would else be found wrong."""
    graph, profiles = layers(8, 16, 2), rounding("haswell", others, others)
    plan = make_plan(graph, profiles, DeviceMap().layer("", "worker-0").text)
    found = audited(plan, 0, profiles)
    inputs = values_of(graph)
    given = {name: inputs[name] for name in graph.input_types}, {name: inputs[name] for name in graph.param_types}
    (claim, *counts) = run_plan(found, *given)
    assert counts == [0, 0]
    auditor = found.parts[-1].graph
    (part,) = plan.parts
    operands = [inputs[each.name] for each in part.sources]  # type: ignore[union-attr]
    last_bit = np.nextafter(claim, np.float32(2))
    (wrong,) = evaluate(auditor, {str(slot): each for slot, each in enumerate((*operands, last_bit))})
    assert (wrong > 0) == exact


@pytest.mark.parametrize("exact", [True, False])
def test_audits_of_complex_numbers_allow_roundings_where_these_differ(exact: bool) -> None:
    x = (RNG.standard_normal((5, 7)) + 1j * RNG.standard_normal((5, 7))).astype(np.complex64)
    graph = mesh.trace(lambda x: mnp.sum(x * x, axis=1), x)
    (claim,) = evaluate(graph, dict.fromkeys(graph.input_types, x))
    auditor = audit_graph(graph, exact)
    assert auditor is not None
    for off, wrong in ((0, False), (1e-7, exact), (1e-2, True)):
        moved = claim + np.complex64(1j * off * np.abs(claim).max())
        (found,) = evaluate(auditor, {"0": x, "1": moved})
        assert (found > 0) == wrong, off


def test_the_name_of_this_processs_arithmetic_says_what_rounds() -> None:
    assert np.__version__ in arithmetic() and len(arithmetic()) < 256


# -- the arithmetic native-2


NATIVE = {
    name: replace(
        profiles,
        workers=tuple(
            replace(each, devices=tuple(replace(d, arithmetic=f"native-2, numpy {number}") for d in each.devices))
            for number, each in enumerate(profiles.workers)
        ),
    )
    for name, profiles in MESHES.items()
}


@pytest.fixture(scope="module")
def compute() -> Iterator[Callable[..., Any]]:
    engine = native_engine(threads=2)
    yield lambda graph, values: engine.run(engine.compile(graph), ordered(graph, values))
    engine.close()


def normalised(x: Any, w: Any, scale: Any) -> Any:
    """Rows that are normalised before and after a product."""
    x = nn.layer_norm(mnp.exp(x @ w), scale, scale)
    return nn.softmax(x @ w.T, axis=-1)


ROWS_99 = np.zeros((96, 99), np.float32)
SPLITTING = ("auto", "single", "pipeline", "data", "fully-sharded", "tensor", "data-tensor")
SPLIT_PROGRAMS = {
    "towers": layers(96, 200, 3),
    "sums": mesh.trace(lambda x: mnp.sum(mnp.tanh(x @ mnp.ones((99, 99), "float32")), axis=0), ROWS_99),
    "rows": mesh.trace(
        normalised, np.zeros((90, 300), np.float32), np.zeros((300, 520), np.float32), np.zeros(520, np.float32)
    ),
}


@pytest.mark.parametrize("machine", ["alike", "slow"])
@pytest.mark.parametrize(
    ("strategy", "program"),
    [*((name, "towers") for name in SPLITTING), ("auto", "rows"), ("data", "sums"), ("auto", "sums")],
)
def test_native_workers_of_any_processors_split_and_have_the_bits_of_one(
    strategy: str, program: str, machine: str, compute: Callable[..., Any]
) -> None:
    graph = SPLIT_PROGRAMS[program]
    plan = make_plan(graph, NATIVE[machine], text_of(strategy, reproducible=True))
    values = values_of(graph)
    inputs = {name: values[name] for name in graph.input_types}
    got = run_plan(plan, inputs, {name: values[name] for name in graph.param_types}, compute)
    assert [each.tobytes() for each in got] == [each.tobytes() for each in compute(graph, values)]
    assert plan.gangs or strategy not in EXCLUDED
    assert not any(node.op in ("all_reduce", "reduce_scatter") for part in plan.parts for node in part.graph.nodes)
    assert plan.reasons[0] == "reproducible"


@pytest.mark.parametrize("op", ["cholesky", "fft"])
def test_what_a_library_computes_is_reproducible_on_one_kind_of_processor_only(op: str) -> None:
    x = np.eye(4, dtype=np.float32 if op == "cholesky" else np.complex64)
    graph = mesh.trace(getattr(mnp.linalg if op == "cholesky" else mnp.fft, op), x)
    what = op if op == "cholesky" else "c64"
    with pytest.raises(PlacementError, match=f"for {what}.*, whose bits no definition fixes, and there are worker-0: "):
        make_plan(graph, NATIVE["alike"], SAME)
    assert make_plan(graph, NATIVE["alone"], SAME).parts


def test_what_needs_native_1_by_name_refuses_numpy_of_one_kind() -> None:
    asked = Single(reproducible="native-2")
    assert strategy_of(asked.text) == asked
    assert make_plan(layers(4, 4, 2), NATIVE["alike"], asked.text).parts
    with pytest.raises(PlacementError, match="round alike by native-2 and there are worker-0, worker-1: numpy"):
        make_plan(layers(4, 4, 2), rounding("haswell", "haswell"), asked.text)
    assert strategy_of(text_of(asked, reproducible=True)) == asked, "a reproducible mesh asks for no less"
    with pytest.raises(InputError, match="the name of an arithmetic"):
        Single(reproducible="")


def test_audits_of_native_workers_of_two_processors_are_exact() -> None:
    plan = make_plan(layers(8, 16, 2), NATIVE["alike"], DeviceMap().layer("", "worker-0").text)
    found = audited(plan, 0, NATIVE["alike"])
    assert found.parts[-1].graph == audit_graph(found.parts[0].graph, exact=True)


# -- what cannot have equal bits


@pytest.mark.parametrize("name", EXCLUDED)
def test_strategies_that_split_are_refused_where_bits_follow_shapes_and_the_error_says_why(name: str) -> None:
    graph, asked = layers(64, 64, 2), text_of(name, reproducible=True)
    with pytest.raises(InputError, match=rf"'{name}' is not reproducible: the last bits .*deterministic=N"):
        make_plan(graph, MESHES["alike"], asked)


@pytest.mark.parametrize(("asked", "why"), [({"schedule": "pipedream"}, "stale"), ({"data": 2}, "add up gradients")])
def test_pipelines_whose_bits_follow_their_stages_are_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Pipeline(2, reproducible=True, **asked)


def loss(params: Any, x: Any) -> Any:
    return (params["layer"](x) ** 2).sum(axis=-1)


PARAMS = {"layer": nn.Linear.init(random.key(1), 4, 4)}
ROWS = np.ones((4, 4), np.float32)


def trainer(strategy: Any = DataParallel(), **wishes: Any) -> DistributedTrainer:
    return DistributedTrainer(loss, PARAMS, strategy=strategy, **wishes)


async def served(batched: bool | None) -> None:
    async with (
        await Mesh.builder().mesh("sim").simulate(1).reproducible().build_async() as own,
        AsyncInferenceServer(own) as server,
    ):
        await server.load_model("double", lambda x: x * 2, batched=batched)
        both = [server.infer("double", ROWS), server.infer("double", ROWS)]
        for found in await asyncio.gather(*both):
            np.testing.assert_array_equal(found, ROWS * 2)
        assert server.loaded_models()[0].batches == 2, "each alone"


def kept(state: Any, x: Any) -> Any:
    return state + x, state


REFUSED: dict[str, tuple[str, Callable[[Mesh], Any]]] = {
    "run": ("'data' is not reproducible", lambda m: m.run(mnp.tanh, ROWS, strategy="data")),
    "plan": ("'tensor' is not reproducible", lambda m: m.plan(mnp.tanh, ROWS, strategy="tensor")),
    "compile": ("'data' is not reproducible", lambda m: m.compile(mnp.tanh, ROWS, strategy="data")(ROWS)),
    "submit": ("'data' is not reproducible", lambda m: m.submit(mnp.tanh, ROWS, strategy="data").result()),
    "session": (
        "not reproducible",
        lambda m: m.session(lambda s, x: (s + x, s), ROWS, ROWS, strategy="data").step(ROWS).result(),
    ),
    "decorated": ("not reproducible", lambda m: np.asarray(mesh.distributed(mnp.tanh, strategy="data")(ROWS))),
    "training": ("deterministic=N", lambda m: trainer().distribute(m)),
    "sharded": ("deterministic=N", lambda m: trainer(mesh.FullySharded()).distribute(m)),
    "compressed": (
        "compressed gradients are not reproducible",
        lambda m: trainer("auto", compression="int8").distribute(m),
    ),
    "coding": ("which k of the n shares", lambda m: mesh.Coding(m, n=2, k=1)),
}


@pytest.fixture(scope="module")
def simulated() -> Any:
    with Mesh.builder().mesh("sim").simulate(2).reproducible().build() as own:
        yield own


@pytest.mark.parametrize("what", REFUSED)
def test_a_reproducible_mesh_refuses_what_it_could_not_hold(simulated: Mesh, what: str) -> None:
    why, ask = REFUSED[what]
    with pytest.raises(InputError, match=why):
        ask(simulated)


def test_what_it_computes_is_asked_for_so_however_it_is_asked_for(simulated: Mesh) -> None:
    assert simulated.plan(mnp.tanh, ROWS).data["strategy"] == SAME
    assert simulated.plan(mnp.tanh, ROWS, strategy="pipeline").data["strategy"] == 'pipeline {"reproducible":true}'
    np.testing.assert_array_equal(np.asarray(mnp.asarray(ROWS) + 1), ROWS + 1)  # by the with block's evaluator
    assert simulated.report().reasons[0].startswith("reproducible")
    with simulated.session(lambda state, x: (state + x, state), ROWS, ROWS) as session:
        np.testing.assert_array_equal(session.step(ROWS).result(), ROWS)
        assert session.running.plan.strategy == SAME  # type: ignore[attr-defined]


def test_requests_are_computed_alone_and_batches_refused_over_numpy() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(served(None))
        with pytest.raises(PlacementError, match="round alike by native-2 and there are sim-0"):
            runner.run(served(True))


@pytest.mark.parametrize("strategy", [DataParallel(), Auto()])
def test_deterministic_training_is_reproducible_whoever_computes(strategy: Any) -> None:
    found = []
    for workers in (1, 2, 3):
        with Mesh.builder().mesh("sim").simulate(workers).reproducible().build() as own:
            made = trainer(strategy, deterministic=4).distribute(own)
            made.fit(RNG.permutation(np.tile(ROWS, (3, 1))), epochs=1, batch_size=8)
            found.append(made.params["layer"].weight.tobytes())
    assert len(set(found)) == 1
