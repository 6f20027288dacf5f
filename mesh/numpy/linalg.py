"""The standard's extension `linalg`, as far as products, sums and norms go.

    mnp.linalg.vector_norm(x, axis=-1)

Everything is of the last two axes (matrices) or of the axes given (vectors), and may be batched.
"""

from __future__ import annotations

import math
from typing import Any

from wire.errors import InputError, ShapeError

from ..array import Array, Operand
from . import elementwise, manipulation, reductions
from .contraction import diagonal, matmul, tensordot, vecdot
from .contraction import outer as _outer
from .creation import eye
from .manipulation import matrix_transpose
from .promotion import asarray, inexact, operands
from .reductions import Axis, normal_axes

__all__ = [
    "cross",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def cross(x1: Operand, x2: Operand, *, axis: int = -1) -> Array:
    """The cross product of vectors of three along `axis`, the other axes broadcast."""
    left, right = (manipulation.moveaxis(array, axis, -1) for array in operands(x1, x2))
    for side in (left, right):
        if side.shape[-1] != 3:
            raise ShapeError(f"cross needs three elements along axis {axis}, got {side.shape[-1]}")
    next1, next2 = (manipulation.roll(side, -1, -1) for side in (left, right))
    turned = elementwise.subtract(elementwise.multiply(left, next2), elementwise.multiply(next1, right))
    return manipulation.moveaxis(manipulation.roll(turned, -1, -1), -1, axis)


def matrix_norm(x: Operand, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norm of matrices: "fro" (Frobenius), 1 or -1 (of columns), inf or -inf (of rows)."""
    (array,) = inexact(x)
    if array.ndim < 2:
        raise ShapeError(f"matrix_norm needs two dimensions or more, got shape {array.shape}")
    if ord == "fro":
        return vector_norm(array, axis=(-2, -1), keepdims=keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise InputError(f"the matrix norm {ord!r} is not known", next_step="Known: 'fro', 1, -1, inf, -inf")
    along, extreme = (-2 if abs(ord) == 1 else -1), (reductions.max if ord > 0 else reductions.min)
    found = extreme(reductions.sum(elementwise.abs(array), along, keepdims=True), -3 - along, keepdims=True)
    return found if keepdims else manipulation.squeeze(found, (-2, -1))


def matrix_power(x: Operand, n: int) -> Array:
    """Square matrices multiplied with themselves, n times 0 or more."""
    array = asarray(x)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise ShapeError(f"matrix_power needs square matrices, got shape {array.shape}")
    if n < 0:
        raise InputError(f"matrix_power takes powers of 0 or more, got {n}")
    result = manipulation.broadcast_to(eye(array.shape[-1], dtype=array.type.dtype), array.shape)
    square, started = array, False
    while n:
        if n & 1:
            result, started = (matmul(result, square) if started else square), True
        n >>= 1
        square = matmul(square, square) if n else square
    return result


def outer(x1: Operand, x2: Operand) -> Array:
    """The products of every element of one vector with every element of the other."""
    left, right = asarray(x1), asarray(x2)
    if (left.ndim, right.ndim) != (1, 1):
        raise ShapeError(f"outer needs two vectors, got {left.shape} and {right.shape}")
    return _outer(left, right)


def trace(x: Operand, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum of diagonal `offset` of the last two axes, in `dtype` or as `sum` has it."""
    return reductions.sum(diagonal(x, offset), -1, dtype=dtype)


def vector_norm(x: Operand, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """(sum of |x|**ord) ** (1/ord) over the axes; inf and -inf are the largest and smallest |x|, 0 counts."""
    (array,) = inexact(x)
    axes, size = normal_axes(axis, array.ndim), elementwise.abs(array)
    if ord in (math.inf, -math.inf):
        return (reductions.max if ord > 0 else reductions.min)(size, axes, keepdims=keepdims)
    if ord == 0:
        counted = elementwise.where(elementwise.equal(size, 0), elementwise.multiply(size, 0), 1)
        return reductions.sum(counted, axes, keepdims=keepdims)
    if ord == 1:
        return reductions.sum(size, axes, keepdims=keepdims)
    if ord == 2:
        return elementwise.sqrt(reductions.sum(elementwise.square(size), axes, keepdims=keepdims))
    return elementwise.pow(reductions.sum(elementwise.pow(size, ord), axes, keepdims=keepdims), 1 / ord)
