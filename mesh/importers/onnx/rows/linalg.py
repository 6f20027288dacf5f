"""Matrix products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from .... import numpy as mnp
from ....array import Array
from ....numpy.promotion import cast
from ..evaluate import Call, Row


def _gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    left = a.T if call.attr("transA", 0) else a
    right = b.T if call.attr("transB", 0) else b
    product = scaled(mnp.matmul(left, right), call.attr("alpha", 1.0))
    return product if c is None else mnp.add(product, scaled(c, call.attr("beta", 1.0)))


def scaled(x: Array, factor: float) -> Array:
    """factor * x in x's dtype."""
    return x if factor == 1.0 else cast(mnp.multiply(x, factor), x.type.dtype)


def _einsum(call: Call, *inputs: Array) -> Array:
    return cast(mnp.einsum(call.required("equation"), *inputs), inputs[0].type.dtype)


ROWS: dict[str, Row] = {
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": lambda call, a, b: mnp.matmul(a, b),
}
