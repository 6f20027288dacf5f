"""Derivatives and batches of what ranks compute together: against central differences, and against loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.cases.shard_cases import CASES, Case
from support.differences import along, assert_close, inner, numbers

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array
from mesh.transforms.jvp_rules import JVPS
from mesh.transforms.vjp_rules import VJPS
from mesh.transforms.vmap_rules import VMAPS
from wire.errors import UnknownOp
from wire.ir.dtypes import F64
from wire.ir.graph import WireGraph
from wire.ir.ops import COLLECTIVES, MULTIPLE, inner_graphs
from wire.ir.types import TensorType
from wire.passes.simplify import simplify

CASE = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])


def directions(case: Case, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in case.shapes]


@CASE
def test_jvp_and_vjp_through_shard_map_are_what_differences_are(case: Case) -> None:
    fn, point, direction = case.mapped, case.point(), directions(case, 1)
    wanted = along(fn, point, direction)
    outputs, tangents = mesh.jvp(lambda *args: tuple(fn(*args)), tuple(point), tuple(direction))
    for found, right in zip(numbers(tangents), wanted, strict=True):
        assert_close(found, right, "jvp")
    _, pull = mesh.vjp(lambda *args: tuple(fn(*args)), *point)
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal(output.shape) for output in outputs]
    assert_close(inner(numbers(pull(tuple(weights))), direction), inner(wanted, weights), "vjp", 10)


@CASE
def test_second_derivatives_are_what_differences_of_the_first_are(case: Case) -> None:
    fn, point, direction = case.mapped, case.point(3), directions(case, 4)
    rng = np.random.default_rng(5)
    weights = [rng.standard_normal(output.shape) for output in fn(*point)]

    def loss(*args: Any) -> Array:
        return sum(
            (mnp.sum(each * weight) for each, weight in zip(fn(*args), weights, strict=True)), start=mnp.zeros(())
        )

    gradient = mesh.grad(loss, argnums=tuple(range(len(point))))
    wanted = along(lambda *args: list(gradient(*args)), point, direction)
    _, found = mesh.jvp(gradient, tuple(point), tuple(direction))
    _, pull = mesh.vjp(gradient, *point)
    for each, right in zip(numbers(found), wanted, strict=True):
        assert_close(each, right, "forward over reverse", 10)
    for each, right in zip(numbers(pull(tuple(mnp.asarray(d) for d in direction))), wanted, strict=True):
        assert_close(each, right, "reverse over reverse: the matrix is symmetric", 10)


@CASE
def test_a_batch_is_the_calls_one_by_one(case: Case) -> None:
    fn = case.mapped
    points = [case.point(seed) for seed in range(3)]
    stacked = [np.stack(arrays) for arrays in zip(*points, strict=True)]
    wanted = [np.stack(arrays) for arrays in zip(*[numbers(fn(*point)) for point in points], strict=True)]
    for found, right in zip(numbers(mesh.vmap(lambda *args: tuple(fn(*args)))(*stacked)), wanted, strict=True):
        assert_close(found, right)
    last = [np.moveaxis(array, 0, -1) for array in stacked]
    moved = mesh.vmap(lambda *args: tuple(fn(*args)), in_axes=-1, out_axes=-1)(*last)
    for found, right in zip(numbers(moved), wanted, strict=True):
        assert_close(np.moveaxis(found, -1, 0), right)


@CASE
def test_a_batch_within_the_ranks_is_the_blocks_one_by_one(case: Case) -> None:
    """The mapped axis is whole on every rank, and the function sees blocks as before."""
    points = [case.point(seed) for seed in range(2)]
    wanted = [np.stack(arrays) for arrays in zip(*[numbers(case.mapped(*point)) for point in points], strict=True)]
    ahead = [mesh.PartitionSpec(None, *spec.dims) for spec in case.in_specs]
    behind = mesh.tree.map(lambda spec: mesh.PartitionSpec(None, *spec.dims), case.out_specs)
    fn = mesh.shard_map(mesh.vmap(case.fn), case.grid, tuple(ahead), behind)
    found = mesh.tree.leaves(fn(*[np.stack(arrays) for arrays in zip(*points, strict=True)]))
    for each, right in zip(numbers(found), wanted, strict=True):
        assert_close(each, right)


# -- within the ranks -------------------------------------------------------------------------------------


def apart(case: Case) -> tuple[Any, list[Any], Any]:
    """The sum over ranks of what each makes of blocks of its own, the blocks by rank, and the function with one result
    per rank: so that a copy can be changed on one rank alone."""
    every = mesh.PartitionSpec(case.grid.names)
    types = [spec.local(case.grid, TensorType(shape, F64), "x").shape
             for spec, shape in zip(case.in_specs, case.shapes, strict=True)]  # fmt: skip
    rng = np.random.default_rng(6)
    point = [rng.uniform(0.5, 1.5, (case.grid.ranks, *shape)) for shape in types]

    def local(*args: Any) -> Array:
        found = mesh.tree.leaves(case.fn(*args))
        return sum((mnp.sum(mnp.sin(each)) for each in found), start=mnp.zeros((), dtype="float64"))

    def rows(fn: Any) -> Any:
        def with_row(*args: Any) -> Any:
            return mesh.tree.map(lambda each: each[None], fn(*[arg[0] for arg in args]))

        return mesh.shard_map(with_row, case.grid, every, every)

    return local, point, rows


@CASE
def test_within_a_body_a_gradient_is_of_the_sum_over_all_ranks(case: Case) -> None:
    """By each rank's own argument: what a rank holds is changed on that rank alone."""
    local, point, rows = apart(case)
    rng = np.random.default_rng(7)
    direction = [rng.standard_normal(array.shape) for array in point]
    (wanted,) = along(lambda *args: [mnp.sum(rows(local)(*args))], point, direction)
    gradient = rows(lambda *args: mesh.grad(local, argnums=tuple(range(len(args))))(*args))
    assert_close(inner(numbers(gradient(*point)), direction), wanted, "grad within", 10)
    tangents = rows(lambda *args: mesh.jvp(local, args[: len(point)], args[len(point) :])[1])
    assert_close(np.sum(np.asarray(tangents(*point, *direction))), wanted, "jvp within", 10)


def test_the_mean_of_local_gradients_is_that_of_the_mean_loss() -> None:
    """What docs/sharding.md says of data parallel steps, whether the loss is reduced or not."""
    grid, P = mesh.Grid(3, "dp"), mesh.PartitionSpec
    w, x = np.linspace(0.1, 1, 4), np.linspace(-1, 1, 24).reshape(6, 4)
    wanted = np.asarray(mesh.grad(lambda w: mnp.mean(mnp.tanh(x @ w) ** 2))(w))
    for op in (None, "mean"):

        def step(w: Any, x: Any, op: str | None = op) -> Array:
            def loss(w: Any) -> Array:
                found = mnp.mean(mnp.tanh(x @ w) ** 2)
                return found if op is None else mesh.collectives.all_reduce(found, "dp", op)

            return mesh.collectives.all_reduce(mesh.grad(loss)(w), "dp", "mean")

        assert_close(mesh.shard_map(step, grid, (P(), P("dp")), P())(w, x), wanted)


# -- with other transforms --------------------------------------------------------------------------------

AROUND: dict[str, Any] = {
    "remat": mesh.remat,
    "a scan": lambda fn: lambda *args: mesh.scan(lambda c, _: (c, fn(*c)), args, None, length=1)[1],
    "a branch": lambda fn: lambda *args: mesh.cond(mnp.sum(args[0]) > 0, fn, lambda *a: [0 * y for y in fn(*a)], *args),
    "a batch": lambda fn: lambda *args: mesh.vmap(lambda *a: tuple(fn(*a)))(*[arg[None] for arg in args]),
    "a function": mesh.function,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ["mlp-loss", "scan", "several-results", "gathered-weights"])
def test_derivatives_through_what_stands_around_a_shard_map(name: str, around: str) -> None:
    case = CASES[name]
    fn, point, direction = case.mapped, case.point(), directions(case, 8)

    def total(made: Any) -> Array:
        return sum((mnp.sum(mnp.sin(each)) for each in mesh.tree.leaves(made)), start=mnp.zeros((), dtype="float64"))

    (wanted,) = along(lambda *args: [total(fn(*args))], point, direction)
    gradient = mesh.grad(lambda *args: total(AROUND[around](fn)(*args)), argnums=tuple(range(len(point))))
    assert_close(inner(numbers(gradient(*point)), direction), wanted, around, 10)


def test_a_rule_of_ones_own_within_the_ranks() -> None:
    grid, P = mesh.Grid(3, "dp"), mesh.PartitionSpec
    clipped = mesh.custom_vjp(lambda x: mesh.collectives.all_reduce(x, "dp"), lambda x: (x, ()), lambda _, g: (7 * g,))
    mapped = mesh.shard_map(lambda x: mesh.collectives.all_reduce(clipped(x), "dp"), grid, P("dp"), P())
    np.testing.assert_array_equal(np.asarray(mesh.grad(lambda x: mnp.sum(mapped(x)))(np.ones(3))), [7, 7, 7])


# -- what it costs, and what is missing -------------------------------------------------------------------


def collectives_in(graph: WireGraph) -> Counter[tuple[str, tuple[str, ...]]]:
    """How often each is computed."""
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for index, node in enumerate(graph.nodes):
        if node.op in COLLECTIVES:
            found[node.op, node.attrs["axes"]] += 1
        if index in graph.siblings or node.op not in MULTIPLE:
            for inside in inner_graphs(node.op, node.attrs):
                found += collectives_in(inside)
    return found


def test_a_tensor_parallel_layer_speaks_once_there_and_once_back() -> None:
    """Megatron-LM (Shoeybi et al., 2019): one reduction forward, and one of the input's gradient."""
    P = mesh.PartitionSpec
    case = CASES["mlp"]._replace(in_specs=(P(None, "tp"), P("tp"), P()), out_specs=P())
    point = case.point()
    ahead = simplify(mesh.trace(lambda *args: case.mapped(*args), *point))
    assert collectives_in(ahead) == {("all_reduce", ("tp",)): 1}
    for argnums, count in (((0, 1), 1), ((0, 1, 2), 2)):
        gradient = mesh.grad(lambda *args: mnp.sum(case.mapped(*args)[0] ** 2), argnums=argnums)
        graph = simplify(mesh.trace(lambda *args, gradient=gradient: gradient(*args), *point))
        assert collectives_in(graph) == {("all_reduce", ("tp",)): count}


def test_results_without_a_cotangent_cost_nothing() -> None:
    """Of an auxiliary result nothing is pulled back, though it has collectives of its own."""
    P = mesh.PartitionSpec

    def fn(x: Any, y: Any) -> Any:
        return mnp.sum(x * x), mesh.collectives.all_gather(mnp.exp(y * x), "dp"), mnp.sum(y)

    mapped = mesh.shard_map(fn, mesh.Grid(3, "dp"), P("dp"), (P(), P(), P()), check=False)
    graph = simplify(mesh.trace(lambda x, y: mesh.grad(lambda x: mapped(x, y)[0])(x), np.ones(6), np.ones(6)))
    assert collectives_in(graph) == {}
    _, pull = mesh.vjp(lambda x, y: mapped(x, y)[0], np.ones(6), np.ones(6))
    np.testing.assert_array_equal(np.asarray(pull(mnp.asarray(1.0, dtype="float64"))[1]), np.zeros(6))
    _, tangents = mesh.jvp(lambda x, y: mapped(x, y), (np.ones(6), np.ones(6)), (np.ones(6), np.zeros(6)))
    np.testing.assert_array_equal(np.asarray(tangents[2]), 0)


def test_gathered_weights_get_their_gradient_by_one_scattered_sum() -> None:
    rows = mesh.PartitionSpec("dp")
    case = CASES["gathered-weights"]._replace(in_specs=(rows, rows), out_specs=rows)
    gradient = mesh.grad(lambda *args: mnp.sum(case.mapped(*args)[0] ** 2))
    graph = simplify(mesh.trace(lambda *args: gradient(*args), *case.point()))
    assert collectives_in(graph) == {("all_gather", ("dp",)): 1, ("reduce_scatter", ("dp",)): 1}


USES = {
    "all_reduce": "all_reduce-sum",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter-sum",
    "all_to_all": "all_to_all",
    "permute": "shift",
    "broadcast_from": "broadcast-1",
    "spmd": "without-collectives",
}


@pytest.mark.parametrize("op", USES)
def test_a_missing_rule_is_an_error_and_never_a_zero(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[USES[op]]
    fn, point = case.mapped, case.point()
    for table in (VJPS, JVPS, VMAPS):
        monkeypatch.delitem(table, op)
    for name, call in (
        ("vjp", lambda: mesh.vjp(lambda *args: tuple(fn(*args)), *point)[1](tuple(fn(*point)))),
        ("jvp", lambda: mesh.jvp(lambda *args: tuple(fn(*args)), tuple(point), tuple(point))),
        ("vmap", lambda: mesh.vmap(lambda *args: tuple(fn(*args)))(*[array[None] for array in point])),
    ):
        with pytest.raises(UnknownOp, match=f"'{op}' has no {name} rule"):
            call()
