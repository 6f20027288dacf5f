"""mesh-coord explain and Mesh.explain over real workers of every engine: what they tell, and what they refuse."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import adapters
from support.endless import endless
from support.processes import site as sites
from support.processes.commands import PATIENT_S, asked, command, daemon, environment, node_states, wait_for
from support.processes.worker_process import children

import mesh.numpy as mnp
from mesh import Mesh, cond, errors, scan, trace
from mesh.backends.remote import Remote
from mesh.client.explanation import Explanation, explanation_of, worker_and_device
from mesh.commands import exit_codes
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import CONTROL, LEAVES

M, K, N = 64, 32, 16
X = np.linspace(-1, 1, M * K, dtype=np.float32).reshape(M, K)
W = np.linspace(-1, 1, K * N, dtype=np.float32).reshape(K, N)
LARGE = np.linspace(-1, 1, 200 * 200, dtype=np.float32).reshape(200, 200)  # a blob of its own
ENGINES = ("cpu", "native", *(["wgsl"] if adapters() else []))


def layer(x: Any, w: Any) -> Any:
    return mnp.maximum(x @ w, 0.0) * 2.0


GRAPH = trace(layer, X, W)
FLOPS = 2 * M * K * N + M * N + M * N  # the product, the maximum, the product by two


@dataclasses.dataclass(slots=True)
class Explained(sites.Site):
    """A coordinator, and a worker for each engine, which has its engine's name."""

    mesh: Mesh


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explained]:
    folder = tmp_path_factory.mktemp("explained")
    GRAPH.save(folder / "g.wire")
    env = environment(folder)
    with ExitStack() as stack:
        coordinator = stack.enter_context(sites.serving(folder, env))
        words = ("worker", "--port", "0", "--no-mdns", "--peer", coordinator.address)
        devices = {
            "cpu": ("--device", "cpu"),
            "native": ("--device", "native", "--threads", "2"),
            "wgsl": ("--device", "0"),
        }
        workers = {
            name: stack.enter_context(
                daemon(*words, *devices[name], "--name", name, env=env, log=folder / f"{name}.log")
            )
            for name in ENGINES
        }
        wait_for(lambda: list(node_states(coordinator).values()) == ["healthy"] * len(ENGINES), PATIENT_S)
        env["MESH_ADDRESS"] = coordinator.address
        builder = Mesh.builder().mesh("explained").node_timeout(PATIENT_S)
        yield Explained(folder, env, coordinator, workers, stack.enter_context(builder.local(1, "cpu").build()))


def explained(served: Explained, graph: WireGraph = GRAPH, worker: str = "", text: int | None = None) -> Explanation:
    """The explanation that a client of the coordinator gets."""
    name, device = worker_and_device(worker)

    async def ask(remote: Remote) -> Explanation:
        return explanation_of(await remote.explain(graph, name, device, text is not None, text), graph)

    return asked(served.coordinator, ask)


# -- what an explanation says


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_tells_its_kernels(served: Explained, engine: str) -> None:
    explanation = explained(served, worker=engine)
    assert (explanation.worker, explanation.device, explanation.engine) == (engine, 0, engine)
    assert explanation.flops == sum(kernel.flops for kernel in explanation.kernels) == FLOPS
    leaves = [index for index, node in enumerate(GRAPH.nodes) if node.op in LEAVES]
    assert list(explanation.no_kernel) == leaves
    inside = sorted(node for kernel in explanation.kernels for node in kernel.nodes)
    assert inside == [index for index in range(len(GRAPH.nodes)) if index not in leaves], "each in one kernel"
    assert explanation.measured_s and explanation.evaluations > 0
    for kernel in explanation.kernels:
        assert kernel.measured_s and kernel.runs == 1
        moved = kernel.read_bytes + kernel.written_bytes
        assert kernel.predicted_s == max(
            kernel.flops / (explanation.gflops * 1e9), moved / (explanation.gbytes_per_s * 1e9)
        )
        assert kernel.ops == tuple(GRAPH.nodes[index].op for index in kernel.nodes)
    product = explanation.kernels[0]
    assert product.flops >= 2 * M * K * N and product.read_bytes >= 4 * (M * K + K * N)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_is_that_of_the_kernel_that_was_asked_for(served: Explained, engine: str) -> None:
    mark = {"cpu": "dot(f32[64,32]", "native": 'define void @"kernel"', "wgsl": "@compute"}[engine]
    first, *others = explained(served, worker=engine, text=0).kernels
    assert mark in first.text and not any(kernel.text for kernel in others)


def test_the_command_prints_a_table_texts_and_json(served: Explained) -> None:
    done = served.ask("explain", "g.wire", "--worker", "cpu", "--text")
    assert done.returncode == exit_codes.OK, done.stderr
    title, *rows = done.stdout.splitlines()
    assert title.split() == [
        "kernel",
        "name",
        "nodes",
        "ops",
        "read",
        "written",
        "MFLOP",
        "predicted",
        "measured",
        "runs",
    ]
    assert [row.split()[:3] for row in rows[:3]] == [
        ["0", "numpy", "dot"],
        ["1", "numpy", "max"],
        ["2", "numpy", "mul"],
    ]
    assert rows[3].startswith("all")
    assert "a clock around each numpy call" in done.stdout and "no kernel, by number: 0-1," in done.stdout
    assert done.stdout.count("-- kernel ") == 3 and "-- kernel 0: numpy dot\ndot(f32[64,32], f32[32,16])" in done.stdout
    explanation = served.json("explain", "g.wire")
    assert explanation["worker"] in ENGINES, "the one that a plan takes"
    assert explanation["totals"]["flops"] == FLOPS


def test_without_a_coordinator_a_worker_is_started_for_it(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "g.wire")
    done = subprocess.run(
        command("coord", "explain", "g.wire", "--here", "cpu", "--json"), cwd=tmp_path, env=environment(tmp_path),
        capture_output=True, text=True, timeout=PATIENT_S,
    )  # fmt: skip
    assert done.returncode == exit_codes.OK, done.stderr
    explanation = json.loads(done.stdout)
    assert explanation["engine"] == "cpu" and explanation["totals"]["flops"] == FLOPS


# -- in Python


def test_a_function_is_traced_and_explained(served: Explained) -> None:
    explanation = served.mesh.explain(layer, X, w=W)
    assert isinstance(explanation, Explanation) and explanation.flops == FLOPS
    assert explanation.kernels_s == sum(kernel.measured_s or 0 for kernel in explanation.kernels) > 0
    assert json.loads(json.dumps(explanation.data()))["totals"]["flops"] == FLOPS
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.worker = "other"  # type: ignore[misc]


def turns(x: Any) -> Any:
    return scan(lambda carry, row: (mnp.tanh((carry * 1.0) @ LARGE), row), x[0], x)


def test_large_constants_are_sent_and_what_is_in_a_loop_is_told_with_it(served: Explained) -> None:
    graph = trace(turns, np.ones((5, 200), np.float32))
    for explanation in (served.mesh.explain(graph), explained(served, graph, "native")):
        (loop,) = [kernel for kernel in explanation.kernels if kernel.name == "control scan"]
        inner = [kernel for kernel in explanation.kernels if kernel.inside == loop.number]
        body = next(node.attrs["body"] for node in graph.nodes if node.op == "scan")
        assert [op for kernel in inner for op in kernel.ops] == ["dot", "tanh"], (
            "what falls away in the body is in none"
        )
        assert all(kernel.ops == tuple(body.nodes[index].op for index in kernel.nodes) for kernel in inner)
        assert loop.measured_s is not None
        assert {kernel.runs for kernel in inner} == {5} and {kernel.body for kernel in inner} == {"body"}
        assert loop.flops == explanation.flops == 5 * sum(kernel.flops for kernel in inner)
        assert f"{loop.number}.body.{inner[0].number}" in str(explanation)


def branches(x: Any) -> Any:
    both = cond(x[0, 0] > 0, lambda y: (y * 1.0 + 2.0, mnp.sin(y)), lambda y: (mnp.exp(y), mnp.cos(y)), x)
    return both[0]


INSIDE = {  # the graphs inside, the ops of their kernels, and those that are there and not in a kernel
    "all of a loop": (turns, {"body": ["dot", "tanh"]}, {"mul"}),
    "one result of a loop": (lambda x: turns(x)[0], {"body": ["dot", "tanh"]}, {"mul"}),
    "one result of branches": (branches, {"then": ["add"], "otherwise": ["exp"]}, {"mul", "sin", "cos"}),
}


@pytest.mark.filterwarnings("ignore:.* has large constants")
@pytest.mark.parametrize("case", INSIDE)
def test_what_is_inside_is_told_by_the_nodes_of_the_graph_that_was_asked_about(served: Explained, case: str) -> None:
    work, expected, absent = INSIDE[case]
    graph = trace(work, np.ones((5, 200), np.float32))
    control = next(node for node in graph.nodes if node.op in CONTROL)
    kernels_by_body = {
        name: [kernel for kernel in served.mesh.explain(graph).kernels if kernel.body == name] for name in expected
    }
    assert {
        name: [op for kernel in kernels for op in kernel.ops] for name, kernels in kernels_by_body.items()
    } == expected
    for name, kernels in kernels_by_body.items():
        body = control.attrs[name]
        assert all(kernel.ops == tuple(body.nodes[index].op for index in kernel.nodes) for kernel in kernels)
    assert absent <= {node.op for name in expected for node in control.attrs[name].nodes}


def test_a_session_goes_on_with_its_values(served: Explained) -> None:
    state = np.zeros(N, np.float32)
    with served.mesh.session(lambda state, x: (mnp.tanh(state + x), state), state, np.float32(1)) as session:
        for turn in range(8):
            step = session.step(np.float32(turn))
            assert served.mesh.explain(turns, np.ones((5, 200), np.float32)).evaluations > 0
            np.testing.assert_allclose(step.result(), state, rtol=1e-6)
            state = np.tanh(state + np.float32(turn))
        np.testing.assert_allclose(session.state(), state, rtol=1e-6)


def test_where_nothing_is_computed_there_is_no_kernel(served: Explained) -> None:
    for explanation in (served.mesh.explain(lambda x: x, X), served.mesh.explain(lambda x: 3.0, X)):
        assert (explanation.kernels, explanation.flops, explanation.worker) == (
            (),
            0,
            "local-0",
        ) and explanation.evaluations > 0


def test_who_gives_up_frees_the_worker(served: Explained) -> None:
    (node,) = served.mesh.nodes
    hosts = children(node.pid)

    async def give_up() -> None:
        asking = asyncio.create_task(served.mesh.on_loop.explain(endless, np.ones((64, 64), np.float32)))
        await asyncio.sleep(1.0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    served.mesh.wait(give_up())
    assert served.mesh.explain(layer, X, W).flops == FLOPS, "its device is free"
    assert children(node.pid) == hosts, "its engine host stopped and was not ended"


def test_a_client_that_gives_up_frees_the_worker_of_its_coordinator(served: Explained) -> None:
    graph = trace(endless, np.ones((64, 64), np.float32))
    hosts = children(served.workers["cpu"].process.pid)

    async def give_up(remote: Remote) -> None:
        asking = asyncio.create_task(remote.explain(graph, "cpu", None, False, None))
        await asyncio.sleep(1.0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asked(served.coordinator, give_up)
    assert explained(served, worker="cpu").evaluations > 0
    assert children(served.workers["cpu"].process.pid) == hosts


# -- traces

LANES = {"cpu": "numpy", "native": "thread", "wgsl": "device"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_traces_its_kernels_where_that_is_asked_for(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_PROFILE", "2")
    monkeypatch.setenv("MESH_TRACE", str(tmp_path / "traces" / "run.json"))
    with Mesh.builder().local(1, "0" if engine == "wgsl" else engine).node_timeout(PATIENT_S).build() as m:
        for _ in range(3):
            m.run(GRAPH, X, W)
        explanation = m.explain(GRAPH)
    (file,) = (tmp_path / "traces").glob(f"*-{engine}-*")  # a worker with a GPU has a processor's, too
    assert re.fullmatch(rf"run-local-0-{engine}-\d+\.json", file.name)
    events = json.loads(file.read_text())["traceEvents"]
    kernels = [event for event in events if event["ph"] == "X"]
    assert len({event["args"]["kernel"] for event in kernels}) == len(explanation.kernels)
    runs = [event for event in kernels if event["args"]["kernel"] == 0]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(runs) >= 3 and all(event["dur"] > 0 and event["tid"] in lanes for event in kernels)
    assert {name.partition(" ")[0] for name in lanes.values()} == {LANES[engine]}
    assert sum(event["args"]["flops"] for event in kernels) >= 3 * FLOPS


# -- what is refused


def reduced(shape: tuple[int, ...]) -> WireGraph:
    builder = GraphBuilder()
    return builder.build([builder.add("reduce_sum", builder.input("x", shape, F32), axes=tuple(range(len(shape))))])


def rank() -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (4,), F32)
    return builder.build([builder.add("all_reduce", x, axes=("dp",), sizes=(2,), reduction="sum")])


def without_constants() -> WireGraph:
    return dataclasses.replace(trace(lambda x: x @ LARGE, np.ones((2, 200), np.float32)), blobs={})


REFUSED: dict[str, tuple[Callable[[Mesh], object], type[errors.MeshError], str]] = {
    "worker": (lambda m: m.explain(GRAPH, worker="nobody"), errors.InputError, "no worker called 'nobody' here now"),
    "device": (lambda m: m.explain(GRAPH, worker="local-0:7"), errors.InputError, "local-0 has no device 7"),
    "kernel": (lambda m: m.explain(GRAPH, text=77), errors.InputError, "there is no kernel 77"),
    "kernel far off": (lambda m: m.explain(GRAPH, text=1 << 70), errors.InputError, "text is an int from 0 to 99999"),
    "device far off": (lambda m: m.explain(GRAPH, worker="local-0:9999"), errors.InputError, "has no device 9999"),
    "device of 5,000 digits": (
        lambda m: m.explain(GRAPH, worker="local-0:" + "9" * 5000), errors.InputError, "is no name of a worker",
    ),
    "surrogate": (lambda m: m.explain(GRAPH, worker="\ud800"), errors.InputError, "is no name of a worker"),
    "name": (lambda m: m.explain(GRAPH, worker=3), errors.InputError, "worker is a name"),  # type: ignore[arg-type]
    "text": (lambda m: m.explain(GRAPH, text="x"), errors.InputError, "text is an int"),  # type: ignore[arg-type]
    "rank": (lambda m: m.explain(rank()), errors.InputError, "for one rank of several"),
    "constants": (
        lambda m: m.explain(without_constants()), errors.InputError,
        r"1 of the graph's large constants .* f32\[200,200\].*\.wire file",
    ),
    "memory": (
        lambda m: m.explain(reduced((1 << 20, 1 << 14)), worker="local-0"), errors.OutOfMemory, "needs 64.* the budget",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_explained_says_why(served: Explained, case: str) -> None:
    ask, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        ask(served.mesh)


def test_a_mistake_is_one_line(served: Explained) -> None:
    (served.folder / "bad.wire").write_bytes(b"nothing")
    mistakes = [
        ("bad.wire", "--worker", "cpu"),
        ("absent.wire",),
        ("g.wire", "--text", "x"),
        ("g.wire", "--text", "9" * 5000),
        ("g.wire", "--text", "100000000"),
        ("g.wire", "--worker", "cpu:123456"),
        ("g.wire", "--here", "--worker", "a"),
    ]
    said = ["bad.wire", "absent.wire", "'x' is no number of a kernel", "is no number of a kernel",
            "text is an int from 0 to 99999", "no worker called 'cpu:123456'", "not allowed with argument"]  # fmt: skip
    for arguments, text in zip(mistakes, said, strict=True):
        done = served.ask("explain", *arguments)
        assert (done.returncode, done.stdout) == (exit_codes.USAGE, ""), done.stderr
        assert text in done.stderr and "Traceback" not in done.stderr
