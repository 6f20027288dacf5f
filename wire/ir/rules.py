"""Shape and dtype rules: what an op makes of its operands' types.

A rule takes `(attrs, types)` and returns a shape or a dtype, or raises ShapeError, DTypeError or AttrError
saying what was expected and what came.  Rules allocate nothing and trust nothing: attributes may come from a
stranger.  The tracer, the builder and every reader of a graph use these same functions (autodidax's
`abstract_eval_rules`).  Rules are named in the rows of `ops.py`; a row's hash covers their names, so a rule
whose meaning changes gets a new name.  A rule's docstring is its text in docs/ops.md.

Here are the rules of leaves, of elementwise ops, of reductions and of what rearranges; those of other families are in
`matrix_rules.py`, `indexing_rules.py`, `control_rules.py` and `collective_rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..errors import AttrError, DTypeError, ShapeError
from ..units import counted
from .device_names import device_named
from .dtypes import BOOL, I32, PARTS, U32, DType, dtype_named
from .grids import check_axes, check_spec, spec_of
from .types import Attrs, TensorType

Types = Sequence[TensorType]
ShapeRule = Callable[[Attrs, Types], tuple[int, ...]]
DTypeRule = Callable[[Attrs, Types], DType]


# -- dtype rules ------------------------------------------------------------------------------------------


def same_dtype(types: Types, kinds: str) -> DType:
    """The one dtype of all operands, of one of these numpy kinds."""
    dtype = types[0].dtype
    for other in types[1:]:
        if other.dtype is not dtype:
            raise DTypeError(f"operands must have one dtype, got {' and '.join(t.dtype.name for t in types)}")
    if dtype.kind not in kinds:
        raise DTypeError(f"expected {KIND_NAMES[kinds]}, got {dtype.name}")
    return dtype


KIND_NAMES = {
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
    """The operands' common dtype."""
    return same_dtype(types, "biufc")


def any_dtype(attrs: Attrs, types: Types) -> DType:
    """The operands' common dtype, which is not complex."""
    return same_dtype(types, "biuf")


def numeric(attrs: Attrs, types: Types) -> DType:
    """The operands' common dtype, which is not bool."""
    return same_dtype(types, "iufc")


def number(attrs: Attrs, types: Types) -> DType:
    """The operands' common dtype, which is neither bool nor complex."""
    return same_dtype(types, "iuf")


def inexact(attrs: Attrs, types: Types) -> DType:
    """The operands' common dtype, float or complex."""
    return same_dtype(types, "fc")


def floating(attrs: Attrs, types: Types) -> DType:
    """The operands' common dtype, a float."""
    return same_dtype(types, "f")


def integer(attrs: Attrs, types: Types) -> DType:
    """The operands' common dtype, an integer."""
    return same_dtype(types, "iu")


def bits(attrs: Attrs, types: Types) -> DType:
    """The operands' common dtype, an integer or bool."""
    return same_dtype(types, "biu")


def first_dtype(attrs: Attrs, types: Types) -> DType:
    """The first operand's dtype; the others may have any type."""
    return types[0].dtype


def equality(attrs: Attrs, types: Types) -> DType:
    """bool; the operands have one dtype."""
    same_dtype(types, "biufc")
    return BOOL


def compare(attrs: Attrs, types: Types) -> DType:
    """bool; the operands have one dtype, which is not complex."""
    same_dtype(types, "biuf")
    return BOOL


def test_inexact(attrs: Attrs, types: Types) -> DType:
    """bool; the operand is a float or complex."""
    same_dtype(types, "fc")
    return BOOL


def magnitude(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, which is not bool; for a complex operand, the dtype of its parts."""
    dtype = same_dtype(types, "iufc")
    return PARTS.get(dtype, dtype)


def part(attrs: Attrs, types: Types) -> DType:
    """The dtype of the parts of the operand, which is complex."""
    return PARTS[same_dtype(types, "c")]


def complex_only(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype, which is complex."""
    return same_dtype(types, "c")


def of_parts(attrs: Attrs, types: Types) -> DType:
    """c64 for two f32, c128 for two f64."""
    dtype = same_dtype(types, "f")
    complex_dtype = _OF_PARTS.get(dtype)
    if complex_dtype is None:
        raise DTypeError(f"complex numbers are made of f32 or f64, got {dtype.name}")
    return complex_dtype


_OF_PARTS = {part: whole for whole, part in PARTS.items()}


def chosen(attrs: Attrs, types: Types) -> DType:
    """The common dtype of the last two operands; the first operand is bool or a float."""
    if types[0].dtype.kind not in "bf":
        raise DTypeError(f"a condition is bool or float (true where > 0), got {types[0].dtype.name}")
    return same_dtype(types[1:], "biufc")


def named_dtype(attrs: Attrs, types: Types) -> DType:
    """The attribute `dtype`."""
    return dtype_named(attrs["dtype"])


def converted(attrs: Attrs, types: Types) -> DType:
    """The attribute `dtype`; for a complex operand, it is complex or bool."""
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
        raise DTypeError(f"expected {KIND_NAMES['iuf']}, got {dtype.name}")
    return dtype


def reinterpreted(attrs: Attrs, types: Types) -> DType:
    """The attribute `dtype`, of the same item size; neither is bool or complex."""
    source, target = types[0].dtype, dtype_named(attrs["dtype"])
    if {"b", "c"} & {source.kind, target.kind} or source.itemsize != target.itemsize:
        raise DTypeError(f"bitcast needs two real number dtypes of one size, got {source.name} and {target.name}")
    return target


def random_words(attrs: Attrs, types: Types) -> DType:
    """u32; the key is u32."""
    if types[0].dtype is not U32:
        raise DTypeError(f"a random key is u32, got {types[0].dtype.name}")
    return U32


def index_i32(attrs: Attrs, types: Types) -> DType:
    """i32; the operand is an integer or a float."""
    same_dtype(types, "iuf")
    return I32


def position_i32(attrs: Attrs, types: Types) -> DType:
    """i32; the operand is not complex."""
    same_dtype(types, "biuf")
    return I32


"""How the operands of the ranks are combined, and the kinds of dtypes that this takes."""


# -- shape rules ------------------------------------------------------------------------------------------


def named_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`."""
    return dims(attrs["shape"])


def const_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`; `data` has exactly its bytes, or `blob` a 32-byte address."""
    shape = dims(attrs["shape"])
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
    shape = dims(attrs["shape"])
    axis_of(attrs["axis"], len(shape))
    return shape


def random_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`; the key has shape (2,)."""
    if types[0].shape != (2,):
        raise ShapeError(f"a random key has shape (2,), got {types[0].shape}")
    return dims(attrs["shape"])


def first_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The first operand's shape."""
    return types[0].shape


def same_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape."""
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
    source, target = types[0].shape, dims(attrs["shape"])
    if _broadcast_two(source, target) != target:
        raise ShapeError(f"shape {source} does not broadcast to {target}")
    return target


def reduced(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape without the axes."""
    shape = types[0].shape
    gone = set(distinct_axes(attrs["axes"], len(shape)))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in gone)


def reduced_not_empty(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape without the axes, none of which is empty."""
    shape = types[0].shape
    result = reduced(attrs, types)
    if 0 in (shape[axis] for axis in attrs["axes"]):
        raise ShapeError(f"min or max over an empty axis has no value: shape {shape}, axes {attrs['axes']}")
    return result


def one_axis_gone(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape without the axis, which is not empty."""
    shape = types[0].shape
    axis = axis_of(attrs["axis"], len(shape))
    if shape[axis] == 0:
        raise ShapeError(f"argmax over an empty axis has no value: shape {shape}, axis {axis}")
    return shape[:axis] + shape[axis + 1 :]


def along_axis(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape, which has the axis."""
    axis_of(attrs["axis"], len(types[0].shape))
    return types[0].shape


def along_filled_axis(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape, which has the axis and is not empty along it; `inverse` is 0 or 1."""
    shape = along_axis(attrs, types)
    if shape[attrs["axis"]] == 0:
        raise ShapeError(f"a transform along an empty axis: shape {shape}, axis {attrs['axis']}")
    if attrs["inverse"] not in (0, 1):
        raise AttrError(f"inverse is 0 or 1, got {attrs['inverse']}")
    return shape


def reshaped(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `shape`, which has as many elements as the operand."""
    shape = dims(attrs["shape"])
    if math.prod(shape) != math.prod(types[0].shape):
        raise ShapeError(
            f"cannot reshape {types[0].shape} ({counted(types[0].size, 'element')}) to {shape} ({math.prod(shape)})"
        )
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
    """low + dim + max(dim - 1, 0) * interior + high per axis; none of the three is negative, and the fill is a
    scalar."""
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
    """The operands' shape, with the sum of their dimensions along the axis; the other dimensions are equal."""
    first = types[0].shape
    axis = axis_of(attrs["axis"], len(first))
    for other in types[1:]:
        shape = other.shape
        if len(shape) != len(first) or shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            raise ShapeError(f"concat along axis {axis} of shapes {first} and {shape}")
    return (*first[:axis], sum(t.shape[axis] for t in types), *first[axis + 1 :])


def reversed_axes(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape."""
    distinct_axes(attrs["axes"], len(types[0].shape))
    return types[0].shape


def transferred(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape."""
    device_named(attrs["device"])
    return types[0].shape


def constrained(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape, which the spec fits; a dimension need not divide evenly."""
    check_axes(attrs["axes"], attrs["sizes"])
    check_spec(spec_of(attrs["spec"]), len(types[0].shape), attrs["axes"])
    return types[0].shape


# -- helpers ----------------------------------------------------------------------------------------------


def dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, none of whose dimensions is negative."""
    if any(dim < 0 for dim in shape):
        raise ShapeError(f"negative dimension in shape {shape}")
    return shape


def axis_of(axis: int, rank: int) -> int:
    """The axis, which an array of that rank has."""
    if not 0 <= axis < rank:
        raise AttrError(f"axis {axis} is outside rank {rank}")
    return axis


def distinct_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The axes, which an array of that rank has and none of which stands twice."""
    for axis in axes:
        axis_of(axis, rank)
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
