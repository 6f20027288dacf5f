"""The native engine gives the same bits for vectors of any width, any number of threads, and any cut of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.cuts import cut_in_two, same_bits
from support.cases.random_graphs import random_graph
from support.kept_kernels import native_engine
from support.node_by_node import judge

import mesh.numpy as mnp
from mesh import grad, nn, trace, value_and_grad
from wire.ir.graph import WireGraph
from worker.cpu.engine import ordered
from worker.native.engine import NativeEngine
from worker.native.llvm import this_processor

Tensors = Mapping[str, NDArray[Any]]
WIDTHS = [width for width in (16, 32, 64) if width <= this_processor().vector_bytes]


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, NativeEngine]]:
    made = {f"{width} bytes": native_engine(vector_bytes=width) for width in WIDTHS}
    made.update({f"{threads} threads": native_engine(threads=threads) for threads in (2, 3, 4)})
    yield made
    for engine in made.values():
        engine.close()


def evaluated(engine: NativeEngine, graph: WireGraph, given: Tensors) -> list[NDArray[Any]]:
    return engine.run(engine.compile(graph), ordered(graph, given))


def check_everywhere(engines: Mapping[str, NativeEngine], graph: WireGraph, given: Tensors) -> list[NDArray[Any]]:
    """AssertionError unless all engines give the same bits; they."""
    results = {name: evaluated(engine, graph, given) for name, engine in engines.items()}
    first, *others = results
    for name in others:
        assert same_bits(results[name], results[first]), f"{name} and {first} differ:\n{graph}"
    return results[first]


@pytest.mark.parametrize(
    "seed", [2, 3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 1, *range(4, 40)))]
)
def test_a_random_graph(engines: Mapping[str, NativeEngine], seed: int) -> None:
    random = random_graph(seed)
    given = {**random.inputs, **random.params}
    whole = check_everywhere(engines, random.graph, given)
    engine = next(iter(engines.values()))
    for position in range(1, len(random.graph.nodes), 11):
        parts = cut_in_two(random.graph, position, given, lambda graph, inputs: evaluated(engine, graph, inputs))
        assert same_bits(parts, whole), f"cut before node {position}:\n{random.graph}"
    judge(engine, random.graph, given)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 400, 20))
def test_many_random_graphs(engines: Mapping[str, NativeEngine], first: int) -> None:
    for seed in range(first, first + 20):
        test_a_random_graph(engines, seed)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = mnp.einsum("nqd,nkd->nqk", q, k) / np.float32(np.sqrt(q.shape[-1]))
    causal = mnp.tril(mnp.ones((q.shape[1], k.shape[1]), bool))
    return mnp.einsum("nqk,nkd->nqd", nn.softmax(mnp.where(causal, scores, -mnp.inf)), v)


def layers(w1: Any, b1: Any, w2: Any, x: Any) -> Any:
    hidden = nn.gelu(x @ w1 + b1)
    out = hidden @ w2
    centred = out - mnp.mean(out, axis=-1, keepdims=True)
    return mnp.sum((centred / mnp.sqrt(mnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)) ** 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, pytest.param(np.float64, marks=pytest.mark.long)])
def test_derivatives_of_layers(engines: Mapping[str, NativeEngine], dtype: Any) -> None:
    """Sums over 700 rows and 300 columns pass the runs and the lanes of the definition."""
    random = np.random.default_rng(3)
    shapes = {"w1": (70, 300), "b1": (300,), "w2": (300, 37), "x": (700, 70)}
    given = {name: (random.standard_normal(shape) / 5).astype(dtype) for name, shape in shapes.items()}
    graph = trace(lambda *args: value_and_grad(layers, argnums=(0, 1, 2, 3))(*args), *given.values())
    names = [graph.nodes[index].attrs["name"] for index in (*graph.inputs, *graph.params)]
    check_everywhere(engines, graph, dict(zip(names, given.values(), strict=True)))


def test_rows_of_a_batch_have_the_bits_that_they_have_alone(engines: Mapping[str, NativeEngine]) -> None:
    """What `auto` may split, and what a server puts together."""
    random = np.random.default_rng(4)
    w1, b1, w2 = (random.standard_normal(shape).astype(np.float32) for shape in ((96, 200), (200,), (200, 31)))

    def rows(x: Any) -> Any:
        return nn.softmax(nn.gelu(x @ w1 + b1) @ w2)

    x = random.standard_normal((61, 96)).astype(np.float32)
    (whole,) = evaluated_of(engines["2 threads"], rows, x)
    for size in (1, 2, 3, 7, 16, 40):
        for start in range(0, 61 - size, 13):
            (part,) = evaluated_of(engines["2 threads"], rows, x[start : start + size])
            assert part.tobytes() == whole[start : start + size].tobytes(), f"rows {start} to {start + size}"


def test_a_row_alone_has_the_bits_that_it_has_in_a_large_product(engines: Mapping[str, NativeEngine]) -> None:
    """What a decoder multiplies token by token, by matrices that lie either way."""
    random = np.random.default_rng(6)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 700), (700, 129)))
    turned = np.ascontiguousarray(w.T)
    for product, matrix in (
        (lambda x, w: x @ w, w), (lambda x, w: x @ w.T, turned), (lambda x, w: w.T @ x.T, w),
        (lambda x, w: w @ x.T, turned),
    ):  # fmt: skip
        (whole,) = evaluated_of(engines["2 threads"], product, x, matrix)
        rows = whole if whole.shape[0] == 40 else whole.T
        for count in (1, 2, 3, 4, 6, 8, 9):
            (part,) = evaluated_of(engines["2 threads"], product, x[5 : 5 + count], matrix)
            part = part if part.shape[0] == count else part.T
            assert part.tobytes() == rows[5 : 5 + count].tobytes(), count


def widened(half: Any) -> Any:
    return mnp.astype(half, np.float32)


PACKED: dict[str, tuple[Any, Any]] = {  # how a matrix is packed, to one or two arrays, and unpacked
    "8 bits": (lambda w: nn.quantise(w, 8), lambda words, scales: nn.dequantise(words, scales, 8)),
    "4 bits": (lambda w: nn.quantise(w, 4), lambda words, scales: nn.dequantise(words, scales, 4)),
    "f16": (lambda w: [w.astype(np.float16)], widened),
    "f16, turned": (lambda w: [np.ascontiguousarray(w.T.astype(np.float16))], lambda half: widened(half).T),
}


@pytest.mark.parametrize("packed", PACKED)
def test_a_matrix_that_is_unpacked_in_its_product_gives_the_bits_of_one_that_is_not(
    engines: Mapping[str, NativeEngine], packed: str
) -> None:
    """Over several runs of the length, the last of them short, and columns past the last vector."""
    random = np.random.default_rng(8)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 672), (672, 141)))
    pack, unpack = PACKED[packed]
    matrices = [np.asarray(array) for array in pack(w)]
    (matrix,) = evaluated_of(engines["2 threads"], unpack, *matrices)
    for count in (1, 2, 3, 4, 5, 40):
        (expected,) = evaluated_of(engines["2 threads"], lambda x, w: x @ w, x[:count], matrix)
        for name, engine in engines.items():
            (found,) = evaluated_of(engine, lambda x, *matrices: x @ unpack(*matrices), x[:count], *matrices)
            assert found.tobytes() == expected.tobytes(), f"{count} rows, {name}"


def test_heads_of_attention_have_the_bits_that_they_have_alone(engines: Mapping[str, NativeEngine]) -> None:
    random = np.random.default_rng(5)
    q, k, v = (random.standard_normal((6, 50, 24)).astype(np.float32) for _ in range(3))
    (whole,) = evaluated_of(engines["2 threads"], attention, q, k, v)
    for head in range(6):
        alone = [operand[head : head + 1] for operand in (q, k, v)]
        assert evaluated_of(engines["2 threads"], attention, *alone)[0].tobytes() == whole[head : head + 1].tobytes()


def evaluated_of(engine: NativeEngine, fn: Any, *args: NDArray[Any]) -> list[NDArray[Any]]:
    graph = trace(fn, *args)
    return engine.run(engine.compile(graph), list(args))


# Channels of x and of the result, groups, axes, kernel, stride, padding, dilation, and the dtype.
CONVS = [
    (5, 5, 5, (20, 33), (3, 3), 1, 1, 1, "f4"),
    (40, 40, 40, (7, 7), (5, 5), 1, 2, 1, "f4"),  # rows narrower than a vector
    (3, 6, 3, (57, 60), (3, 3), 2, 1, 1, "f8"),
    (4, 4, 4, (31, 29), (5, 3), 3, 2, 2, "f4"),
    (2, 2, 2, (150, 130), (3, 7), 1, 3, 1, "f4"),  # several tasks for a channel
    (6, 18, 6, (90,), (9,), 2, 4, 1, "f8"),
    (60, 20, 1, (24, 23), (1, 5), 1, 2, 1, "f8"),  # two runs, and tasks that end within a vector
    (35, 17, 1, (9, 30), (3, 3), 1, 1, 1, "f4"),
    (8, 10, 2, (40, 31), (3, 5), 2, 3, 2, "f4"),
    (3, 16, 1, (45, 50), (7, 7), 3, 3, 1, "f4"),
    (2, 9, 1, (3, 1200), (3, 3), 1, 2, 1, "f4"),  # rows in parts
    (2, 40, 1, (1500,), (5,), 1, 3, 1, "f4"),
    (12, 9, 1, (5, 3), (2, 2), 1, 0, 1, "f4"),  # rows narrower than any vector
    (12, 9, 1, (4, 301), (3, 3), 1, 1, 1, "f4"),  # more vectors in a row than are copied without a loop
    (6, 9, 1, (2,), (7,), 1, 6, 1, "f4"),  # taps that find nothing
    (1, 8, 1, (40, 19), (19, 1), 1, 0, 2, "f4"),  # more taps than a run
]


@pytest.mark.parametrize(
    ("channels", "out", "groups", "axes", "kernel", "stride", "padding", "dilation", "dtype"), CONVS
)
def test_a_conv_has_the_bits_of_a_product(
    engines: Mapping[str, NativeEngine], channels: int, out: int, groups: int, axes: tuple[int, ...],
    kernel: tuple[int, ...], stride: int, padding: int, dilation: int, dtype: str,
) -> None:  # fmt: skip
    """The order of sums is one definition, whichever kernel computes them."""
    random = np.random.default_rng(6)
    x = random.standard_normal((2, channels, *axes)).astype(dtype)
    w = random.standard_normal((out, channels // groups, *kernel)).astype(dtype)

    def conv(x: Any, w: Any) -> Any:
        return nn.conv(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups) * 3

    padded = np.pad(x, ((0, 0), (0, 0), *[(padding, padding)] * len(axes)))
    reach = [dilation * (size - 1) for size in kernel]
    places = [range(0, axis + 2 * padding - far, stride) for axis, far in zip(axes, reach, strict=True)]
    taps = []
    for tap in np.ndindex(*kernel):
        cut = tuple(slice(k * dilation, k * dilation + p[-1] + 1, stride) for k, p in zip(tap, places, strict=True))
        taps.append(padded[(slice(None), slice(None), *cut)].reshape(2, groups, channels // groups, -1))
    windows = np.stack(taps, axis=3).reshape(2, groups, -1, taps[0].shape[-1])

    def product(windows: Any, w: Any) -> Any:
        return mnp.einsum("ngkp,gok->ngop", windows, w.reshape(groups, out // groups, -1)) * 3

    (whole,) = check_everywhere(engines, trace(conv, x, w), {"x": x, "w": w})
    engine = engines["2 threads"]
    assert evaluated_of(engine, product, windows, w)[0].tobytes() == whole.tobytes()
    assert evaluated_of(engine, conv, x[1:], w)[0].tobytes() == whole[1:].tobytes()


def test_a_conv_over_a_view_whose_rows_are_not_those_of_memory_has_the_bits_of_one_over_a_tensor(
    engines: Mapping[str, NativeEngine],
) -> None:
    random = np.random.default_rng(9)
    flat, w = random.standard_normal((2, 12 * 9 * 50)).astype("f4"), random.standard_normal((7, 12, 3, 3)).astype("f4")

    def conv(flat: Any, w: Any) -> Any:
        return nn.conv(flat[:, 5 : 5 + 12 * 9 * 47].reshape(2, 12, 9, 47), w, padding=1)

    (whole,) = check_everywhere(engines, trace(conv, flat, w), {"flat": flat, "w": w})
    x = flat[:, 5 : 5 + 12 * 9 * 47].reshape(2, 12, 9, 47).copy()
    (plain,) = evaluated_of(engines["2 threads"], lambda x, w: nn.conv(x, w, padding=1), x, w)
    assert plain.tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_convs_derivative_by_its_weights_has_the_bits_of_a_product(
    engines: Mapping[str, NativeEngine], dtype: Any
) -> None:
    """Its windows are few and as large as the image; those of all channels are columns of one product."""
    random = np.random.default_rng(7)
    x, g = (random.standard_normal((2, channels, 21, 19)).astype(dtype) for channels in (5, 6))

    def derivative(x: Any, g: Any) -> Any:
        w = mnp.zeros((6, 5, 3, 3), dtype=x.dtype)
        return grad(lambda w: mnp.sum(nn.conv(x, w, padding=1) * g))(w)

    def product(x: Any, g: Any) -> Any:
        padded = mnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        cuts = [padded[:, :, k : k + 21, j : j + 19] for k in range(3) for j in range(3)]
        windows = mnp.transpose(mnp.stack(cuts, axis=-1), (1, 4, 0, 2, 3)).reshape(45, -1)
        return (mnp.transpose(g, (1, 0, 2, 3)).reshape(6, -1) @ windows.T).reshape(6, 5, 3, 3)

    (whole,) = check_everywhere(engines, trace(derivative, x, g), {"x": x, "g": g})
    assert evaluated_of(engines["2 threads"], product, x, g)[0].tobytes() == whole.tobytes()


@pytest.mark.parametrize("mode", ["set", "add", "max", "min"])
def test_updates_of_a_row_are_put_in_in_order(engines: Mapping[str, NativeEngine], mode: str) -> None:
    random = np.random.default_rng(8)
    x, updates = (random.standard_normal(shape).astype(np.float32) for shape in ((9, 150), (40, 150)))
    index = random.integers(-9, 9, 40)
    expected = x.copy()
    for at, update in zip(index, updates * 3, strict=True):
        expected[at] = {"set": lambda a, b: b, "add": np.add, "max": np.maximum, "min": np.minimum}[mode](
            expected[at], update
        )

    def rows(x: Any, index: Any, updates: Any) -> Any:
        return getattr(x.at[index], mode)(updates * 3)

    graph = trace(rows, x, index, updates)
    (result,) = check_everywhere(engines, graph, {"x": x, "index": index, "updates": updates})
    assert result.tobytes() == expected.tobytes()
