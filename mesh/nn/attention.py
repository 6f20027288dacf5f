"""Attention as a function, and the heads of an array; layers of it are in `transformer.py`.

Masked positions get a large negative finite number, never -inf: a row that is masked altogether then attends evenly
instead of becoming NaN.
"""

from __future__ import annotations

import math

from wire.errors import ShapeError
from wire.ir.dtypes import BOOL, DType

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import asarray, cast, floats
from ..transforms.composite import composite
from ..util.annotation_checks import checked
from .functions import softmax_body
from .precision import wide

MASKED = {"f16": -6e4}  # by dtype; f16 ends at 65504
_MASKED = -1e30


def masked_value(dtype: DType) -> float:
    """What a masked score becomes."""
    return MASKED.get(dtype.name, _MASKED)


@checked
def scaled_dot_product_attention(
    query: Operand, key: Operand, value: Operand, mask: Operand | None = None, *, scale: float | None = None
) -> Array:
    """softmax(query @ key^T * scale) @ value.

    query (..., q, width), key (..., k, width), value (..., k, out) give (..., q, out).  `mask` broadcasts to
    (..., q, k): bool (true: look there) or a float that is added to the scores.  `scale` is 1/sqrt(width) by default.
    Vaswani et al., 2017 (arXiv 1706.03762).
    """
    q, k, v = floats(query, key, value)
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            f"attention needs query (..., q, width), key (..., k, width), value (..., k, out), "
            f"got {q.shape}, {k.shape}, {v.shape}"
        )
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    if mask is None:
        return composite("attention", _attention, q, k, v, scale=factor)
    given = asarray(mask)
    fitting = given if given.type.dtype is BOOL else cast(given, q.type.dtype)
    return composite("attention", _attention, q, k, v, fitting, scale=factor)


def split_heads(x: Array, heads: int) -> Array:
    """(..., n, heads * size) to (..., heads, n, size)."""
    if x.ndim < 2 or x.shape[-1] % heads:
        raise ShapeError(f"{x.shape} does not split into {heads} heads")
    return mnp.moveaxis(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads), -2, -3)


def join_heads(x: Array) -> Array:
    """(..., heads, n, size) to (..., n, heads * size)."""
    joined = mnp.moveaxis(x, -3, -2)
    return joined.reshape(*joined.shape[:-2], joined.shape[-2] * joined.shape[-1])


def _attention(q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float) -> Array:
    scores = wide(q @ k.mT) * scale
    if mask is not None and mask.type.dtype is BOOL:
        scores = mnp.where(mask, scores, masked_value(scores.type.dtype))
    elif mask is not None:
        scores = scores + wide(mask)
    return cast(softmax_body(scores), v.type.dtype) @ v
