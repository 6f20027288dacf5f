"""Neural-network functions of arrays.

softmax, log_softmax, layer_norm and gelu are composites: an engine may have a kernel for them, every other evaluates
the body given here.  Formulas are the usual ones; sources stand where there are several.
"""

from __future__ import annotations

import math

from wire.dtypes import I32, I64, U32, U64
from wire.errors import DTypeError, ShapeError

from .. import numpy as mnp
from ..array import Array, Operand, apply
from ..composite import composite
from ..numpy.linalg import Labelled, contract
from ..numpy.promotion import asarray, cast, floats, operands
from ..numpy.reductions import normal_axis


def embedding(indices: Operand, table: Operand) -> Array:
    """Rows of `table` (n, width) by integer `indices` (...): (..., width).  Indices outside [0, n) are clamped."""
    rows, index = asarray(table), asarray(indices)
    if index.type.dtype.kind not in "iu":
        raise DTypeError(f"embedding needs integer indices, got {index.type.dtype.name}")
    if rows.ndim != 2:
        raise ShapeError(f"an embedding table has shape (n, width), got {rows.shape}")
    narrow = cast(index, I32) if index.type.dtype in (I64, U32, U64) and rows.shape[0] < 1 << 31 else index
    return apply("gather", rows, narrow, axis=0, batch_dims=0)


def linear(x: Operand, weight: Operand, bias: Operand | None = None) -> Array:
    """x (..., in) times the transpose of `weight` (out, in), plus `bias` (out,): (..., out)."""
    rows, matrix = operands(x, weight)
    if matrix.ndim != 2 or rows.ndim < 1 or rows.shape[-1] != matrix.shape[1]:
        raise ShapeError(f"linear needs x (..., in) and weight (out, in), got {rows.shape} and {matrix.shape}")
    free = tuple(range(rows.ndim - 1))
    product = contract(Labelled(rows, (*free, "in")), Labelled(matrix, ("out", "in")), (*free, "out"))
    return product if bias is None else product + asarray(bias)


def relu(x: Operand) -> Array:
    """max(x, 0)."""
    return mnp.maximum(x, 0)


def silu(x: Operand) -> Array:
    """x * sigmoid(x), also called swish."""
    (array,) = floats(x)
    return array / (1 + mnp.exp(-array))


def gelu(x: Operand, *, approximate: bool = False) -> Array:
    """x times the normal distribution's cumulative function; `approximate` takes the tanh form.

    Hendrycks and Gimpel, 2016 (arXiv 1606.08415); BERT uses the exact form, GPT-2 the tanh form.
    """
    (array,) = floats(x)
    return composite("gelu_tanh" if approximate else "gelu", _gelu_tanh if approximate else _gelu, array)


def softmax(x: Operand, axis: int = -1) -> Array:
    """exp(x) normalised to sum 1 along `axis`; the maximum is subtracted first."""
    (array,) = floats(x)
    return composite("softmax", softmax_body, array, axis=normal_axis(axis, array.ndim))


def log_softmax(x: Operand, axis: int = -1) -> Array:
    """The logarithm of `softmax`, accurate where softmax underflows."""
    (array,) = floats(x)
    return composite("log_softmax", _log_softmax, array, axis=normal_axis(axis, array.ndim))


def layer_norm(x: Operand, weight: Operand, bias: Operand, *, eps: float = 1e-5) -> Array:
    """x (..., width) normalised to mean 0 and variance 1 along the last axis, times `weight` plus `bias` (width,).

    Ba, Kiros and Hinton, 2016 (arXiv 1607.06450); BERT's eps is 1e-12.
    """
    array, scale, shift = floats(x, weight, bias)
    if not array.ndim or scale.shape != array.shape[-1:] or shift.shape != array.shape[-1:]:
        raise ShapeError(
            f"layer_norm needs x (..., width), weight and bias (width,), "
            f"got {array.shape}, {scale.shape} and {shift.shape}"
        )
    return composite("layer_norm", _layer_norm, array, scale, shift, axis=array.ndim - 1, eps=float(eps))


# -- bodies -----------------------------------------------------------------------------------------------


def softmax_body(x: Array, axis: int = -1) -> Array:
    """The expansion of softmax."""
    grown = mnp.exp(x - x.max(axis, keepdims=True))
    return grown / grown.sum(axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - mnp.log(mnp.exp(shifted).sum(axis, keepdims=True))


def _gelu(x: Array) -> Array:
    return x * 0.5 * (1 + mnp.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Array) -> Array:
    return x * 0.5 * (1 + mnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _layer_norm(x: Array, weight: Array, bias: Array, axis: int, eps: float) -> Array:
    centred = x - x.mean(axis, keepdims=True)
    variance = (centred * centred).mean(axis, keepdims=True)
    return centred / mnp.sqrt(variance + eps) * weight + bias
