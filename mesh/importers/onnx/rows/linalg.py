"""Matrices: MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

import math

from wire.ir.dtypes import I32

from .... import numpy as mnp
from ....core.array import Array, apply
from ....numpy.promotion import cast, like
from ..evaluate import Call, Row


def _gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    left = a.T if call.attr("transA", 0) else a
    right = b.T if call.attr("transB", 0) else b
    product = scaled(mnp.matmul(left, right), call.attr("alpha", 1.0))
    share = call.attr("beta", 1.0)
    return product if c is None or share == 0 else mnp.add(product, scaled(c, share))  # BLAS does not read c then


def scaled(x: Array, factor: float) -> Array:
    """factor * x in x's dtype."""
    return x if factor == 1.0 else cast(mnp.multiply(x, factor), x.type.dtype)


def _einsum(call: Call, *inputs: Array) -> Array:
    return cast(mnp.einsum(call.required("equation"), *inputs), inputs[0].type.dtype)


def _det(call: Call, x: Array) -> Array:
    """Elimination with the largest pivot of each column, written out so that every engine has it; larger ones are
    factored, on a cpu worker."""
    size = x.shape[-1]
    if size > DET_SIZE_MAX:
        return mnp.linalg.det(x)
    rows = mnp.reshape(x, (math.prod(x.shape[:-2]), size, size))
    result = mnp.ones(rows.shape[:1], dtype=x.type.dtype)
    for _ in range(size):
        place = mnp.argmax(mnp.abs(rows[:, :, 0]), 1)[:, None]
        counter = mnp.arange(rows.shape[1], dtype=I32)
        order = mnp.where(mnp.equal(counter, 0), place, mnp.where(mnp.equal(counter, place), 0, counter))
        rows = apply("gather", rows, order, axis=1, batch_dims=1)  # the pivot's row and the first change places
        pivot = rows[:, 0, 0]
        result = result * pivot * mnp.where(mnp.equal(place[:, 0], 0), like(1, x), like(-1, x))
        factor = rows[:, 1:, 0] / mnp.where(mnp.equal(pivot, 0), like(1, x), pivot)[:, None]
        rows = rows[:, 1:, 1:] - factor[:, :, None] * rows[:, :1, 1:]
    return mnp.reshape(result, x.shape[:-2])


DET_SIZE_MAX = 128
ROWS: dict[str, Row] = {
    "Det": _det,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": lambda call, a, b: mnp.matmul(a, b),
}
