"""What the cpu engine takes on the way to a result: no more than it says, and the same bits in parts as at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.values import ordinary
from support.compare import same_bits
from support.traced_memory import peak_bytes_of

from wire.ir.dtypes import BF16, C64, F16, F32, F64, I8, I32, I64, DType
from wire.ir.graph import GraphBuilder
from wire.ir.types import TensorType
from worker.cpu.engine import compile_graph, evaluate, run

SIDE = 1024
SMALL_BYTES = 3 << 20  # of blocks, and of objects that are no arrays
Case = tuple[str, list[tuple[tuple[int, ...], DType]], dict[str, Any]]

WHOLE, ROW = (SIDE, SIDE), (SIDE,)
BATCH = (160, 48, 48)
CASES: dict[str, Case] = {
    "f32 to i64": ("cast", [(WHOLE, F32)], {"dtype": "i64"}),
    "f16 to i32": ("cast", [(WHOLE, F16)], {"dtype": "i32"}),
    "f64 to bf16": ("cast", [(WHOLE, F64)], {"dtype": "bf16"}),
    "i32 to bf16": ("cast", [(WHOLE, I32)], {"dtype": "bf16"}),
    "a function of f16": ("exp", [(WHOLE, F16)], {}),
    "the error function of bf16": ("erf", [(WHOLE, BF16)], {}),
    "a sum of bf16": ("add", [(WHOLE, BF16), (WHOLE, BF16)], {}),
    "a bias in f16": ("add", [(WHOLE, F16), (ROW, F16)], {}),
    "a number for all of f16": ("pow", [(WHOLE, F16), ((), F16)], {}),
    "powers of i8": ("pow", [(WHOLE, I8), (WHOLE, I8)], {}),
    "the largest of columns": ("argmax", [(WHOLE, F32)], {"axis": 0}),
    "the largest of rows in bf16": ("argmax", [(WHOLE, BF16)], {"axis": 1}),
    "sorted columns": ("argsort", [(WHOLE, F32)], {"axis": 0}),
    "one sorted line of bf16": ("argsort", [((SIDE * SIDE,), BF16)], {"axis": 0}),
    "sums along columns": ("cumsum", [(WHOLE, F32)], {"axis": 0}),
    "sums along rows of i8": ("cumsum", [(WHOLE, I8)], {"axis": 1}),
    "sums along one line": ("cumsum", [((SIDE * SIDE,), F32)], {"axis": 0}),
    "products of c64": ("cumprod", [(WHOLE, C64)], {"axis": 1}),
    **{
        f"{op} of {dtype.name}": (op, [(BATCH, dtype)] * (2 if op == "solve" else 1), attrs)
        for op, attrs in (
            ("cholesky", {}), ("solve", {}), ("lu", {"output": 0}), ("qr", {"full": 0, "output": 0}),
            ("qr", {"full": 1, "output": 1}), ("eigh", {"output": 0}), ("svd", {"full": 0, "output": 1}),
        )
        for dtype in (F16, F32, F64)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_more_memory_is_taken_than_was_said(name: str) -> None:
    op, kinds, attrs = CASES[name]
    builder = GraphBuilder()
    inputs = [builder.input(str(place), *kind) for place, kind in enumerate(kinds)]
    executable = compile_graph(builder.build([builder.add(op, *inputs, **attrs)]))
    given = [values_of(*kind) for kind in kinds]
    run(executable, given)  # imports, and what numpy keeps
    peak_bytes = peak_bytes_of(lambda: run(executable, given))
    assert peak_bytes <= executable.memory_bytes + SMALL_BYTES


def values_of(shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
    """Values, or matrices that can be solved and factored."""
    if shape != BATCH:
        return np.abs(ordinary(dtype, int(np.prod(shape)))).astype(dtype.numpy).reshape(shape)
    return (np.eye(shape[-1]) * shape[-1] + np.ones(shape)).astype(dtype.numpy)


LINES = [(300_001,), (7, 40_003, 2), (3, 5, 20_011), (2, 3, 150_000), (70_000, 3)]


@pytest.mark.parametrize(("shape", "axis"), [(shape, axis) for shape in LINES for axis in range(len(shape))])
def test_lines_have_the_bits_that_they_have_all_together(shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(axis).integers(-9, 10, shape).astype(np.float32) / np.float32(7)
    x.reshape(-1)[::977] = np.nan
    i = np.random.default_rng(axis).integers(-128, 128, shape).astype(np.int8)
    right = {
        "cumsum": (np.add.accumulate(x.astype(np.float64), axis=axis).astype(np.float32), x),
        "cumprod": (np.multiply.accumulate(i, axis=axis, dtype=np.int8), i),
        "argsort": (np.argsort(x, axis=axis, stable=True).astype(np.int32), x),
        "argmax": (np.argmax(x, axis=axis).astype(np.int32), x),
    }
    for op, (expected, given) in right.items():
        assert same_bits(alone(op, [given], axis=axis), expected), op


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((70_001,), (70_001,)), ((70_001,), ()), ((1,), (90_000,)), ((300, 301), (301,)), ((300, 1), (1, 301)),
        ((1, 70_000), (2, 1)), ((5, 1, 9_000), (3, 9_000)),
    ],
)  # fmt: skip
def test_blocks_have_the_bits_that_they_have_all_together(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    random = np.random.default_rng(2)
    x, y = (random.standard_normal(shape).astype(np.float16) for shape in (left, right))
    wide = np.arctan2(x.astype(np.float32), y.astype(np.float32)).astype(np.float16)
    assert same_bits(alone("atan2", [x, y]), wide)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_many_floats_become_integers_as_few_do(dtype: DType) -> None:
    special = [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**63, -(2.0**63), -0.9, 3.9, -3.9]
    x = np.resize(np.array(special, dtype.numpy), 70_001)
    few = alone("cast", [x[: len(special)]], dtype=I64.name)
    assert same_bits(alone("cast", [x], dtype=I64.name), np.resize(few, x.size))


def alone(op: str, operands: list[NDArray[Any]], **attrs: Any) -> NDArray[Any]:
    builder = GraphBuilder()
    dtypes = {np.dtype(dtype.numpy): dtype for dtype in (F16, F32, F64, I8)}
    kinds = [TensorType(array.shape, dtypes[array.dtype]) for array in operands]
    inputs = [builder.input(str(place), *kind) for place, kind in enumerate(kinds)]
    graph = builder.build([builder.add(op, *inputs, **attrs)])
    (result,) = evaluate(graph, {str(place): array for place, array in enumerate(operands)})
    return result
