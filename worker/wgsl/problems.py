"""What is computed to measure a shape class: a small graph of one kernel, its inputs, and how far results may differ.

Pure.  `STANDARD` are the classes that `mesh-worker tune` measures.  To have a further kind of kernel measured: a row in
`PROBLEMS`, and its classes in `kernels/*_forms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import DType, dtype_named
from wire.ir.graph import GraphBuilder, WireGraph

from .choices import ShapeClass

ELEMENTS_MAX = 1 << 24  # of a tensor
WORK_MAX, WORK_MAX_SOFTWARE = 1 << 33, 1 << 30  # multiply-adds of a run, about
TOLERANCES = {"f32": 1e-4, "f16": 1e-2}  # of the largest element: sums of 4096, and of f16 that are rounded once

Build = Callable[[GraphBuilder, DType, tuple[int, ...]], int]


@dataclass(frozen=True, slots=True)
class Kind:
    """What the sizes of a class are, for people, and a graph of such sizes."""

    sizes: tuple[str, ...]
    build: Build


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph of a class: of the one that was asked for, or of a smaller one that stands for it."""

    shape_class: ShapeClass
    graph: WireGraph

    @property
    def inputs(self) -> list[NDArray[Any]]:
        """Values that no narrower dtype holds, of both signs, and so small that no softmax is a maximum."""
        random = np.random.default_rng(1)
        return [random.uniform(-1, 1, kind.shape).astype(kind.dtype.numpy) for kind in self.graph.input_types.values()]

    def agree(self, result: NDArray[Any], other: NDArray[Any]) -> bool:
        """Whether two results of it are equal but for rounding."""
        one, two = result.astype(np.float64), other.astype(np.float64)
        if not np.isfinite(one).all():
            return False
        return bool(np.abs(one - two).max() <= TOLERANCES[self.shape_class.dtype] * np.abs(two).max())


def measurable(shape_class: ShapeClass) -> bool:
    """Whether there is a problem for it."""
    kind = PROBLEMS.get(shape_class.kind)
    return kind is not None and shape_class.dtype in TOLERANCES and len(shape_class.sizes) == len(kind.sizes)


def check_measurable(shape_class: ShapeClass) -> None:
    """Refuse a class that nobody measures, with InputError."""
    if not measurable(shape_class):
        known = "; ".join(f"{name} {'x'.join(size.upper() for size in kind.sizes)}" for name, kind in PROBLEMS.items())
        raise InputError(f"there is no shape class {str(shape_class)!r} to measure", next_step=f"There are: {known}")


def problem_of(shape_class: ShapeClass, software: bool) -> Problem:
    """What to compute for a class.  Where that would take long, it is a smaller class of the same kind.

    InputError for a class that nobody measures.
    """
    check_measurable(shape_class)
    kind, sizes = PROBLEMS[shape_class.kind], list(shape_class.sizes)
    work_max = WORK_MAX_SOFTWARE if software else WORK_MAX
    while math.prod(sizes) > work_max or _largest(sizes) > ELEMENTS_MAX:
        most = 0 if sizes[0] > 1 else sizes.index(max(sizes))  # fewer of the same work are most like all of it
        sizes[most] //= 2
    smaller = ShapeClass(shape_class.kind, shape_class.dtype, tuple(sizes))
    builder = GraphBuilder()
    root = kind.build(builder, dtype_named(shape_class.dtype), smaller.sizes)
    return Problem(smaller, builder.build([root]))


def _largest(sizes: list[int]) -> int:
    """The elements of the largest tensor that these may be the sizes of."""
    batch, *others = sizes
    return batch * math.prod(sorted(others)[-2:])


def _product(build: GraphBuilder, dtype: DType, sizes: tuple[int, ...], along: bool = False) -> int:
    batch, rows, columns, length = sizes
    left = build.input("x", (batch, rows, length), dtype)
    right = build.input("y", (batch, columns, length) if along else (batch, length, columns), dtype)
    return _dot(build, left, right, 2 if along else 1)


def _dot(build: GraphBuilder, left: int, right: int, contract: int) -> int:
    return build.add("dot", left, right, lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(2,), rhs_contract=(contract,))


def _along_rows(build: GraphBuilder, values: int, shape: tuple[int, ...], axis: int) -> int:
    """Values by row, for every column."""
    kept = tuple(1 if place == axis else size for place, size in enumerate(shape))
    return build.add("broadcast", build.add("reshape", values, shape=kept), shape=shape)


def _softmax(build: GraphBuilder, scores: int, shape: tuple[int, ...], axis: int) -> int:
    peak = _along_rows(build, build.add("reduce_max", scores, axes=(axis,)), shape, axis)
    grown = build.add("exp", build.add("add", scores, build.add("neg", peak)))
    return build.add("div", grown, _along_rows(build, build.add("reduce_sum", grown, axes=(axis,)), shape, axis))


def _attention(build: GraphBuilder, dtype: DType, sizes: tuple[int, ...]) -> int:
    batch, rows, columns, width = sizes
    queries = build.input("queries", (batch, rows, width), dtype)
    keys, values = (build.input(name, (batch, columns, width), dtype) for name in ("keys", "values"))
    weights = _softmax(build, _dot(build, queries, keys, 2), (batch, rows, columns), 2)
    return _dot(build, weights, values, 1)


def _sum(build: GraphBuilder, dtype: DType, sizes: tuple[int, ...], across: bool = False) -> int:
    shape = sizes[::-1] if across else sizes
    return build.add("reduce_sum", build.input("x", shape, dtype), axes=(0 if across else 1,))


def _softmax_of_rows(build: GraphBuilder, dtype: DType, sizes: tuple[int, ...], across: bool = False) -> int:
    shape = sizes[::-1] if across else sizes
    return _softmax(build, build.input("x", shape, dtype), shape, 0 if across else 1)


_OF_PRODUCTS = ("batch", "rows", "columns", "length")
_OF_SCORES = ("batch", "queries", "keys", "width")
_OF_ROWS = ("rows", "columns")
PROBLEMS: Mapping[str, Kind] = {
    "product": Kind(_OF_PRODUCTS, _product),
    "line": Kind(_OF_PRODUCTS, _product),
    "line along": Kind(_OF_PRODUCTS, lambda build, dtype, sizes: _product(build, dtype, sizes, along=True)),
    "attention": Kind(_OF_SCORES, _attention),
    "sum": Kind(_OF_ROWS, _sum),
    "sum across": Kind(_OF_ROWS, lambda build, dtype, sizes: _sum(build, dtype, sizes, across=True)),
    "softmax": Kind(_OF_ROWS, _softmax_of_rows),
    "softmax across": Kind(_OF_ROWS, lambda build, dtype, sizes: _softmax_of_rows(build, dtype, sizes, across=True)),
}

_USUAL = (  # layers of small and large models, with many rows and with few
    ("product", (1, 1024, 1024, 1024)),
    ("product", (1, 256, 1024, 256)),
    ("product", (1, 64, 4096, 1024)),
    ("product", (1, 8, 4096, 1024)),
    ("product", (32, 256, 64, 256)),
    ("line", (1, 1, 4096, 1024)),
    ("line along", (1, 1, 4096, 1024)),
    ("attention", (8, 256, 256, 64)),
    ("attention", (8, 1024, 1024, 64)),
    ("sum", (1024, 1024)),
    ("sum across", (1024, 1024)),
    ("softmax", (1024, 1024)),
    ("softmax", (64, 4096)),
)


def standard(dtypes: tuple[str, ...]) -> list[ShapeClass]:
    """The classes that `mesh-worker tune` measures, of a device with these dtypes."""
    return [ShapeClass.of(kind, dtype, sizes) for dtype in TOLERANCES if dtype in dtypes for kind, sizes in _USUAL]
