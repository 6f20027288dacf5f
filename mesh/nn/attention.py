"""Attention as a function, its masks, and the heads of an array; layers of it are in `transformer.py`.

Masked scores become a large negative finite number, never -inf: a row that is masked altogether then attends evenly
instead of becoming NaN.
"""

from __future__ import annotations

import math

from wire.errors import ShapeError
from wire.ir.dtypes import BOOL, F16, DType

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import asarray, cast, floats
from ..transforms.composite import composite
from ..transforms.composite_rules import applied
from ..util.annotation_checks import checked
from .functions import softmax_body
from .precision import wide


def masked_value(dtype: DType) -> float:
    """The score of a masked position."""
    return -6e4 if dtype is F16 else -1e30  # f16 ends at 65504


def masked(scores: Array, mask: Array) -> Array:
    """Scores (..., q, k) under a mask: bool, true where a query may look, or a float that is added."""
    if mask.type.dtype is BOOL:
        return mnp.where(mask, scores, masked_value(scores.type.dtype))
    return scores + cast(mask, scores.type.dtype)


def causal_mask(queries: Operand, keys: Operand) -> Array:
    """The mask by which a position sees itself and what comes before.

    Parameters
    ----------
    queries : array_like of int, (..., q)
        Positions that look.
    keys : array_like of int, (k,)
        Positions that are looked at.

    Returns
    -------
    Array
        True where the key's position is not after the query's, (..., q, k).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.causal_mask(np.arange(2), np.arange(3))
    Array([[ True, False, False],
           [ True,  True, False]], dtype=bool)
    """
    return mnp.expand_dims(asarray(queries), -1) >= asarray(keys)


def both_masks(allowed: Array | None, mask: Operand | None) -> Array | None:
    """A bool mask and another one, bool or added to the scores, as one; None where neither is given."""
    if mask is None:
        return allowed
    other = asarray(mask)
    if allowed is None:
        return other
    if other.type.dtype is BOOL:
        return mnp.logical_and(allowed, other)
    return mnp.where(allowed, other, mnp.asarray(masked_value(other.type.dtype), dtype=other.dtype))


@checked
def scaled_dot_product_attention(
    query: Operand, key: Operand, value: Operand, mask: Operand | None = None, *, scale: float | None = None
) -> Array:
    """Attention, `softmax(query @ key.T * scale) @ value`.

    Parameters
    ----------
    query : array_like, (..., q, width)
        What is looked for.
    key : array_like, (..., k, width)
        What the queries are compared with.
    value : array_like, (..., k, out)
        What is looked up.
    mask : array_like, (..., q, k), optional
        True where a query may look, or floats that are added to the scores.
    scale : float, optional
        The factor of the scores, `1 / sqrt(width)` by default.

    Returns
    -------
    Array
        The mean of the values by weight of their scores, (..., q, out).

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    Vaswani et al., 2017 (arXiv 1706.03762).  A row that is masked altogether attends evenly.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> query, key = np.array([[10.0, 0.0]]), np.array([[10.0, 0.0], [0.0, 10.0]])
    >>> np.round(nn.scaled_dot_product_attention(query, key, np.array([[1.0], [2.0]])), 3)
    array([[1.]])
    >>> nn.scaled_dot_product_attention(query, key, np.array([[1.0], [2.0]]), np.array([False, True]))
    Array([[2.]], dtype=float64)
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
    seen = asarray(mask)
    seen = seen if seen.type.dtype is BOOL else cast(seen, q.type.dtype)
    return composite("attention", _attention, q, k, v, seen, scale=factor)


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
    scores = wide(q) @ wide(k).mT * scale
    if mask is not None:
        scores = masked(scores, mask)
    return cast(applied("softmax", softmax_body, scores), v.type.dtype) @ v
