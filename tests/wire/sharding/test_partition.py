"""Partition of a program about whole tensors into that of a rank: which collectives come in, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.layouts import FOUR, PAIR, SQUARE, THREE, layouts
from support.layout_costs import gather_all_bytes

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array, apply
from wire.errors import AttrError, GraphError, InputError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.grids import spec_text
from wire.sharding.assignment import sound
from wire.sharding.cost import Cost, cost_of
from wire.sharding.factors import rule_of
from wire.sharding.layout import Axes, Dims, Layout
from wire.sharding.partition import partition
from worker.cpu import evaluate

RNG = np.random.default_rng(5)
Specs = Mapping[str, Dims]


def floats(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def lies(x: Array, axes: Axes, *split: str) -> Array:
    """x with a constraint: the axes of each dimension, "" for none, joined by +."""
    dims = tuple([tuple(dim.split("+")) if dim else () for dim in split])
    return apply("constraint", x, axes=axes.names, sizes=axes.sizes, spec=spec_text(dims))


def sharded(fn: Callable[..., Any], *args: Any, axes: Axes | None = None, specs: Specs | None = None) -> WireGraph:
    """`fn` partitioned, after a check that it gives what it gives on one device."""
    graph = mesh.trace(fn, *args)
    program = partition(graph, axes, specs)
    inputs = dict(zip(graph.input_types, args, strict=True))
    for one, other in zip(evaluate(program, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return program


def cost(fn: Callable[..., Any], *args: Any, axes: Axes | None = None, specs: Specs | None = None) -> Cost:
    return cost_of(sharded(fn, *args, axes=axes, specs=specs))


def body_of(graph: WireGraph) -> WireGraph:
    body: WireGraph = next(node.attrs["body"] for node in graph.nodes if node.op == "spmd")
    return body


X, W, V, B = floats(8, 16), floats(16, 32), floats(32, 16), floats(16)


# -- matrices ---------------------------------------------------------------------------------------------


def test_columns_then_rows_is_one_reduction() -> None:
    def mlp(x: Array, w: Array, v: Array, b: Array) -> Array:
        hidden = mesh.nn.relu(x @ lies(w, FOUR, "", "tp"))
        return hidden @ lies(v, FOUR, "tp", "") + b

    costs = cost(mlp, X, W, V, B)
    assert costs.collectives == {"all_reduce": 1}
    assert costs.sent_bytes == 2 * 3 * X.nbytes // 4


def test_rows_then_relu_is_one_reduction_before_it() -> None:
    body = body_of(sharded(lambda x, w: mesh.nn.relu(x @ lies(w, PAIR, "tp", "")), X, W))
    ops = [node.op for node in body.nodes]
    assert ops.count("all_reduce") == 1
    assert ops.index("dot") < ops.index("all_reduce") < ops.index("select")


def test_two_sums_are_added_before_one_reduction() -> None:
    def both(x: Array, w: Array, v: Array) -> Array:
        return mesh.nn.relu(x @ lies(w, PAIR, "tp", "") + (-x * 2) @ lies(v, PAIR, "tp", ""))

    assert cost(both, X, W, floats(16, 32)).collectives == {"all_reduce": 1}


def test_a_sum_that_somebody_needs_is_made_once() -> None:
    def used(x: Array, w: Array) -> Any:
        made = x @ lies(w, PAIR, "tp", "")
        return mesh.nn.relu(made), made * 2, made

    assert cost(used, X, W).collectives == {"all_reduce": 1}


def test_a_sum_that_is_split_scatters() -> None:
    def scattered(x: Array, w: Array) -> Array:
        return lies(mesh.nn.relu(x @ w), FOUR, "tp", "")

    x, w = floats(4, 64), floats(64, 32)
    specs: Specs = {"x": ((), ("tp",)), "w": (("tp",), ())}
    assert cost(scattered, x, w, specs=specs).collectives == {"reduce_scatter": 1}


def test_scalars_and_views_leave_a_sum_waiting() -> None:
    def later(x: Array, w: Array) -> Array:
        made = mnp.reshape((x @ lies(w, PAIR, "tp", "")).T * 3, (4, 8, 8))
        return mnp.exp(mnp.sum(-made[:, :, :2], axis=1))

    costs = cost(later, X, W)
    assert costs.collectives == {"all_reduce": 1}
    assert costs.sent_bytes == 4 * 2 * 4  # of what is left in the end


def test_rows_of_a_batch_need_nobody() -> None:
    def model(x: Array, w: Array, v: Array) -> Array:
        return mesh.nn.softmax(mesh.nn.layer_norm(mesh.nn.gelu(x @ w) @ v, B, B), -1)

    assert cost(model, X, W, V, axes=SQUARE, specs={"x": (("dp", "tp"), ())}).collectives == {}


def test_gradients_of_a_batch_are_one_sum_each() -> None:
    def step(w: Array, x: Array, y: Array) -> Any:
        return mesh.value_and_grad(lambda w: mnp.mean((mesh.nn.relu(x @ w) - y) ** 2))(w)

    specs: Specs = {"x": (("dp",), ()), "w": ((), ())}
    costs = cost(step, W, X, floats(8, 32), axes=Axes(("dp",), (4,)), specs=specs)
    assert costs.collectives == {"all_reduce": 2}  # the loss, and the weights' gradient
    assert costs.sent_bytes == 2 * 3 * (W.nbytes + 4) // 4


def test_weights_that_are_split_are_gathered_and_their_gradients_scattered() -> None:
    def step(w: Array, x: Array) -> Any:
        gradient = mesh.grad(lambda w: mnp.sum(mesh.nn.relu(x @ w) ** 2))(w)
        return w - 0.1 * gradient

    x = floats(512, 16)
    specs: Specs = {"x": (("dp",), ()), "w": (("dp",), ()), "output": (("dp",), ())}
    costs = cost(step, W / 99, x, axes=Axes(("dp",), (4,)), specs=specs)
    assert costs.collectives == {"all_gather": 1, "reduce_scatter": 1}
    assert costs.sent_bytes == 2 * 3 * W.nbytes // 4
    assert costs.held_bytes == (W.nbytes + x.nbytes) // 4


# -- composites -------------------------------------------------------------------------------------------


def test_a_composite_stays_one_where_its_axis_is_whole() -> None:
    rows = body_of(sharded(lambda x: mesh.nn.softmax(x, -1), X, axes=PAIR, specs={"x": (("tp",), ())}))
    (composite,) = (index for index, node in enumerate(rows.nodes) if node.op == "composite")
    assert rows.types[composite].shape == (4, 16)


def test_a_softmax_over_a_split_axis_exchanges_its_maximum_and_sum() -> None:
    costs = cost(lambda x: mesh.nn.softmax(x, -1), X, axes=FOUR, specs={"x": ((), ("tp",))})
    assert costs.collectives == {"all_reduce": 2}
    assert costs.sent_bytes == 2 * (2 * 3 * 8 * 4 // 4)


def test_heads_of_attention_need_nobody() -> None:
    def attend(q: Array, k: Array, v: Array) -> Array:
        return mesh.nn.scaled_dot_product_attention(q, k, v)

    heads = floats(2, 4, 6, 8)
    specs: Specs = {"q": (("dp",), ("tp",), (), ())}
    assert cost(attend, heads, heads, heads, axes=SQUARE, specs=specs).collectives == {}


# -- rules ------------------------------------------------------------------------------------------------


def _axes_of_factor(rule: Any, factor: int) -> list[Dims]:
    return [tuple([("tp",) if made and made[0] == factor else () for made in dims]) for dims in rule.operands]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x + y,
        lambda x, y: mnp.where(x > 0, y, x),
        lambda x, y: x @ mnp.swapaxes(y, -1, -2),
        lambda x, y: mnp.concat([x, y], 0),
        lambda x, y: mnp.sum(x, 1),
        lambda x, y: mnp.max(x, (0, 2)),
        lambda x, y: mnp.reshape(x, (4, 24, 2)),
        lambda x, y: mnp.flip(x, 1),
        lambda x, y: mnp.cumulative_sum(x, axis=2),
        lambda x, y: mnp.argsort(x, axis=1),
        lambda x, y: mnp.broadcast_to(x, (3, 4, 6, 8)),
    ],
    ids=["add", "where", "matmul", "concat", "sum", "max", "reshape", "flip", "cumsum", "argsort", "broadcast"],
)
def test_what_a_rule_says_is_free_costs_nothing_and_what_is_reduced_one_reduction(fn: Callable[..., Any]) -> None:
    x, y = floats(4, 6, 8), floats(4, 6, 8)
    graph = mesh.trace(fn, x, y)
    (last,) = graph.outputs
    node = graph.nodes[last]
    rule = rule_of(node.op, node.attrs, [graph.types[source] for source in node.inputs])
    assert rule is not None
    for factor in range(len(rule.sizes)):
        if not rule.may_split(factor, 2) or not sound(rule, {factor: ("tp",)}, PAIR):
            continue
        specs = {
            graph.nodes[source].attrs["name"]: dims
            for source, dims in zip(node.inputs, _axes_of_factor(rule, factor), strict=True)
            if graph.nodes[source].op == "input"
        }
        costs = cost(fn, x, y, axes=PAIR, specs=specs)
        assert costs.collectives == ({"all_reduce": 1} if factor in rule.reduced else {}), (node.op, factor)


# -- layouts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (5, 4), (3, 2)], ids=str)
def test_every_layout_becomes_every_other(shape: tuple[int, ...]) -> None:
    builder = GraphBuilder()
    x = builder.input("x", shape, F32)
    attrs: dict[str, Any] = {"axes": SQUARE.names, "sizes": SQUARE.sizes}
    every = layouts(2, SQUARE)
    value = floats(*shape)
    for source in every:
        here = builder.add("constraint", x, **attrs, spec=spec_text(source))
        targets = [builder.add("constraint", here, **attrs, spec=spec_text(target)) for target in every]
        graph = builder.build(targets)
        for result in evaluate(partition(graph), {"x": value}):
            np.testing.assert_array_equal(result, value)
        most = gather_all_bytes(shape, 4, SQUARE, Layout(source))
        for target in targets:
            assert cost_of(partition(builder.build([target]))).sent_bytes <= most


@pytest.mark.parametrize("rows", [5, 2, 1, 0])
def test_rows_that_do_not_divide_and_shards_that_are_empty(rows: int) -> None:
    def statistics(x: Array) -> Any:
        x = lies(x, FOUR, "tp", "")
        always = mnp.sum(x, 0), mnp.prod(x, 0), mnp.sort(x, axis=0), x.T @ x, mnp.cumulative_sum(x, axis=0)
        extremes = (mnp.max(x, 0), mnp.min(x), mnp.argmax(x, 0), mnp.argmin(x)) if rows else ()
        return *always, *extremes, *((mnp.mean(x), mesh.nn.softmax(x, 0)) if rows else ())

    value = floats(rows, 3) - 7  # where a padding of zeros would be the maximum
    program = sharded(statistics, value)
    assert body_of(program).input_types["0"].shape == (-(-rows // 4), 3)


def test_nan_and_infinity_stay_where_they_are() -> None:
    value = np.array([1, np.nan, np.inf, -np.inf, 3], np.float32)

    def looked_at(x: Array) -> Any:
        x = lies(x, THREE, "tp")
        return mnp.max(x), mnp.isnan(x), mnp.sum(x[3:]), mnp.max(x[3:]), mnp.argmax(x)

    sharded(looked_at, value)


def test_words_and_positions_are_those_of_the_whole() -> None:
    def made(key: Array, x: Array) -> Any:
        words = apply("random_bits", key, shape=(5, 3))
        return lies(words, FOUR, "tp", ""), lies(x * mnp.arange(5, dtype="float32"), FOUR, "tp")

    costs = cost(made, np.array([7, 8], np.uint32), floats(5))
    assert costs.collectives == {}


def test_rows_of_a_split_table_are_one_sum_and_updates_go_where_they_belong() -> None:
    def looked_up(table: Array, index: Array) -> Any:
        rows = mesh.nn.embedding(index, table)
        return rows, mesh.grad(lambda table: mnp.sum(mesh.nn.embedding(index, table) ** 2))(table)

    table, index = floats(10, 4), np.array([0, 9, 3, 3, 7], np.int32)
    costs = cost(looked_up, table, index, axes=FOUR, specs={"table": (("tp",), ())})
    assert costs.collectives == {"all_reduce": 1}


# -- leaves and outputs -----------------------------------------------------------------------------------


def test_params_and_large_constants_come_in_as_shards() -> None:
    large = floats(200, 100)
    builder = GraphBuilder()
    x, w = builder.input("x", (4, 200), F32), builder.param("w", (200, 100), F32)
    product = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
    both = builder.add(
        "add", builder.add("dot", x, w, **product), builder.add("dot", x, builder.const(large), **product)
    )
    graph = builder.build([both])
    program = partition(graph, FOUR, {"w": ((), ("tp",))})
    assert program.param_types == graph.param_types
    assert [body_of(program).input_types[name].shape for name in ("1", "2")] == [(200, 25), (200, 25)]
    inputs, params = {"x": floats(4, 200)}, {"w": floats(200, 100)}
    for one, other in zip(evaluate(program, inputs, params), evaluate(graph, inputs, params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_what_is_not_used_stays_in_the_signature_and_out_of_the_ranks() -> None:
    graph = mesh.trace(lambda x, unused: (x * 2, x), X, W)
    program = partition(graph, PAIR, {"x": (("tp",), ())})
    assert program.input_types == graph.input_types
    assert len(body_of(program).inputs) == 1 and len(body_of(program).outputs) == 1


def test_a_program_that_asks_for_nothing_is_left_alone() -> None:
    graph = mesh.trace(lambda x: x * 2, X)
    assert partition(graph) is graph


def test_a_part_that_is_written_for_ranks_stays_as_it_is_written() -> None:
    inner = GraphBuilder()
    x = inner.input("x", (2, 16), F32)
    body = inner.build([inner.add("all_reduce", x, axes=("dp",), sizes=(2,), reduction="sum")])
    attrs: dict[str, Any] = {"body": body, "axes": SQUARE.names, "sizes": SQUARE.sizes}

    def program(x: Array) -> Array:
        summed = apply(
            "spmd", lies(x * 2, SQUARE, "tp", ""), **attrs, in_specs=("dp+tp -",), out_specs=("tp -",), output=0
        )
        return lies(mnp.exp(summed / 99), SQUARE, "", "dp")

    sharded_program = sharded(program, X)
    assert sum(node.op == "spmd" for node in sharded_program.nodes) == 1
    assert [node.op for node in body_of(sharded_program).nodes].count("all_reduce") == 1


def test_one_grid_and_specs_that_fit() -> None:
    with pytest.raises(InputError, match=r"split over one grid, got 2 \(tp\) and 2x2 \(dp, tp\)"):
        partition(mesh.trace(lambda x: lies(x, SQUARE, "dp", "") + lies(x, PAIR, "tp", ""), X))
    graph = mesh.trace(lambda x: x * 2, X)
    with pytest.raises(InputError, match="no input, param or output 'y'"):
        partition(graph, PAIR, {"y": ((), ())})
    for dims in ((("tp",),), (("pp",), ()), (("tp",), ("tp",))):
        with pytest.raises(AttrError):
            partition(graph, PAIR, {"x": dims})


def test_collectives_belong_into_programs_of_ranks() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4,), F32)
    graph = builder.build([builder.add("all_reduce", x, axes=("tp",), sizes=(2,), reduction="sum")])
    with pytest.raises(GraphError, match="all_reduce stands in a graph over whole tensors"):
        partition(graph, PAIR, {"x": (("tp",),)})
