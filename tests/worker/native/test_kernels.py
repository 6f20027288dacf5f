"""What becomes a kernel, and what its vectors look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.cases.op_cases import cases
from support.kept_kernels import native_engine

import mesh.numpy as mnp
from mesh import grad, nn, trace
from mesh.functions.compiled import handle_of
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import LEAVES
from wire.passes.simplify import simplify
from worker.compiler.cut import Cut
from worker.compiler.fuse import Group, fuse
from worker.cpu.engine import evaluate
from worker.cpu.inplace_analysis import FUSED
from worker.native import outline
from worker.native.kernels.frame import Frame
from worker.native.kernels.join import lower_join
from worker.native.kernels.map import best_plane, gathers, turned_loads
from worker.native.kernels.product import lower_product
from worker.native.kernels.row import lower_row
from worker.native.outline import outlined
from worker.native.rewrite import OFTEN

X = np.random.default_rng(0).standard_normal((2, 3, 40, 70)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 1, 3, 3)).astype(np.float32)

MOVED: dict[str, Callable[[Any], Any]] = {
    "padded": lambda x: mnp.pad(x, ((0, 0), (0, 0), (1, 2), (3, 0))) * 2,
    "padded twice": lambda x: mnp.pad(mnp.pad(x, ((0, 0),) * 3 + ((1, 1),)) + 1, ((0, 0),) * 3 + ((2, 2),)),
    "largest of windows": lambda x: nn.max_pool(x, 3, stride=2, padding=1),
    "means of windows": lambda x: nn.avg_pool(x, 3, stride=2, padding=1),
    "every third": lambda x: x[..., 1::3] * 2,
    "turned round": lambda x: x[..., ::-1] * 2,
    "joined": lambda x: mnp.concat([x * 2, x[..., :5], x[..., ::2]], axis=3),
}


def parts_of(fn: Callable[..., Any], *args: Any) -> list[Cut]:
    return parts_of_graph(trace(fn, *args))


def parts_of_graph(graph: WireGraph) -> list[Cut]:
    return [node.attrs["cut"] for node in outlined(graph).nodes if node.op == FUSED]


@pytest.mark.parametrize("name", MOVED)
def test_padding_strides_and_joins_are_read_by_whole_vectors(name: str) -> None:
    fn = MOVED[name]
    for part in parts_of(fn, X):
        assert part.kind == "map"
        assert not gathers(best_plane(Frame.of(part, 32)), 8)
    engine, graph = native_engine(), trace(fn, X)
    (result,), (expected,) = engine.run(engine.compile(graph), [X]), evaluate(graph, {"x": X})
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    engine.close()


TURNED = {  # shapes, of which few are whole squares, and the order of their axes
    "squares": ((64, 32), (1, 0)),
    "edges": ((37, 101), (1, 0)),
    "a batch": ((3, 40, 48), (0, 2, 1)),
    "an odd batch": ((3, 40, 50), (0, 2, 1)),
    "channels last": ((2, 17, 4, 16), (0, 2, 3, 1)),
    "channels first": ((2, 4, 16, 17), (0, 3, 1, 2)),
    "backwards": ((33, 3, 20), (2, 1, 0)),
}


@pytest.mark.parametrize("name", ["squares", "edges", "a batch", "channels last"])
def test_transposes_are_read_by_whole_vectors(name: str) -> None:
    shape, perm = TURNED[name]
    (part,) = parts_of(lambda x: mnp.permute_dims(x, perm) + 1, np.ones(shape, np.float32))
    frame = Frame.of(part, 16)
    assert len(turned_loads(frame, best_plane(frame))) == 1


@pytest.mark.parametrize("vector_bytes", [16, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float16])
def test_transposes_are_those_of_numpy(dtype: Any, vector_bytes: int) -> None:
    engine, rng = native_engine(vector_bytes=vector_bytes, threads=2), np.random.default_rng(3)
    for shape, perm in TURNED.values():

        def chosen(x: Any, y: Any, perm: Sequence[int] = perm) -> Any:
            return mnp.where(mnp.permute_dims(x, perm) > y, mnp.permute_dims(x, perm), y)

        x, y = (rng.standard_normal(size).astype(np.float32) * 99 for size in (shape, [shape[axis] for axis in perm]))
        x, y = x.astype(dtype), y.astype(dtype)
        turned = x.transpose(perm)
        graph = trace(chosen, x, y)
        (result,) = engine.run(engine.compile(graph), [x, y])
        assert np.array_equal(result, np.where(turned > y, turned, y))
    engine.close()


def test_a_narrow_matrix_is_widened_in_its_product_and_stored_for_a_square() -> None:
    def both(half: Any, x: Any, w: Any) -> Any:
        square = mnp.astype(half, np.float32)
        return x @ mnp.astype(w, np.float32) + square @ square

    narrow, x = np.ones((48, 48), np.float16), np.ones((48, 48), np.float32)
    products = [part for part in parts_of(both, narrow, x, narrow) if part.kind == "matmul"]
    assert sorted("cast" in [node.op for node in part.nodes] for part in products) == [False, True]


def test_a_graph_is_grouped_no_more_often_than_its_products_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what a model's first call takes before its kernels are compiled is to find the groups."""
    passes = []

    def counted(*args: Any) -> list[Group]:
        passes.append(args)
        return fuse(*args)

    monkeypatch.setattr(outline, "fuse", counted)
    x = np.ones((64, 64), np.float32)

    def joined(x: Any) -> Any:
        heads = mnp.swapaxes(mnp.reshape(x, (64, 4, 16)), 0, 1) * 2
        return mnp.reshape(mnp.swapaxes(mnp.sin(heads), 0, 1), (64, 64)) @ x

    for fn, expected in ((lambda x: x @ x + 1, 1), (joined, 2)):
        passes.clear()
        parts_of(fn, x)
        assert len(passes) == expected


def test_a_depthwise_layer_is_one_kernel_with_its_padding() -> None:
    def layer(x: Any, w: Any, b: Any) -> Any:
        return nn.relu(nn.conv(x, w, padding=1, groups=3) * 2 + b)

    assert [part.kind for part in parts_of(layer, X, W, np.ones((3, 1, 1), np.float32))] == ["matmul"]


@pytest.mark.parametrize(("axes", "stride"), [((56, 56), 1), ((57, 31), 2), ((9000,), 1), ((6000, 4000), 1)])
def test_a_conv_is_one_kernel_that_makes_no_padded_image(axes: tuple[int, ...], stride: int) -> None:
    """A task's memory is what the second cache holds, however large the image is."""

    def layer(x: Any, w: Any, b: Any) -> Any:
        return nn.relu(nn.conv(x, w, padding=1, stride=stride) + b)

    flat = (1,) * len(axes)
    shapes = (2, 8, *axes), (10, 8, *(3 * size for size in flat)), (10, *flat)
    given = [np.broadcast_to(np.float32(1), shape) for shape in shapes]
    parts = parts_of(layer, *given)
    assert [part.kind for part in parts] == ["matmul"]
    assert lower_product(Frame.of(parts[0], 64)).scratch_bytes < 2**20


def test_a_large_product_is_cut_for_as_many_threads_as_there_are() -> None:
    """A task packs what it reads: one thread has few tasks."""
    square = np.broadcast_to(np.float32(1), (1024, 1024))
    (product,) = parts_of(lambda a, b: a @ b, square, square)
    tasks = [lower_product(Frame.of(product, 64, tasks_min=least)).tasks for least in (1, 8, 32)]
    assert tasks == [2, 8, 32]


def test_the_next_row_is_fetched_where_a_long_one_is_passed_over_twice() -> None:
    def fetched(fn: Callable[[Any], Any], columns: int) -> bool:
        (part,) = parts_of(fn, np.zeros((8, columns), np.float32))
        return "llvm.prefetch" in str(lower_row(Frame.of(part, 64)).described())

    def shares(x: Any) -> Any:
        return x / mnp.sum(x, axis=1, keepdims=True)

    assert fetched(shares, 1024) and not fetched(shares, 64)
    assert not fetched(lambda x: mnp.sum(x, axis=1), 1024), "the one pass waits for memory all the time"
    assert not fetched(lambda x: shares(x[mnp.asarray([3, 1, 2])[mnp.astype(x[:3, 0], mnp.int32)]]), 1024)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_conv_may_step_far_along_an_axis_with_one_place(dtype: str) -> None:
    """Steps that nobody makes need no memory."""
    case = next(case for case in cases("conv") if case.id == f"conv/{dtype}/huge-steps")
    engine = native_engine()
    (result,), (expected,) = engine.run(engine.compile(case.graph), case.arguments), evaluate(case.graph, case.inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-3)
    engine.close()


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("stride", [3, 4, 7, 2**40])
def test_a_conv_may_step_past_its_last_window(samples: int, stride: int) -> None:
    """Without the stride there were more windows than one."""
    builder = GraphBuilder()
    x, w = builder.input("x", (samples, 2, 4, 6), F32), builder.input("w", (3, 2, 2, 2), F32)
    once, none = (1, 1), (0, 0)
    graph = builder.build([
        builder.add(
            "conv", x, w, stride=(stride, stride), low=none, high=none, lhs_dilation=once, rhs_dilation=once, groups=1
        )
    ])  # fmt: skip
    rng = np.random.default_rng(stride)
    given = [rng.standard_normal(shape, dtype=np.float32) for shape in ((samples, 2, 4, 6), (3, 2, 2, 2))]
    engine = native_engine()
    (result,) = engine.run(engine.compile(graph), given)
    (expected,) = evaluate(graph, dict(zip("xw", given, strict=True)))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    engine.close()


def test_a_convs_derivative_by_its_weights_is_one_product_that_lies_as_it_is_wanted() -> None:
    x, w = (np.ones(shape, np.float32) for shape in ((1, 5, 20, 20), (6, 5, 3, 3)))
    parts = parts_of(grad(lambda w: mnp.sum(nn.conv(x, w, padding=1) * w[0, 0, 0, 0])), w)
    (product,) = (
        part for part in parts if any(node.op == "conv" and len(node.attrs["low"]) == 3 for node in part.nodes)
    )
    assert product.types[-1].shape == (6, 5, 3, 3)


def recurrent(steps: int) -> Callable[[Any, Any], Any]:
    def layer(h: Any, w: Any) -> Any:
        for _ in range(steps):
            h = mnp.tanh(h @ w.T)
        return h

    return layer


CONVS: dict[str, Callable[[int], tuple[Any, ...]]] = {  # what a conv reads, its weights, stride and groups, by a factor
    "1 x 1": lambda n: ((1, 8, 10 * n, 10 * n), (8, 8, 1, 1), 1, 1),
    "far apart": lambda n: ((1, 8, 30 * n, 30 * n), (8, 8, 1, 1), 3, 1),
    "by weights": lambda n: ((8, 2, 10 * n, 10 * n), (8, 2, 10 * n - 1, 10 * n - 1), 1, 1),
    "many channels": lambda n: ((1, 40 * n, 20, 20), (8, 40 * n, 3, 3), 1, 1),
    "a thousand taps": lambda n: ((1, 8, 10 * n, 9), (8, 8, 9 * n, 9), 1, 1),
    "depthwise": lambda n: ((1, 4 * n, 10 * n, 10 * n), (4 * n, 1, 3, 3), 1, 4 * n),
    "depthwise, far apart": lambda n: ((1, 4, 40 * n, 40 * n), (4, 1, 3, 3), 4 * n, 4),
}


@pytest.mark.parametrize("name", CONVS)
def test_a_convs_code_is_as_long_for_a_large_image(name: str) -> None:
    def code(times: int) -> str:
        *shapes, stride, groups = CONVS[name](times)
        given = [np.zeros(shape, np.float32) for shape in shapes]
        product = parts_of(lambda x, w: nn.conv(x, w, stride=stride, groups=groups), *given)[0]
        return str(lower_product(Frame.of(product, 32)).described())

    assert len(code(20)) < 1.05 * len(code(4))


@pytest.mark.parametrize(
    ("steps", "rows", "width", "once"),
    [
        (OFTEN, 8, 40, True), (OFTEN, 1, 40, True), (OFTEN - 1, 8, 40, False), (OFTEN, 9, 40, False),
        (OFTEN, 8, 1025, False),
    ],
    ids=["often", "one row", "seldom", "many rows", "a large matrix"],
)  # fmt: skip
def test_a_matrix_that_many_steps_take_transposed_is_transposed_once(
    steps: int, rows: int, width: int, once: bool
) -> None:
    given = [np.ones(shape, np.float32) for shape in ((rows, width), (width, width))]
    graph = outlined(simplify(trace(recurrent(steps), *given)))
    (matrix,) = (index for index in graph.inputs if graph.nodes[index].attrs["name"] == "w")
    readers = [node.attrs["cut"].kind for node in graph.nodes if node.op == FUSED and matrix in node.inputs]
    assert readers == (["map"] if once else ["matmul"] * steps)


@pytest.mark.parametrize(("rows", "reader"), [(8, "matmul"), (5, "matmul"), (4, "map")])
def test_a_param_that_steps_take_transposed_is_left_for_its_panels(rows: int, reader: str) -> None:
    """Where there are so few rows that none are made, it is transposed once."""
    weight = handle_of(np.ones((40, 40), np.float32), "w")
    graph = outlined(simplify(trace(recurrent(OFTEN), np.ones((rows, 40), np.float32), weight)))
    (matrix,) = graph.params
    readers = {node.attrs["cut"].kind for node in graph.nodes if node.op == FUSED and matrix in node.inputs}
    assert readers == {reader}


@pytest.mark.parametrize("dtype", [np.int32, np.complex64])
def test_a_matrix_of_products_that_numpy_computes_stays_as_it_lies(dtype: Any) -> None:
    def layer(h: Any, w: Any) -> Any:
        for _ in range(OFTEN):
            h = h @ w.T
        return h

    graph = outlined(simplify(trace(layer, np.ones((8, 40), dtype), np.ones((40, 40), dtype))))
    assert [node.op for node in graph.nodes if node.op != "input"] == ["dot"] * OFTEN


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_matrix_that_is_transposed_once_gives_the_bits_that_it_gave(dtype: Any) -> None:
    rng = np.random.default_rng(7)
    h, w = rng.standard_normal((3, 300)).astype(dtype), (rng.standard_normal((300, 300)) / 9).astype(dtype)
    engine = native_engine()
    (whole,) = engine.run(engine.compile(simplify(trace(recurrent(OFTEN), h, w))), [h, w])
    step = engine.compile(simplify(trace(recurrent(1), h, w)))
    for _ in range(OFTEN):
        (h,) = engine.run(step, [h, w])
    assert whole.tobytes() == h.tobytes()
    engine.close()


ROWS = np.zeros(40, np.int32)


def test_a_scatter_is_a_kernel_with_its_updates_unless_it_changes_little_of_its_data() -> None:
    def spread(x: Any, rows: Any) -> Any:
        return mnp.zeros((9, 150), np.float32).at[rows].add(x[rows] * 2)

    parts = parts_of(spread, np.ones((9, 150), np.float32), ROWS)
    assert [part.kind for part in parts] == ["scatter"]
    few = outlined(trace(lambda x, rows: x.at[rows].add(1), np.ones((9000, 150), np.float32), ROWS))
    assert "scatter" in [node.op for node in few.nodes]


JOINS: dict[str, tuple[Callable[..., Any], int]] = {  # and how many kernels there are
    "rows": (lambda x: mnp.concat([x[at : at + 1] for at in range(9)]), 10),
    "columns of one element": (lambda x: mnp.concat([x[:, at : at + 1] for at in range(10)], axis=1), 11),
    "other sizes": (lambda x: mnp.concat([x[:, : 3 * at + 1] for at in range(9)], axis=1), 10),
    "in other shapes": (lambda x: mnp.stack([x[:, at] for at in range(9)], axis=1), 10),
    "the same": (lambda x: mnp.concat([x] * 40, axis=1), 1),
    "of a join": (lambda x: mnp.concat([*[x] * 9, mnp.concat([x] * 10)]) * 2, 3),
}


@pytest.mark.parametrize("name", JOINS)
def test_many_parts_are_copied_as_they_lie(name: str) -> None:
    function, kernels = JOINS[name]
    numbers = np.arange(9 * 70).reshape(9, 70)
    engines = [native_engine(vector_bytes=width, threads=width // 16) for width in (16, 32)]
    for x in (numbers.astype(np.float32), numbers.astype(np.float16), numbers % 3 == 0):
        graph = trace(function, x)
        nodes = [node for node in outlined(graph).nodes if node.op not in LEAVES]
        assert {node.op for node in nodes} == {FUSED}, "numpy does none of it"
        assert len(nodes) == kernels and "join" in [node.attrs["cut"].kind for node in nodes]
        (expected,) = evaluate(graph, {"x": x})
        for engine in engines:
            (found,) = engine.run(engine.compile(graph), [x])
            assert found.dtype == expected.dtype and np.array_equal(found, expected)
    for engine in engines:
        engine.close()


def test_rows_of_a_long_join_are_shared_out() -> None:
    x = np.arange(3 << 18, dtype=np.float32).reshape(-1, 24)
    graph = trace(lambda x: mnp.concat([x[:, at : at + 2] * 2 for at in range(0, 24, 2)], axis=1), x)
    engine = native_engine(threads=3)
    (found,) = engine.run(engine.compile(graph), [x])
    assert np.array_equal(found, x * 2)
    (join,) = (part for part in parts_of_graph(graph) if part.kind == "join")
    assert lower_join(Frame.of(join, 32)).tasks == 13 * 12, "of at most 256 KiB, from 12 parts"
    engine.close()


def test_a_join_has_as_much_code_for_any_number_of_parts() -> None:
    def code(count: int) -> str:
        graph = trace(lambda x: mnp.concat([x] * count), X)
        return str(lower_join(Frame.of(parts_of_graph(graph)[0], 32)).module.get_global("kernel"))

    assert len(code(500)) < 1.01 * len(code(50))
