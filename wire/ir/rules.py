"""Shape and dtype rules: what an op makes of its operands' types.

A rule takes `(attrs, types)` and returns a shape or a dtype, or raises ShapeError, DTypeError or AttrError
saying what was expected and what came.  Rules allocate nothing and trust nothing: attributes may come from a
stranger.  The tracer, the builder and every reader of a graph use these same functions (autodidax's
`abstract_eval_rules`).  Rules are named in the rows of `ops.py`; a row's hash covers their names, so a rule
whose meaning changes gets a new name.  A rule's docstring is its text in docs/ops.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ..errors import AttrError, DTypeError, ShapeError
from .device_names import device_named
from .dtypes import BOOL, I32, PARTS, U32, DType, dtype_named
from .grids import Axes, Sizes, check_axes, check_spec, local_shape, spec_of
from .grids import whole_shape as joined_shape
from .types import Attrs, TensorType

Types = Sequence[TensorType]
ShapeRule = Callable[[Attrs, Types], tuple[int, ...]]
DTypeRule = Callable[[Attrs, Types], DType]

SIBLINGS = 8  # nodes with the same body whose operands are checked once: all results of one stand together


# -- dtype rules ------------------------------------------------------------------------------------------


def _same(types: Types, kinds: str) -> DType:
    dtype = types[0].dtype
    for other in types[1:]:
        if other.dtype is not dtype:
            raise DTypeError(f"operands must have one dtype, got {' and '.join(t.dtype.name for t in types)}")
    if dtype.kind not in kinds:
        raise DTypeError(f"expected {_KIND_NAMES[kinds]}, got {dtype.name}")
    return dtype


_KIND_NAMES = {
    "c": "a complex dtype",
    "f": "a float dtype",
    "fc": "a float or complex dtype",
    "iuf": "a real number dtype",
    "iufc": "a number dtype",
    "iu": "an integer dtype",
    "biu": "bool or an integer dtype",
    "biuf": "bool or a real number dtype",
    "biufc": "any dtype",
}


def every_dtype(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype."""
    return _same(types, "biufc")


def any_dtype(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype, which is not complex."""
    return _same(types, "biuf")


def numeric(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype, which is not bool."""
    return _same(types, "iufc")


def number(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype, which is neither bool nor complex."""
    return _same(types, "iuf")


def inexact(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype, float or complex."""
    return _same(types, "fc")


def floating(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype, a float."""
    return _same(types, "f")


def integer(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype, an integer."""
    return _same(types, "iu")


def bits(attrs: Attrs, types: Types) -> DType:
    """The operands' one dtype, an integer or bool."""
    return _same(types, "biu")


def first_dtype(attrs: Attrs, types: Types) -> DType:
    """That of the first operand; the others are of any type."""
    return types[0].dtype


def equality(attrs: Attrs, types: Types) -> DType:
    """bool, from operands of one dtype."""
    _same(types, "biufc")
    return BOOL


def compare(attrs: Attrs, types: Types) -> DType:
    """bool, from operands of one dtype, which is not complex."""
    _same(types, "biuf")
    return BOOL


def test_inexact(attrs: Attrs, types: Types) -> DType:
    """bool, from float or complex."""
    _same(types, "fc")
    return BOOL


def magnitude(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, which is not bool; of complex the dtype of its parts."""
    dtype = _same(types, "iufc")
    return PARTS.get(dtype, dtype)


def part(attrs: Attrs, types: Types) -> DType:
    """The float of which the operand, complex, is two."""
    return PARTS[_same(types, "c")]


def complex_only(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, which is complex."""
    return _same(types, "c")


def of_parts(attrs: Attrs, types: Types) -> DType:
    """c64 of two f32, c128 of two f64."""
    dtype = _same(types, "f")
    found = _OF_PARTS.get(dtype)
    if found is None:
        raise DTypeError(f"complex numbers are made of f32 or f64, got {dtype.name}")
    return found


_OF_PARTS = {part: whole for whole, part in PARTS.items()}


def chosen(attrs: Attrs, types: Types) -> DType:
    """The one dtype of the last two operands; the first is bool or a float."""
    if types[0].dtype.kind not in "bf":
        raise DTypeError(f"a condition is bool or float (true where > 0), got {types[0].dtype.name}")
    return _same(types[1:], "biufc")


def named_dtype(attrs: Attrs, types: Types) -> DType:
    """The attribute `dtype`."""
    return dtype_named(attrs["dtype"])


def converted(attrs: Attrs, types: Types) -> DType:
    """The attribute `dtype`; from complex it is complex or bool."""
    source, target = types[0].dtype, dtype_named(attrs["dtype"])
    if source.kind == "c" and target.kind not in "bc":
        raise DTypeError(
            f"{source.name} is not converted to {target.name}, which would drop the imaginary part",
            next_step="Take real(x), imag(x) or abs(x)",
        )
    return target


def named_number(attrs: Attrs, types: Types) -> DType:
    """The attribute `dtype`, which is neither bool nor complex."""
    dtype = dtype_named(attrs["dtype"])
    if dtype.kind in "bc":
        raise DTypeError(f"expected {_KIND_NAMES['iuf']}, got {dtype.name}")
    return dtype


def reinterpreted(attrs: Attrs, types: Types) -> DType:
    """The attribute `dtype`, of the same item size; neither is bool or complex."""
    source, target = types[0].dtype, dtype_named(attrs["dtype"])
    if {"b", "c"} & {source.kind, target.kind} or source.itemsize != target.itemsize:
        raise DTypeError(f"bitcast needs two real number dtypes of one size, got {source.name} and {target.name}")
    return target


def random_words(attrs: Attrs, types: Types) -> DType:
    """u32, from a u32 key."""
    if types[0].dtype is not U32:
        raise DTypeError(f"a random key is u32, got {types[0].dtype.name}")
    return U32


def index_i32(attrs: Attrs, types: Types) -> DType:
    """i32, from a real number dtype."""
    _same(types, "iuf")
    return I32


def position_i32(attrs: Attrs, types: Types) -> DType:
    """i32, from any dtype but complex."""
    _same(types, "biuf")
    return I32


def gathered(attrs: Attrs, types: Types) -> DType:
    """That of the first operand; the second is an integer."""
    _same(types[1:2], "iu")
    return types[0].dtype


def scattered_in(attrs: Attrs, types: Types) -> DType:
    """The one dtype of data and updates: any for the mode `set`, a number for `add`, else one that is ordered;
    indices are an integer."""
    _same(types[1:2], "iu")
    dtype = _same((types[0], types[2]), "biufc")
    kinds = _SCATTERED.get(attrs["mode"], "iuf")
    if dtype.kind not in kinds:
        raise DTypeError(f"scatter mode {attrs['mode']!r} needs {_KIND_NAMES[kinds]}, got {dtype.name}")
    return dtype


_SCATTERED = {"set": "biufc", "add": "iufc"}


def windowed(attrs: Attrs, types: Types) -> DType:
    """The one dtype of the operands before the last; the last is an integer."""
    _same(types[-1:], "iu")
    return _same(types[:-1], "biufc")


def branch_dtype(attrs: Attrs, types: Types) -> DType:
    """That of output `output` of both graphs."""
    return _branch_type(attrs, types).dtype


def carried_dtype(attrs: Attrs, types: Types) -> DType:
    """That of operand `output`."""
    return _carried_type(attrs, types).dtype


def scanned_dtype(attrs: Attrs, types: Types) -> DType:
    """That of output `output` of the body."""
    return _scanned_type(attrs, types).dtype


def combined(attrs: Attrs, types: Types) -> DType:
    """That of the operand: a number for the reductions `sum` and `prod`, not complex for `max` and `min`, bool or an
    integer for `and` and `or`."""
    kinds = REDUCTIONS.get(attrs["reduction"])
    if kinds is None:
        raise AttrError(f"the reduction {attrs['reduction']!r} is not known: {', '.join(REDUCTIONS)}")
    dtype = types[0].dtype
    if dtype.kind not in kinds:
        raise DTypeError(f"the reduction {attrs['reduction']!r} does not take {dtype.name}")
    return dtype


REDUCTIONS = {"sum": "iufc", "prod": "iufc", "max": "biuf", "min": "biuf", "and": "biu", "or": "biu"}
"""How the operands of the ranks are combined, and the kinds of dtypes that this takes."""


def number_dtype(attrs: Attrs, types: Types) -> DType:
    """i32."""
    return I32


def whole_dtype(attrs: Attrs, types: Types) -> DType:
    """That of output `output` of the body."""
    return _spmd_type(attrs, types).dtype


def body_dtype(attrs: Attrs, types: Types) -> DType:
    """That of the body's output."""
    return _body_type(attrs, types).dtype


# -- shape rules ------------------------------------------------------------------------------------------


def named_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`."""
    return _dims(attrs["shape"])


def const_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`; `data` has exactly its bytes, or `blob` a 32-byte address."""
    shape = _dims(attrs["shape"])
    expected = math.prod(shape) * dtype_named(attrs["dtype"]).itemsize
    if ("data" in attrs) == ("blob" in attrs):
        raise AttrError("a constant has either data or blob")
    if "data" in attrs and len(attrs["data"]) != expected:
        raise ShapeError(f"a constant of shape {shape} has {expected} bytes, got {len(attrs['data'])}")
    if "blob" in attrs and len(attrs["blob"]) != 32:
        raise AttrError(f"a blob address has 32 bytes, got {len(attrs['blob'])}")
    return shape


def iota_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`, which has the axis."""
    shape = _dims(attrs["shape"])
    _axis(attrs["axis"], len(shape))
    return shape


def random_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`; the key has shape (2,)."""
    if types[0].shape != (2,):
        raise ShapeError(f"a random key has shape (2,), got {types[0].shape}")
    return _dims(attrs["shape"])


def first_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the first operand."""
    return types[0].shape


def same_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand."""
    return types[0].shape


def broadcast_together(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operands' shapes, broadcast as numpy does."""
    shape = types[0].shape
    for other in types[1:]:
        if other.shape != shape:
            shape = _broadcast_two(shape, other.shape)
    return shape


def broadcast_to(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`, to which the operand broadcasts."""
    source, target = types[0].shape, _dims(attrs["shape"])
    if _broadcast_two(source, target) != target:
        raise ShapeError(f"shape {source} does not broadcast to {target}")
    return target


def reduced(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Without the axes."""
    shape = types[0].shape
    gone = set(_distinct_axes(attrs["axes"], len(shape)))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in gone)


def reduced_not_empty(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Without the axes, none of which is empty."""
    shape = types[0].shape
    result = reduced(attrs, types)
    if 0 in (shape[axis] for axis in attrs["axes"]):
        raise ShapeError(f"min or max over an empty axis has no value: shape {shape}, axes {attrs['axes']}")
    return result


def one_axis_gone(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Without the axis, which is not empty."""
    shape = types[0].shape
    axis = _axis(attrs["axis"], len(shape))
    if shape[axis] == 0:
        raise ShapeError(f"argmax over an empty axis has no value: shape {shape}, axis {axis}")
    return shape[:axis] + shape[axis + 1 :]


def along_axis(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand, which has the axis."""
    _axis(attrs["axis"], len(types[0].shape))
    return types[0].shape


def along_filled_axis(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand, which has the axis, and elements along it; `inverse` is 0 or 1."""
    shape = along_axis(attrs, types)
    if shape[attrs["axis"]] == 0:
        raise ShapeError(f"a transform along an empty axis: shape {shape}, axis {attrs['axis']}")
    if attrs["inverse"] not in (0, 1):
        raise AttrError(f"inverse is 0 or 1, got {attrs['inverse']}")
    return shape


def reshaped(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`, of as many elements."""
    shape = _dims(attrs["shape"])
    if math.prod(shape) != math.prod(types[0].shape):
        raise ShapeError(f"cannot reshape {types[0].shape} ({types[0].size} elements) to {shape} ({math.prod(shape)})")
    return shape


def transposed(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Axis i is axis perm[i] of the operand."""
    shape = types[0].shape
    perm = attrs["perm"]
    if sorted(perm) != list(range(len(shape))):
        raise AttrError(f"perm {perm} is not a permutation of the {len(shape)} axes")
    return tuple(shape[axis] for axis in perm)


def sliced(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """ceil((stop - start) / step) per axis, with 0 <= start <= stop <= dim and step >= 1."""
    shape = types[0].shape
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    if not len(start) == len(stop) == len(step) == len(shape):
        raise AttrError(f"slice of rank {len(shape)} needs as many starts, stops and steps")
    for dim, lo, hi, by in zip(shape, start, stop, step, strict=True):
        if not (0 <= lo <= hi <= dim and by >= 1):
            raise ShapeError(f"slice {lo}:{hi}:{by} is outside a dimension of {dim}")
    return tuple(-(-(hi - lo) // by) for lo, hi, by in zip(start, stop, step, strict=True))


def padded(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """low + dim + max(dim - 1, 0) * interior + high per axis, no width negative; the fill is a scalar."""
    shape = types[0].shape
    low, high, interior = attrs["low"], attrs["high"], attrs["interior"]
    if types[1].shape != ():
        raise ShapeError(f"the fill value of pad is a scalar, got shape {types[1].shape}")
    if not len(low) == len(high) == len(interior) == len(shape):
        raise AttrError(f"pad of rank {len(shape)} needs as many lows, highs and interiors")
    if min((*low, *high, *interior), default=0) < 0:
        raise AttrError("pad widths are not negative")
    widths = zip(shape, low, high, interior, strict=True)
    return tuple(lo + dim + max(dim - 1, 0) * inner + hi for dim, lo, hi, inner in widths)


def concatenated(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The sum along the axis; the other dimensions are equal."""
    first = types[0].shape
    axis = _axis(attrs["axis"], len(first))
    for other in types[1:]:
        shape = other.shape
        if len(shape) != len(first) or shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            raise ShapeError(f"concat along axis {axis} of shapes {first} and {shape}")
    return (*first[:axis], sum(t.shape[axis] for t in types), *first[axis + 1 :])


def reversed_axes(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand."""
    _distinct_axes(attrs["axes"], len(types[0].shape))
    return types[0].shape


def transferred(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand."""
    device_named(attrs["device"])
    return types[0].shape


def constrained(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand, which the spec fits; a dimension need not divide."""
    check_axes(attrs["axes"], attrs["sizes"])
    check_spec(spec_of(attrs["spec"]), len(types[0].shape), attrs["axes"])
    return types[0].shape


def dot_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Batch axes, then the left's free axes, then the right's; paired axes have equal dimensions."""
    left, right = types[0].shape, types[1].shape
    left_axes, right_axes = (*attrs["lhs_batch"], *attrs["lhs_contract"]), (*attrs["rhs_batch"], *attrs["rhs_contract"])
    _distinct_axes(left_axes, len(left))
    _distinct_axes(right_axes, len(right))
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
    """x (n, c, *dims) and w (o, c / groups, *kernel) give (n, o, *windows): per axis, as often as a kernel of
    (kernel - 1) * rhs_dilation + 1 fits, every `stride`, into low + (dim - 1) * lhs_dilation + 1 + high."""
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


def gather_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """data[:axis] + indices[batch_dims:] + data[axis + 1:]; the first batch_dims axes of both are paired."""
    data, indices = types[0].shape, types[1].shape
    axis, batch = _axis(attrs["axis"], len(data)), attrs["batch_dims"]
    if not 0 <= batch <= min(axis, len(indices)) or data[:batch] != indices[:batch]:
        raise ShapeError(f"gather of {data} by {indices}: batch_dims {batch} do not match")
    if data[axis] == 0 and 0 not in data[:axis] + indices + data[axis + 1 :]:
        raise ShapeError(f"gather from an empty axis: shape {data}, axis {axis}")
    return data[:axis] + indices[batch:] + data[axis + 1 :]


def scatter_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of data; updates have shape data[:axis] + indices + data[axis + 1:]."""
    data, indices, updates = (t.shape for t in types)
    axis = _axis(attrs["axis"], len(data))
    if attrs["mode"] not in SCATTER_MODES:
        raise AttrError(f"scatter mode {attrs['mode']!r}; known: {', '.join(SCATTER_MODES)}")
    expected = data[:axis] + indices + data[axis + 1 :]
    if updates != expected:
        raise ShapeError(f"scatter into {data} along axis {axis} by {indices} needs updates {expected}, got {updates}")
    return data


SCATTER_MODES = ("set", "add", "max", "min")


def dynamic_slice_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `sizes`, none larger than the operand's; one start per axis."""
    shape, sizes = types[0].shape, _dims(attrs["sizes"])
    _check_window(shape, sizes, types[1].shape)
    return sizes


def dynamic_update_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of data; the update is no larger, with one start per axis."""
    shape, update, starts = (t.shape for t in types)
    _check_window(shape, update, starts)
    return shape


def body_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the body's output; the operands are of its inputs' types."""
    return _body_type(attrs, types).shape


def branch_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of output `output` of both graphs; the operands are a bool[] and what the graphs take."""
    return _branch_type(attrs, types).shape


def carried_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of operand `output`, one of as many as the body has outputs; test gives a bool[]."""
    return _carried_type(attrs, types).shape


def scanned_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of output `output` of the body; behind the carry `length` of them, stacked."""
    return _scanned_type(attrs, types).shape


def whole_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """Of output `output` of the body, times the axes that its spec names; the body takes the operands' blocks."""
    return _spmd_type(attrs, types).shape


def reduced_over_ranks(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand."""
    _ranks(attrs)
    return types[0].shape


def gathered_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The axis times the number of ranks."""
    shape, axis = types[0].shape, _axis(attrs["axis"], len(types[0].shape))
    return (*shape[:axis], shape[axis] * _ranks(attrs), *shape[axis + 1 :])


def scattered_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The axis divided by the number of ranks."""
    shape, axis = types[0].shape, _axis(attrs["axis"], len(types[0].shape))
    return (*shape[:axis], _divided(shape, axis, _ranks(attrs)), *shape[axis + 1 :])


def exchanged_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """`split_axis` divided by the number of ranks, `concat_axis` times it."""
    shape, ranks = list(types[0].shape), _ranks(attrs)
    split, joined = (_axis(attrs[name], len(shape)) for name in ("split_axis", "concat_axis"))
    shape[split] = _divided(types[0].shape, split, ranks)
    shape[joined] *= ranks
    return tuple(shape)


def permuted_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand; `pairs` are who sends and who receives in turn, each rank once."""
    ranks, pairs = _ranks(attrs), attrs["pairs"]
    if len(pairs) % 2 or any(not 0 <= rank < ranks for rank in pairs):
        raise AttrError(f"pairs are source and destination in turn, of {ranks} ranks, got {pairs}")
    for what, given in (("sends", pairs[::2]), ("receives", pairs[1::2])):
        if len(set(given)) != len(given):
            twice = next(rank for place, rank in enumerate(given) if rank in given[:place])
            raise AttrError(f"rank {twice} {what} twice in the pairs {pairs}")
    return types[0].shape


def from_root_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """That of the operand; `root` is one of the ranks."""
    if not 0 <= attrs["root"] < _ranks(attrs):
        raise AttrError(f"the root {attrs['root']} is none of {_ranks(attrs)} ranks")
    return types[0].shape


def number_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """A scalar: the rank's number in its group."""
    _ranks(attrs)
    return ()


# -- helpers ----------------------------------------------------------------------------------------------


def _dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(dim < 0 for dim in shape):
        raise ShapeError(f"negative dimension in shape {shape}")
    return shape


def _axis(axis: int, rank: int) -> int:
    if not 0 <= axis < rank:
        raise AttrError(f"axis {axis} is outside rank {rank}")
    return axis


def _distinct_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    for axis in axes:
        _axis(axis, rank)
    if len(set(axes)) != len(axes):
        raise AttrError(f"an axis stands twice in {axes}")
    return axes


def _broadcast_two(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(left), len(right))
    padded_left = (1,) * (rank - len(left)) + left
    padded_right = (1,) * (rank - len(right)) + right
    result = []
    for a, b in zip(padded_left, padded_right, strict=True):
        if a != b and a != 1 and b != 1:
            raise ShapeError(f"shapes {left} and {right} do not broadcast")
        result.append(b if a == 1 else a)
    return tuple(result)


def _windows(dim: int, kernel: int, stride: int, low: int, high: int, spread: int, reach: int) -> int:
    """How often a kernel fits into one axis."""
    length, extent = low + max((dim - 1) * spread + 1, 0) + high, (kernel - 1) * reach + 1
    if length >= 1 << 31:
        raise ShapeError(f"an axis of {dim} with padding of {low} and {high} and dilation {spread} is too long")
    if kernel < 1 or extent > length:
        raise ShapeError(f"a kernel of {kernel}, dilated to {max(extent, 0)}, does not fit into {length}")
    return (length - extent) // stride + 1


def _check_window(shape: tuple[int, ...], window: tuple[int, ...], starts: tuple[int, ...]) -> None:
    if starts != (len(shape),):
        raise ShapeError(f"starts has one entry per axis, shape ({len(shape)},), got {starts}")
    if len(window) != len(shape) or any(size > dim for size, dim in zip(window, shape, strict=True)):
        raise ShapeError(f"a window of {window} does not fit in {shape}")


def _body_type(attrs: Attrs, types: Types) -> TensorType:
    body: Any = attrs["body"]
    if len(body.outputs) != 1:
        raise AttrError("a composite's body has no params and one output")
    _check_body(f"composite {attrs['name']!r}", body, types)
    result: TensorType = body.types[body.outputs[0]]
    return result


def _branch_type(attrs: Attrs, types: Types) -> TensorType:
    then, otherwise = attrs["then"], attrs["otherwise"]
    if not types or types[0] != TensorType((), BOOL):
        raise ShapeError(f"cond is asked with a {TensorType((), BOOL)}, got {types[0] if types else 'nothing'}")
    for branch in (then, otherwise):
        _check_body("a branch of cond", branch, types[1:])
    if _results(then) != _results(otherwise):
        raise ShapeError(f"cond's branches give ({_listed(_results(then))}) and ({_listed(_results(otherwise))})")
    return _output(attrs, _results(then))


def _carried_type(attrs: Attrs, types: Types) -> TensorType:
    test, body = attrs["test"], attrs["body"]
    for name, graph in (("test", test), ("body", body)):
        _check_body(f"the {name} of while", graph, types)
    _check_carry("while", _results(body), types[: len(body.outputs)])
    if _results(test) != (TensorType((), BOOL),):
        raise ShapeError(f"the test of while gives one {TensorType((), BOOL)}, got ({_listed(_results(test))})")
    return _output(attrs, _results(body))


def _scanned_type(attrs: Attrs, types: Types) -> TensorType:
    body, carry, consts, length = (attrs[name] for name in ("body", "carry", "consts", "length"))
    if min(carry, consts) < 0 or carry + consts > len(types) or carry > len(body.outputs):
        raise AttrError(f"scan with a carry of {carry} and {consts} constants has {len(types)} operands")
    if not 0 <= length < 1 << 31 or attrs["reverse"] not in (0, 1):
        raise AttrError(f"scan's length is 0 to {(1 << 31) - 1} and reverse 0 or 1, got {length}, {attrs['reverse']}")
    rows = types[carry + consts :]
    if any(kind.shape[:1] != (length,) for kind in rows):
        raise ShapeError(f"scan over {length} rows takes arrays of that many, got ({_listed(rows)})")
    given = (*types[: carry + consts], *(TensorType(kind.shape[1:], kind.dtype) for kind in rows))
    _check_body("the body of scan", body, given)
    results = _results(body)
    _check_carry("scan", results[:carry], types[:carry])
    found = _output(attrs, results)
    return found if attrs["output"] < carry else TensorType((length, *found.shape), found.dtype)


def _spmd_type(attrs: Attrs, types: Types) -> TensorType:
    body, axes, sizes = attrs["body"], attrs["axes"], attrs["sizes"]
    check_axes(axes, sizes)
    for what, specs, count in (("operands", "in_specs", len(types)), ("results", "out_specs", len(body.outputs))):
        if len(attrs[specs]) != count:
            raise AttrError(f"spmd has {count} {what} and {len(attrs[specs])} {specs}")
    _check_blocks(body, axes, sizes, attrs["in_specs"], tuple(types))
    found, spec = _output(attrs, _results(body)), spec_of(attrs["out_specs"][attrs["output"]])
    check_spec(spec, len(found.shape), axes)
    return TensorType(joined_shape(found.shape, spec, axes, sizes), found.dtype)


@lru_cache(SIBLINGS)
def _check_blocks(
    body: Any, axes: Axes, sizes: Sizes, in_specs: tuple[str, ...], types: tuple[TensorType, ...]
) -> None:
    """Unless the body takes the operands' blocks on a grid.  Every result of an spmd asks that: of hundreds of operands
    each it would be most of the time that tracing takes."""
    given = []
    for text, kind in zip(in_specs, types, strict=True):
        check_spec(spec_of(text), len(kind.shape), axes)
        given.append(TensorType(local_shape(kind.shape, spec_of(text), axes, sizes), kind.dtype))
    _check_body("the body of spmd", body, given)
    _check_inside(body, dict(zip(axes, sizes, strict=True)))


def _check_inside(body: Any, grid: dict[str, int]) -> None:
    """Unless the collectives of a body are over axes of its grid, and no other grid is inside."""
    for axis, size in body.free_axes.items():
        if grid.get(axis) != size:
            has = f"it with size {grid[axis]}" if axis in grid else f"the axes {', '.join(grid)}"
            raise AttrError(f"a collective in the body is over the axis {axis!r} of size {size}; the grid has {has}")
    if body.has_spmd:
        raise AttrError("an spmd stands inside another one", next_step="Name all axes in one grid")


def _ranks(attrs: Attrs) -> int:
    """The size of a collective's group."""
    check_axes(attrs["axes"], attrs["sizes"])
    return math.prod(attrs["sizes"])


def _divided(shape: tuple[int, ...], axis: int, ranks: int) -> int:
    if shape[axis] % ranks:
        raise ShapeError(f"axis {axis} of {shape} is cut into {ranks} blocks, and {shape[axis]} is no multiple of it")
    return shape[axis] // ranks


def _check_body(what: str, body: Any, types: Types) -> None:
    """Unless the graph stands alone and takes exactly these types."""
    if not body.stands_alone:
        raise AttrError(f"{what} has params or large constants; pass them as operands")
    expected = tuple([body.types[node] for node in body.inputs])
    if tuple(types) != expected:
        raise ShapeError(f"{what} takes ({_listed(expected)}), got ({_listed(types)})")


def _check_carry(op: str, results: Types, carry: Types) -> None:
    if tuple(results) != tuple(carry):
        raise ShapeError(f"the body of {op} turns ({_listed(carry)}) into ({_listed(results)})")


def _results(graph: Any) -> tuple[TensorType, ...]:
    return tuple([graph.types[node] for node in graph.outputs])


def _output(attrs: Attrs, results: Types) -> TensorType:
    if not 0 <= attrs["output"] < len(results):
        raise AttrError(f"output {attrs['output']} of {len(results)}")
    found: TensorType = results[attrs["output"]]
    return found


def _listed(types: Types) -> str:
    return ", ".join(map(str, types))
