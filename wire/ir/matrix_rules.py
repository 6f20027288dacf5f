"""Shape and dtype rules of products and convolutions, and of what solves and factors matrices, (..., m, n).

The last two axes are the matrix, those ahead are a batch.  As in `rules.py`, a rule's name and docstring are what
others see of it.
"""

from __future__ import annotations

from ..errors import AttrError, ShapeError
from .dtypes import I32, PARTS, DType
from .rules import Types, distinct_axes, inexact
from .types import Attrs, TensorType

MATRICES = {"lu": 3, "qr": 2, "eigh": 2, "svd": 3}
"""How many results the factorisations have."""


def lu_dtype(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, float or complex; i32 for outputs 1 and 2."""
    dtype = inexact(attrs, types)
    return I32 if attrs["output"] else dtype


def eigh_dtype(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, float or complex; for a complex operand, output 0 has the dtype of its parts."""
    dtype = inexact(attrs, types)
    return dtype if attrs["output"] else PARTS.get(dtype, dtype)


def svd_dtype(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, float or complex; for a complex operand, output 1 has the dtype of its parts."""
    dtype = inexact(attrs, types)
    return PARTS.get(dtype, dtype) if attrs["output"] == 1 else dtype


def square_matrices(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape, (..., n, n)."""
    return _square(types[0])


def solved(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of b, (..., n, k); a is (..., n, n) with the same leading axes."""
    a, b = _square(types[0]), types[1].shape
    if len(b) != len(a) or b[:-1] != a[:-1]:
        raise ShapeError(f"solve of a {a} and b {b}: b is {(*a[:-1], 'k')}".replace("'", ""))
    return b


def lu_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of each result for x (..., m, n): that of x, (..., min(m, n)) and (..., m)."""
    ahead, m, n = _matrix(types[0])
    return _output_shape("lu", attrs, ((*ahead, m, n), (*ahead, min(m, n)), (*ahead, m)))


def qr_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of each result for x (..., m, n): (..., m, k) and (..., k, n), where k is m if `full` is 1 and min(m,
    n) if it is 0."""
    ahead, m, n = _matrix(types[0])
    k = m if _is_full(attrs) else min(m, n)
    return _output_shape("qr", attrs, ((*ahead, m, k), (*ahead, k, n)))


def eigh_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of each result for x (..., n, n): (..., n) and that of x."""
    shape = _square(types[0])
    return _output_shape("eigh", attrs, (shape[:-1], shape))


def svd_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of each result for x (..., m, n): (..., m, k), (..., min(m, n)) and (..., l, n), where k is m and l is
    n if `full` is 1, and both are min(m, n) if it is 0."""
    ahead, m, n = _matrix(types[0])
    few = min(m, n)
    left, right = (m, n) if _is_full(attrs) else (few, few)
    return _output_shape("svd", attrs, ((*ahead, m, left), (*ahead, few), (*ahead, right, n)))


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


def _output_shape(op: str, attrs: Attrs, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    if not 0 <= attrs["output"] < MATRICES[op]:
        raise AttrError(f"output {attrs['output']} of {MATRICES[op]}")
    return shapes[attrs["output"]]


def dot_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Batch axes, then the left's free axes, then the right's; paired axes have equal dimensions."""
    left, right = types[0].shape, types[1].shape
    left_axes, right_axes = (*attrs["lhs_batch"], *attrs["lhs_contract"]), (*attrs["rhs_batch"], *attrs["rhs_contract"])
    distinct_axes(left_axes, len(left))
    distinct_axes(right_axes, len(right))
    if len(attrs["lhs_batch"]) != len(attrs["rhs_batch"]) or len(left_axes) != len(right_axes):
        raise AttrError("dot needs as many batch and contracting axes on the left as on the right")
    for at_left, at_right in zip(left_axes, right_axes, strict=True):
        if left[at_left] != right[at_right]:
            raise ShapeError(f"dot of {left} and {right}: axis {at_left} and axis {at_right} differ")
    batch = tuple(left[axis] for axis in attrs["lhs_batch"])
    left_free = tuple(dim for axis, dim in enumerate(left) if axis not in left_axes)
    right_free = tuple(dim for axis, dim in enumerate(right) if axis not in right_axes)
    return batch + left_free + right_free


def conv_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """x (n, c, *dims) and w (o, c / groups, *kernel) give (n, o, *windows).  Per axis, windows is how many positions,
    `stride` apart, a kernel of (kernel - 1) * rhs_dilation + 1 elements has in low + (dim - 1) * lhs_dilation + 1 +
    high elements."""
    left, right, groups = types[0].shape, types[1].shape, attrs["groups"]
    if len(left) < 3 or len(left) != len(right):
        raise ShapeError(f"conv needs x (n, c, *dims) and w (o, c / groups, *kernel), got {left} and {right}")
    if groups < 1 or left[1] != right[1] * groups or right[0] % groups:
        raise ShapeError(f"conv in {groups} groups does not fit {left[1]} channels of x and w {right}")
    columns = [attrs[name] for name in ("stride", "low", "high", "lhs_dilation", "rhs_dilation")]
    if any(len(column) != len(left) - 2 for column in columns):
        raise AttrError(f"conv over {len(left) - 2} axes needs as many strides, lows, highs and dilations")
    stride, low, high, *dilations = columns
    if min((*stride, *dilations[0], *dilations[1])) < 1 or min((*low, *high)) < 0:
        raise AttrError("strides and dilations of conv are at least 1, padding is not negative")
    return (left[0], right[0], *map(_windows, left[2:], right[2:], *columns))


def _windows(dim: int, kernel: int, stride: int, low: int, high: int, spread: int, reach: int) -> int:
    """How often a kernel fits into one axis."""
    length, extent = low + max((dim - 1) * spread + 1, 0) + high, (kernel - 1) * reach + 1
    if length >= 1 << 31:
        raise ShapeError(f"an axis of {dim} with padding of {low} and {high} and dilation {spread} is too long")
    if kernel < 1 or extent > length:
        raise ShapeError(f"a kernel of {kernel}, dilated to {max(extent, 0)}, does not fit into {length}")
    return (length - extent) // stride + 1
