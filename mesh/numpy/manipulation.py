"""Shapes: reshaping, moving, joining, splitting and tiling.

All of it is views of the table (reshape, transpose, broadcast, slice, concat, reverse), which engines fold into index
arithmetic.  What also looks positions up is in `padding.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import BOOL

from ..core.array import Array, Operand, apply, renamed
from ..util.annotation_checks import checked
from ..util.argument_checks import items, native
from ..util.units import counted
from . import elementwise
from .promotion import asarray, operands, parts
from .reductions import normal_axes, normal_axis

Shape = int | Sequence[int]


def to_shape(shape: Any) -> tuple[int, ...]:
    """A shape given as an int or a sequence of ints."""
    try:
        sizes = (shape,) if hasattr(shape, "__index__") else tuple(shape)
        return tuple([operator.index(dim) for dim in sizes])
    except TypeError as error:
        raise InputError(f"a shape is made of ints, got {shape!r}") from error


@checked
def reshape(x: Operand, shape: Shape, *, copy: bool | None = None) -> Array:
    """x's elements in C order as `shape`; one dimension may be -1."""
    array = asarray(x)
    wanted = to_shape(shape)
    unknown = wanted.count(-1)
    if unknown > 1:
        raise ShapeError(f"only one dimension can be -1, got {wanted}")
    if unknown:
        known = math.prod([dim for dim in wanted if dim != -1])
        if known == 0 or array.size % known:
            raise ShapeError(f"cannot reshape {array.shape} ({counted(array.size, 'element')}) to {wanted}")
        wanted = tuple([array.size // known if dim == -1 else dim for dim in wanted])
    return renamed(array) if wanted == array.shape else apply("reshape", array, shape=wanted)


def ravel(x: Operand) -> Array:
    """x's elements in one dimension."""
    return reshape(x, -1)


@checked
def permute_dims(x: Operand, axes: Sequence[int] | None = None) -> Array:
    """x with axis i taken from axis axes[i]; all reversed if axes is None."""
    array = asarray(x)
    order = range(array.ndim)[::-1] if axes is None else items(axes, "as axes")
    perm = tuple([normal_axis(axis, array.ndim) for axis in order])
    return renamed(array) if perm == tuple(range(array.ndim)) else apply("transpose", array, perm=perm)


def matrix_transpose(x: Operand) -> Array:
    """The last two axes exchanged."""
    array = asarray(x)
    if array.ndim < 2:
        raise ShapeError(f"matrix_transpose needs two dimensions or more, got shape {array.shape}")
    return swapaxes(array, -1, -2)


def swapaxes(x: Operand, axis1: int, axis2: int) -> Array:
    """Two axes exchanged."""
    array = asarray(x)
    first, second = normal_axis(axis1, array.ndim), normal_axis(axis2, array.ndim)
    perm = list(range(array.ndim))
    perm[first], perm[second] = second, first
    return permute_dims(array, perm)


def moveaxis(x: Operand, source: Shape, destination: Shape) -> Array:
    """Axes `source` moved to positions `destination`; the others keep their order."""
    array = asarray(x)
    here, there = normal_axes(to_shape(source), array.ndim), normal_axes(to_shape(destination), array.ndim)
    if len(here) != len(there):
        raise InputError(f"moveaxis needs as many sources as destinations, got {here} and {there}")
    order = [axis for axis in range(array.ndim) if axis not in here]
    for position, axis in sorted(zip(there, here, strict=True)):
        order.insert(position, axis)
    return permute_dims(array, order)


def expand_dims(x: Operand, axis: Shape = 0) -> Array:
    """A dimension of 1 at each position `axis` of the result."""
    array = asarray(x)
    added = to_shape(axis)
    places = normal_axes(added, array.ndim + len(added))
    dims = iter(array.shape)
    return reshape(array, [1 if place in places else next(dims) for place in range(array.ndim + len(added))])


def squeeze(x: Operand, axis: int | Sequence[int] | None = None) -> Array:
    """x without its dimensions `axis`, which must be 1; without every dimension of 1 if axis is None."""
    array = asarray(x)
    if axis is None:
        return reshape(array, [dim for dim in array.shape if dim != 1])
    axes = normal_axes(axis, array.ndim)
    for unit in axes:
        if array.shape[unit] != 1:
            raise ShapeError(f"cannot squeeze axis {unit} of {array.shape}: it is not 1")
    return reshape(array, [dim for place, dim in enumerate(array.shape) if place not in axes])


def broadcast_to(x: Operand, shape: Shape) -> Array:
    """x repeated along new and size-1 dimensions to `shape`."""
    array, wanted = asarray(x), to_shape(shape)
    return renamed(array) if wanted == array.shape else apply("broadcast", array, shape=wanted)


def broadcast_shapes(*shapes: Shape) -> tuple[int, ...]:
    """The shape that arrays of `shapes` broadcast to; ShapeError if they do not."""
    try:
        return np.broadcast_shapes(*[to_shape(shape) for shape in shapes])
    except ValueError as error:
        raise ShapeError(f"shapes {' and '.join(map(str, shapes))} do not broadcast") from error


def broadcast_arrays(*arrays: Operand) -> list[Array]:
    """All arrays broadcast to their common shape."""
    converted = [asarray(array) for array in arrays]
    shape = broadcast_shapes(*[array.shape for array in converted])
    return [broadcast_to(array, shape) for array in converted]


def flip(x: Operand, axis: int | Sequence[int] | None = None) -> Array:
    """x with the order along `axis` (all if None) reversed."""
    array = asarray(x)
    axes = normal_axes(axis, array.ndim)
    return apply("reverse", array, axes=axes) if axes else renamed(array)


def roll(x: Operand, shift: Shape, axis: Shape | None = None) -> Array:
    """Elements moved on by `shift` along `axis`, those at the end coming in at the start; flattened if axis is None."""
    array = renamed(asarray(x))
    if axis is None:
        return reshape(roll(ravel(array), shift, 0), array.shape)
    axes = [normal_axis(place, array.ndim) for place in to_shape(axis)]
    for by, place in np.broadcast(to_shape(shift), axes):
        dim = array.shape[place]
        cut = (-int(by)) % dim if dim else 0
        if cut:
            array = concat([part(array, place, cut, dim), part(array, place, 0, cut)], axis=int(place))
    return array


# -- joining and splitting --------------------------------------------------------------------------------


@checked
def concat(arrays: Sequence[Operand], axis: int | None = 0) -> Array:
    """Arrays joined along an existing axis; flattened first if axis is None."""
    pieces = parts(arrays)
    if axis is None:
        pieces, axis = [ravel(array) for array in pieces], 0
    place = normal_axis(axis, pieces[0].ndim)
    return renamed(pieces[0]) if len(pieces) == 1 else apply("concat", *pieces, axis=place)


@checked
def stack(arrays: Sequence[Operand], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis."""
    pieces = parts(arrays)
    if len({array.shape for array in pieces}) > 1:
        raise ShapeError(f"stack needs arrays of one shape, got {', '.join(str(array.shape) for array in pieces)}")
    return concat([expand_dims(array, axis) for array in pieces], axis)


def unstack(x: Operand, axis: int = 0) -> tuple[Array, ...]:
    """The arrays along `axis`, without it."""
    array = asarray(x)
    place = normal_axis(axis, array.ndim)
    return tuple([squeeze(part(array, place, at, at + 1), place) for at in range(array.shape[place])])


def split(x: Operand, indices_or_sections: Shape, axis: int = 0) -> list[Array]:
    """x cut along `axis` into equal sections (an int) or at the positions given."""
    array = asarray(x)
    place = normal_axis(axis, array.ndim)
    dim, indices_or_sections = array.shape[place], native(indices_or_sections)
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1 or dim % indices_or_sections:
            raise ShapeError(f"an axis of {dim} cannot be split into {indices_or_sections} equal sections")
        size = dim // indices_or_sections
        cuts = [size * section for section in range(1, indices_or_sections)]
    else:
        cuts = [slice(at).indices(dim)[1] for at in to_shape(indices_or_sections)]
    return [part(array, place, start, max(start, stop)) for start, stop in zip([0, *cuts], [*cuts, dim], strict=True)]


@checked
def diff(
    x: Operand, n: int = 1, axis: int = -1, prepend: Operand | None = None, append: Operand | None = None
) -> Array:
    """The differences of neighbours along `axis`, taken n times, with `prepend` and `append` joined to x before."""
    array = asarray(x)
    place = normal_axis(axis, array.ndim)
    array = renamed(array)
    if n < 0:
        raise InputError(f"differences are taken 0 times or more, got {n}")
    sides = [border for border in (prepend, append) if border is not None]
    if sides:
        array, *borders = operands(array, *sides)
        layers = [_border(border, array, place) for border in borders]
        at = 0 if prepend is None else 1
        array = concat([*layers[:at], array, *layers[at:]], axis=place)
    for _ in range(min(n, array.shape[place])):  # more leave nothing, as this number does
        dim = array.shape[place]
        later, earlier = part(array, place, min(1, dim), dim), part(array, place, 0, max(dim - 1, 0))
        unlike = array.type.dtype is BOOL
        array = elementwise.not_equal(later, earlier) if unlike else elementwise.subtract(later, earlier)
    return array


def _border(border: Array, array: Array, place: int) -> Array:
    """What is joined to `array` along one axis: a scalar becomes one layer."""
    return (
        border if border.ndim else broadcast_to(border, [1 if at == place else d for at, d in enumerate(array.shape)])
    )


# -- tiling and more dimensions -------------------------------------------------------------------------


def tile(x: Operand, repetitions: Shape) -> Array:
    """The whole of x repeated `repetitions` times along each dimension, counted from the last."""
    array, times = asarray(x), to_shape(repetitions)
    rank = max(array.ndim, len(times))
    shape = (1,) * (rank - array.ndim) + array.shape
    times = (1,) * (rank - len(times)) + times
    for place in range(rank):  # one axis at a time: the rank stays within the limit of a graph
        if times[place] != 1:
            before = (*[t * d for t, d in zip(times[:place], shape[:place], strict=True)],)
            one = reshape(array, (math.prod(before), 1, math.prod(shape[place:])))
            array = broadcast_to(one, (math.prod(before), times[place], math.prod(shape[place:])))
    return reshape(array, [t * d for t, d in zip(times, shape, strict=True)])


@checked
def atleast_1d(x: Operand) -> Array:
    """x with one dimension or more."""
    return _at_least(asarray(x), 1)


def atleast_2d(x: Operand) -> Array:
    """x with two dimensions or more, new ones in front."""
    return _at_least(asarray(x), 2)


def _at_least(array: Array, rank: int) -> Array:
    return reshape(array, (1,) * (rank - array.ndim) + array.shape)


def part(array: Array, axis: int, start: int, stop: int) -> Array:
    """array[start:stop] along one axis, both within it."""
    if (start, stop) == (0, array.shape[axis]):
        return renamed(array)
    starts = tuple([start if place == axis else 0 for place in range(array.ndim)])
    stops = tuple([stop if place == axis else dim for place, dim in enumerate(array.shape)])
    return apply("slice", array, start=starts, stop=stops, step=(1,) * array.ndim)
