"""Products with matrices of few bits per weight, on every engine, against float64, and read as they are packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import as_gpu, needs_adapter
from support.kept_kernels import native_engine

import mesh
import mesh.numpy as mnp
from mesh import nn, trace
from mesh.errors import DTypeError, InputError, ShapeError
from wire.passes.simplify import simplify
from worker.cpu.engine import CpuEngine, evaluate
from worker.engine.protocol import Engine, explained
from worker.native.engine import NativeEngine

BITS = (8, 4)
SIZES = [(32, 7, 32), (96, 40, 32), (640, 129, 128), (1024, 272, 8), (16, 1, 16)]  # in, out, block
ROWS = (1, 3, 5, 70)
CASES = [  # the default run has two numbers of rows of each size, others for the other number of bits
    pytest.param(bits, *size, rows, marks=[] if (place + row + bits // 8) % 2 else pytest.mark.long)
    for bits in BITS
    for place, size in enumerate(SIZES)
    for row, rows in enumerate(ROWS)
]
ROUNDING = 32 * 2.0**-24  # of the sum of magnitudes: chains of 1,024 products err like a random walk


def wgsl(like_gpu: bool) -> Engine:
    from worker.wgsl.engine import WgslEngine

    return as_gpu(WgslEngine(0)) if like_gpu else WgslEngine(0)


ENGINES: dict[str, Callable[[], Engine]] = {
    "cpu": CpuEngine,
    "native": lambda: native_engine(threads=2),
    "wgsl": lambda: wgsl(like_gpu=False),
    "gpu": lambda: wgsl(like_gpu=True),
}
NAMES = [pytest.param(name, marks=needs_adapter) if name in ("wgsl", "gpu") else name for name in ENGINES]


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = ENGINES[request.param]()
    yield made
    made.close()


def weight_of(inputs: int, outputs: int) -> NDArray[Any]:
    """Blocks of very unlike sizes, one of them all zeros."""
    rng = np.random.default_rng([inputs, outputs])
    matrix = rng.standard_normal((inputs, outputs)) * 2.0 ** rng.integers(-12, 12, (1, outputs))
    matrix[:, outputs // 2] = 0
    return np.asarray(matrix, np.float32)


def unpacked(words: Any, scales: Any, bits: int) -> NDArray[np.float64]:
    """The matrix, by shifts."""
    words, scales = np.asarray(words), np.asarray(scales, np.float64)
    parts = [(words >> np.uint32(place)) & np.uint32((1 << bits) - 1) for place in range(0, 32, bits)]
    levels = np.stack(parts, 1).reshape(-1, words.shape[1]).astype(np.float64) - (1 << (bits - 1))
    return levels * np.repeat(scales, len(levels) // len(scales), axis=0)


@pytest.mark.parametrize(("bits", "inputs", "outputs", "block", "rows"), CASES)
def test_a_product_is_that_of_the_unpacked_matrix(
    engine: Engine, bits: int, inputs: int, outputs: int, block: int, rows: int
) -> None:
    words, scales = nn.quantise(weight_of(inputs, outputs), bits, block=block)
    x = np.random.default_rng(rows).standard_normal((rows, inputs)).astype(np.float32)
    bias = np.linspace(-1, 1, outputs, dtype=np.float32)

    def layer(x: Any, words: Any, scales: Any, bias: Any) -> Any:
        return nn.relu(nn.QuantisedLinear(words, scales, bias, bits)(x))

    given = [x, np.asarray(words), np.asarray(scales), bias]
    graph = simplify(trace(layer, *given), evaluate)
    executable = engine.compile(graph)
    (found,) = engine.run(executable, [engine.load(array) for array in given])
    matrix = unpacked(words, scales, bits)
    expected = np.maximum(x.astype(np.float64) @ matrix + bias, 0)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(matrix) + np.abs(bias)
    assert np.all(np.abs(found - expected) <= ROUNDING * magnitude)
    if inputs * outputs > 1000 and (not isinstance(engine, CpuEngine) or isinstance(engine, NativeEngine)):
        rows_of = explained(engine, executable).rows
        assert {row.name for row in rows_of} <= {"product", "row"}, (
            "one product, and the sum of its parts on some devices"
        )
        assert max(row.written_bytes for row in rows_of) < 4 * max(inputs * outputs, 4 * rows * outputs)


@pytest.mark.parametrize("bits", BITS)
def test_weights_are_rounded_to_the_nearest_step(bits: int) -> None:
    matrix = weight_of(256, 33)
    words, scales = nn.quantise(matrix, bits)
    step = np.repeat(np.abs(np.asarray(scales, np.float64)), 32, axis=0)
    levels = 2.0 ** (bits - 1) - 1  # above them there is one on one side only, with 4 bits
    wrong = np.abs(unpacked(words, scales, bits) - matrix)
    assert np.all(wrong <= step * np.where(np.abs(matrix) <= levels * step, 0.5001, 1.0001))
    np.testing.assert_array_equal(
        np.asarray(nn.dequantise(words, scales, bits)), unpacked(words, scales, bits).astype("f")
    )


@pytest.mark.parametrize("bits", BITS)
def test_steps_of_a_power_of_two_are_kept(bits: int) -> None:
    most = 1 << (bits - 1)
    levels = np.random.default_rng(1).integers(1 - most, most, (64, 5))
    levels[::32] = 127 if bits == 8 else -8
    matrix = (levels * 2.0**-20).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(nn.dequantise(*nn.quantise(matrix, bits), bits)), matrix)


def test_a_layer_takes_batches_and_half_precision_and_has_a_derivative() -> None:
    layer = nn.Linear.init(mesh.random.key(1), 64, 24)
    small = nn.QuantisedLinear.of(layer, 8)
    matrix = unpacked(small.words, small.scales, 8)
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(small(x)), x @ matrix, rtol=1e-4, atol=1e-5)
    half = np.asarray(small(x.astype(np.float16)))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, x.astype(np.float16).astype(np.float64) @ matrix, rtol=2e-3, atol=2e-3)
    slope = mesh.grad(lambda x: mnp.sum(small(x) ** 2))(x)
    np.testing.assert_allclose(np.asarray(slope), 2 * (x @ matrix) @ matrix.T, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    words, scales = nn.quantise(weight_of(64, 3), 4)
    with pytest.raises(InputError, match="8 or 4 bits, not 3"):
        nn.quantise(weight_of(64, 3), 3)
    with pytest.raises(InputError, match="blocks of 32 do not divide the 40 rows"):
        nn.quantise(weight_of(40, 3))
    with pytest.raises(InputError, match="blocks of 4 do not divide"):
        nn.quantise(weight_of(64, 3), 4, block=4)
    with pytest.raises(ShapeError, match=r"needs a weight \(in, out\)"):
        nn.quantise(np.ones(64))
    with pytest.raises(ShapeError, match=r"with rows, got \(0, 3\)"):
        nn.quantise(np.ones((0, 3)))
    for wrong in (np.ones((32, 1), complex), np.ones((32, 1), bool)):
        with pytest.raises(DTypeError, match="needs real weights"):
            nn.quantise(wrong)
    with pytest.raises(InputError, match="finite"):
        nn.quantise(np.full((32, 1), np.nan))
    with pytest.raises(InputError, match="float32 can hold"):
        nn.quantise(np.full((32, 1), 1e300), 4)
    with pytest.raises(DTypeError, match="uint32"):
        nn.dequantise(np.asarray(words).view(np.int32), scales, 4)
    with pytest.raises(ShapeError, match="dequantise needs"):
        nn.dequantise(words, np.ones((3, 3), np.float32), 4)
    with pytest.raises(ShapeError, match=r"needs x \(\.\.\., 64\)"):
        nn.QuantisedLinear(words, scales, bits=4)(np.ones((2, 63), np.float32))
