"""Programs of ranks on real worker processes: right to the bit, side by side, and after a worker was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.cases import unlike_ranks
from support.cases.spmd_cases import CASES
from support.processes.commands import COMES_TRUE_S, PATIENT_S, until_by_the_same_plan

from mesh import (
    DataParallel,
    FullySharded,
    Grid,
    Mesh,
    PartitionSpec,
    Ranks,
    TensorParallel,
    evaluate,
    nn,
    random,
    shard,
    tree,
    value_and_grad,
)
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.passes.unroll_spmd import unroll
from worker.cpu import evaluate as evaluate_here

RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh.builder().local(4).node_timeout(PATIENT_S).build() as made:
        yield made


def outputs(found: Any) -> list[Any]:
    """Several come by name."""
    return list(found.values()) if isinstance(found, dict) else [found]


def looped(ranks: int, turns: int, axis: str = "dp") -> WireGraph:
    """Each rank adds what the one before has, so many times; what all have then is added up."""
    group: dict[str, Any] = {"axes": (axis,), "sizes": (ranks,)}
    step = GraphBuilder()
    carry = step.input("0", (2, 3), F32)
    ring = tuple(rank for at in range(ranks) for rank in (at, (at + 1) % ranks))
    before = step.add("permute", carry, **group, pairs=ring)
    half = step.add("mul", step.add("add", carry, before), step.const(np.float32(0.5)))
    body = GraphBuilder()
    attrs: dict[str, Any] = {"body": step.build([half]), "carry": 1, "consts": 0, "length": turns, "reverse": 0}
    last = body.add("scan", body.input("0", (2, 3), F32), **attrs, output=0)
    total = body.add("all_reduce", last, **group, reduction="sum")
    builder = GraphBuilder()
    whole: dict[str, Any] = {"body": body.build([last, total]), **group, "in_specs": (f"{axis} -",)}
    x = builder.input("x", (2 * ranks, 3), F32)
    made = [builder.add("spmd", x, **whole, out_specs=(f"{axis} -", "- -"), output=output) for output in (0, 1)]
    return builder.build(made)


def values(graph: WireGraph, seed: int = 0) -> dict[str, Any]:
    shape = graph.input_types["x"].shape
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def expected(graph: WireGraph, given: dict[str, Any]) -> list[Any]:
    return list(evaluate_here(unroll(graph), given))


def run(mesh: Mesh, graph: WireGraph, given: dict[str, Any], **how: Any) -> list[Any]:
    return outputs(mesh.run(graph, *given.values(), strategy=Ranks(), **how))


@pytest.mark.parametrize("op", ["spmd", "all_reduce", "all_to_all", "reduce_scatter"])
def test_ranks_have_the_bits_of_one_device(mesh: Mesh, op: str) -> None:
    for name, graph, given in CASES[op](F32):
        if name != "in-a-scan":
            found = run(mesh, graph, given)
            pairs = zip(found, expected(graph, given), strict=True)
            assert all(np.array_equal(a, b, equal_nan=True) for a, b in pairs), name


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_ranks_with_graphs_of_their_own_have_the_bits_of_one_device(mesh: Mesh, seed: int) -> None:
    graph = unlike_ranks.program(unlike_ranks.drawn(seed, 4), 4)
    given = {"x": unlike_ranks.X, "y": unlike_ranks.Y}
    assert any("do not compute the same" in reason for reason in mesh.plan(graph, *given.values()).data["reasons"])
    for found, right in zip(run(mesh, graph, given), expected(graph, given), strict=True):
        np.testing.assert_array_equal(found, right)


def test_several_programs_of_ranks_side_by_side_do_not_wait_for_each_other(mesh: Mesh) -> None:
    programs = [
        looped(ranks, turns, axis) for ranks, turns, axis in ((2, 5, "a"), (4, 9, "b"), (3, 7, "c"), (2, 3, "d"))
    ]
    jobs = []
    for seed in range(12):
        for graph in programs:
            given = values(graph, seed)
            jobs.append((mesh.submit(graph, *given.values(), strategy=Ranks()), expected(graph, given)))
    for job, whole in jobs:
        assert all(np.array_equal(a, b) for a, b in zip(outputs(job.result(COMES_TRUE_S)), whole, strict=True))


def test_only_blocks_travel(mesh: Mesh) -> None:
    builder, body = GraphBuilder(), GraphBuilder()
    made = body.add("add", body.input("0", (256, 512), F32), body.input("1", (256, 512), F32))
    attrs: dict[str, Any] = {"body": body.build([made]), "axes": ("dp",), "sizes": (4,)}
    specs = {"in_specs": ("dp -", "dp -"), "out_specs": ("dp -",)}
    x, w = builder.input("x", (1024, 512), F32), builder.param("w", (1024, 512), F32)
    graph = builder.build([builder.add("spmd", x, w, **attrs, **specs, output=0)])
    given, held = RNG.standard_normal((2, 1024, 512)).astype(np.float32)
    weights = mesh.put(held)
    assert np.array_equal(mesh.run(graph, given, weights, strategy=Ranks()), given + held)
    report = mesh.report()
    assert [worker.bytes_in for worker in report.workers.values()] == [given.nbytes // 4] * 4
    assert report.weight_bytes_moved == held.nbytes, "a quarter each"
    again = until_by_the_same_plan(mesh, lambda: mesh.run(graph, given, weights, strategy=Ranks()))
    assert np.array_equal(again, given + held) and mesh.report().weight_bytes_moved == 0


@pytest.mark.parametrize("strategy", [DataParallel(4), TensorParallel(2), FullySharded(4)], ids=lambda each: each.word)
def test_a_whole_program_that_was_split_is_right(mesh: Mesh, strategy: Any) -> None:
    held = {"w": RNG.standard_normal((8, 32)).astype(np.float32), "v": RNG.standard_normal((32, 8)).astype(np.float32)}
    x = RNG.standard_normal((10, 8)).astype(np.float32)
    found = mesh.run(lambda p, x: abs(x @ p["w"]) @ p["v"], mesh.put(held), x, strategy=strategy)
    np.testing.assert_allclose(found, abs(x @ held["w"]) @ held["v"], rtol=1e-5, atol=1e-5)


def test_a_program_about_whole_tensors_is_split_as_it_asks(mesh: Mesh) -> None:
    grid = Grid((2, 2), ("dp", "tp"))
    keys = random.split(random.key(0))
    up = nn.AllToShardedLinear.init(keys[0], 16, 61, grid=grid, axis="tp")  # 61 features over 2 ranks
    down = nn.ShardedToAllLinear.init(keys[1], 61, 16, grid=grid, axis="tp")
    x = RNG.standard_normal((7, 16)).astype(np.float32)

    def loss(layers: Any, x: Any) -> Any:
        return (layers[1](nn.gelu(layers[0](shard(x, PartitionSpec("dp"), grid)))) ** 2).sum()

    wanted = tree.leaves(evaluate(value_and_grad(loss), (up, down), x))
    found = tree.leaves(mesh.run(value_and_grad(loss), mesh.put((up, down)), x, strategy=Ranks()))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    whole = sum(np.asarray(leaf).nbytes for leaf in tree.leaves((up, down)))
    assert whole < mesh.report().weight_bytes_moved < 3 * whole, "halves of the weights, by four"
    np.testing.assert_array_equal(np.asarray(shard(x, PartitionSpec(("tp", "dp")), grid) * 2), x * 2)
    assert len(mesh.report().workers) == 4, "an array outside of a function is split too"


@pytest.mark.parametrize("strategy", [DataParallel(2), TensorParallel(2), FullySharded(4)], ids=lambda each: each.word)
def test_a_state_may_be_split_over_ranks(mesh: Mesh, strategy: Any) -> None:
    """Ten steps of gradient descent, whose weights stay with the ranks."""
    start = {"w": RNG.standard_normal((8, 32)).astype(np.float32), "v": RNG.standard_normal((32, 8)).astype(np.float32)}
    x, y = RNG.standard_normal((2, 16, 8)).astype(np.float32)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((abs(x @ p["w"]) @ p["v"] - y) ** 2).mean()

    def step(p: Any, x: Any, y: Any) -> Any:
        value, slopes = value_and_grad(loss)(p, x, y)
        return {name: p[name] - 1e-2 * slopes[name] for name in p}, value

    expected, here = [], start
    for _ in range(10):
        here, value = evaluate(step, here, x, y)
        expected.append(value)
    with mesh.session(step, start, x, y, strategy=strategy) as session:
        found = [job.result() for job in [session.step(x, y) for _ in range(10)]]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        for name, value in session.state().items():
            np.testing.assert_allclose(value, here[name], rtol=1e-3, atol=1e-4)


def test_a_killed_rank_is_replaced_and_the_answer_is_right(mesh: Mesh) -> None:
    """The last test of these: it leaves the others' mesh with a worker less."""
    graph = looped(2, 300)
    given = values(graph)
    whole = expected(graph, given)
    first = run(mesh, graph, given)
    used = set(mesh.report().workers)
    jobs = [mesh.submit(graph, *given.values(), strategy=Ranks()) for _ in range(6)]
    killed = next(node for node in mesh.nodes if node.name in used)
    os.kill(killed.pid, signal.SIGKILL)
    for found in (first, *(outputs(job.result(COMES_TRUE_S)) for job in jobs), run(mesh, graph, given)):
        assert all(np.array_equal(a, b) for a, b in zip(found, whole, strict=True))
    # Which two of the other three: those measured fastest by then.
    assert len(used) == len(mesh.report().workers) == 2 and killed.name not in mesh.report().workers
