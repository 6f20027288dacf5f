"""Linear maps, tables and softmax.

softmax and log_softmax are composites: an engine may have a kernel for them, every other evaluates the body given here.
"""

from __future__ import annotations

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import I32, I64, U32, U64

from .. import numpy as mnp
from ..core.array import Array, Operand, apply
from ..numpy.contraction import Labelled, contract
from ..numpy.promotion import asarray, cast, floats, operands
from ..numpy.reductions import normal_axis
from ..transforms.composite import composite
from ..transforms.custom_rules import stop_gradient
from ..util.annotation_checks import checked
from .precision import wide


def embedding(indices: Operand, table: Operand) -> Array:
    """Rows of `table` (n, width) by integer `indices` (...): (..., width).

    Computed indices outside [0, n) are clamped, known ones raise an InputError.
    """
    rows, index = asarray(table), asarray(indices)
    if index.type.dtype.kind not in "iu":
        raise DTypeError(f"embedding needs integer indices, got {index.type.dtype.name}")
    if rows.ndim != 2:
        raise ShapeError(f"an embedding table has shape (n, width), got {rows.shape}")
    check_known(index, rows.shape[0], "an index")
    narrow = cast(index, I32) if index.type.dtype in (I64, U32, U64) and rows.shape[0] < 1 << 31 else index
    return apply("gather", rows, narrow, axis=0, batch_dims=0)


def linear(x: Operand, weight: Operand, bias: Operand | None = None) -> Array:
    """x (..., in) times the transpose of `weight` (out, in), plus `bias` (out,): (..., out)."""
    rows, matrix = operands(x, weight)
    if matrix.ndim != 2 or rows.ndim < 1 or rows.shape[-1] != matrix.shape[1]:
        raise ShapeError(f"linear needs x (..., in) and weight (out, in), got {rows.shape} and {matrix.shape}")
    free = tuple(range(rows.ndim - 1))
    product = contract(Labelled(rows, (*free, "in")), Labelled(matrix, ("out", "in")), (*free, "out"))
    return product if bias is None else mnp.add(product, bias)


@checked
def softmax(x: Operand, axis: int = -1) -> Array:
    """exp(x) normalised to sum 1 along `axis`; the maximum is subtracted first."""
    (array,) = floats(x)
    return composite("softmax", softmax_body, array, axis=normal_axis(axis, array.ndim))


@checked
def log_softmax(x: Operand, axis: int = -1) -> Array:
    """The logarithm of `softmax`, accurate where softmax underflows."""
    (array,) = floats(x)
    return composite("log_softmax", _log_softmax, array, axis=normal_axis(axis, array.ndim))


# -- bodies -----------------------------------------------------------------------------------------------


def softmax_body(x: Array, axis: int = -1) -> Array:
    """The expansion of softmax.  The maximum cancels out, so it needs no derivative."""
    high = wide(x)
    grown = mnp.exp(high - stop_gradient(high.max(axis, keepdims=True)))
    return cast(grown / grown.sum(axis, keepdims=True), x.type.dtype)


def _log_softmax(x: Array, axis: int) -> Array:
    high = wide(x)
    peak: Array = stop_gradient(high.max(axis, keepdims=True))
    shifted = high - peak
    return cast(shifted - mnp.log(mnp.exp(shifted).sum(axis, keepdims=True)), x.type.dtype)


def check_known(index: Array, count: int, what: str, but: int | None = None) -> None:
    """InputError for an index outside [0, count) that is known, and not `but`; computed ones cannot be checked."""
    if index.value is not None:
        outside = (index.value < 0) | (index.value >= count)
        if but is not None:
            outside &= index.value != but
        if outside.any():
            raise InputError(f"{what} is {index.value[outside].flat[0]}, and there are {count}")
