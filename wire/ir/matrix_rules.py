"""Shape and dtype rules of what solves and factors matrices, (..., m, n): the last two axes, those ahead are a batch.

As in `rules.py`, whose file would be too long with these: a rule's name and docstring are what others see of it.
"""

from __future__ import annotations

from ..errors import AttrError, ShapeError
from .dtypes import I32, PARTS, DType
from .rules import Types, inexact
from .types import Attrs, TensorType

MATRICES = {"lu": 3, "qr": 2, "eigh": 2, "svd": 3}
"""How many results the factorisations have."""


def lu_dtype(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, float or complex; i32 for outputs 1 and 2."""
    dtype = inexact(attrs, types)
    return I32 if attrs["output"] else dtype


def eigh_dtype(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, float or complex; of complex, output 0 has the dtype of its parts."""
    dtype = inexact(attrs, types)
    return dtype if attrs["output"] else PARTS.get(dtype, dtype)


def svd_dtype(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, float or complex; of complex, output 1 has the dtype of its parts."""
    dtype = inexact(attrs, types)
    return PARTS.get(dtype, dtype) if attrs["output"] == 1 else dtype


def square_matrices(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand, (..., n, n)."""
    return _square(types[0])


def solved(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of b, (..., n, k); a is (..., n, n) with the same axes ahead."""
    a, b = _square(types[0]), types[1].shape
    if len(b) != len(a) or b[:-1] != a[:-1]:
        raise ShapeError(f"solve of a {a} and b {b}: b is {(*a[:-1], 'k')}".replace("'", ""))
    return b


def lu_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Of x (..., m, n): that of x, (..., min(m, n)) and (..., m)."""
    ahead, m, n = _matrix(types[0])
    return _made("lu", attrs, ((*ahead, m, n), (*ahead, min(m, n)), (*ahead, m)))


def qr_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Of x (..., m, n): (..., m, k) and (..., k, n), where k is m if `full` is 1 and min(m, n) if it is 0."""
    ahead, m, n = _matrix(types[0])
    k = m if _is_full(attrs) else min(m, n)
    return _made("qr", attrs, ((*ahead, m, k), (*ahead, k, n)))


def eigh_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Of x (..., n, n): (..., n) and that of x."""
    shape = _square(types[0])
    return _made("eigh", attrs, (shape[:-1], shape))


def svd_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Of x (..., m, n): (..., m, k), (..., min(m, n)) and (..., l, n), where k is m and l is n if `full` is 1, and both
    are min(m, n) if it is 0."""
    ahead, m, n = _matrix(types[0])
    few = min(m, n)
    left, right = (m, n) if _is_full(attrs) else (few, few)
    return _made("svd", attrs, ((*ahead, m, left), (*ahead, few), (*ahead, right, n)))


def _matrix(kind: TensorType) -> tuple[tuple[int, ...], int, int]:
    if len(kind.shape) < 2:
        raise ShapeError(f"expected matrices, got shape {kind.shape}")
    return kind.shape[:-2], kind.shape[-2], kind.shape[-1]


def _square(kind: TensorType) -> tuple[int, ...]:
    if len(kind.shape) < 2 or kind.shape[-1] != kind.shape[-2]:
        raise ShapeError(f"expected square matrices, got shape {kind.shape}")
    return kind.shape


def _is_full(attrs: Attrs) -> bool:
    if attrs["full"] not in (0, 1):
        raise AttrError(f"full is 0 or 1, got {attrs['full']}")
    return bool(attrs["full"])


def _made(op: str, attrs: Attrs, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    if not 0 <= attrs["output"] < MATRICES[op]:
        raise AttrError(f"output {attrs['output']} of {MATRICES[op]}")
    return shapes[attrs["output"]]
