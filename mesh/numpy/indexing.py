"""Indexing: `x[...]`, take, where things are.

Indices are ints, slices, None, Ellipsis, integer arrays, and boolean masks whose values are known (their shape depends
on their values).  Indices known when the graph is made are checked at once; computed ones count from the end where
negative and are clamped into range, since a graph cannot raise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import BOOL, I32, I64

from ..core.array import Array, Operand, apply, literal
from ..core.handle import Handle
from ..util.annotation_checks import checked
from ..util.units import counted
from . import elementwise, manipulation
from .promotion import asarray, cast, concrete, index_dtype, operands
from .reductions import normal_axis


def getitem(x: Operand, key: Any) -> Array:
    """x[key] with numpy's rules."""
    array = asarray(x)
    key_items = [_item(item) for item in (key if isinstance(key, tuple) else (key,))]
    items = _expanded(array, key_items)
    if any(isinstance(item, Array | _Flag) for item in items):
        items = [_index_literal(item) if isinstance(item, int) else item for item in items]
    basic = _Basic(array, items)
    result = basic.apply(array)
    return _advanced(result, basic.gathers, _are_apart(key_items)) if basic.gathers else result


def take(x: Operand, indices: Operand, axis: int | None = None) -> Array:
    """The elements of x at `indices` along `axis` (of the flattened x if None)."""
    array = asarray(x)
    if axis is None:
        array, axis = manipulation.ravel(array), 0
    place = normal_axis(axis, array.ndim)
    return apply("gather", array, wrapped(asarray(indices), array.shape[place]), axis=place, batch_dims=0)


def take_along_axis(x: Operand, indices: Operand, axis: int = -1) -> Array:
    """The elements of x at `indices` along `axis`, for each position along the other axes."""
    array, index = asarray(x), asarray(indices)
    if array.ndim != index.ndim:
        raise ShapeError(f"take_along_axis needs arrays of one rank, got {array.shape} and {index.shape}")
    place = normal_axis(axis, array.ndim)
    index = wrapped(index, array.shape[place])
    rows, picks = manipulation.moveaxis(array, place, -1), manipulation.moveaxis(index, place, -1)
    shape = manipulation.broadcast_shapes(rows.shape[:-1], picks.shape[:-1])
    rows = manipulation.broadcast_to(rows, (*shape, rows.shape[-1]))
    picks = manipulation.broadcast_to(picks, (*shape, picks.shape[-1]))
    picked = apply("gather", rows, picks, axis=len(shape), batch_dims=len(shape))
    return manipulation.moveaxis(picked, -1, place)


def picked(x: Array, indices: Array, axis: int) -> Array:
    """`take_along_axis` for indices known to be inside, and shapes that are equal but along `axis`."""
    place = normal_axis(axis, x.ndim)
    rows, picks = manipulation.moveaxis(x, place, -1), manipulation.moveaxis(indices, place, -1)
    return manipulation.moveaxis(apply("gather", rows, picks, axis=x.ndim - 1, batch_dims=x.ndim - 1), -1, place)


@checked
def searchsorted(x1: Operand, x2: Operand, side: str = "left", sorter: Operand | None = None) -> Array:
    """The positions, as int32, where values x2 go into the sorted 1-d x1 so that it stays sorted; NaN sorts last.

    `sorter` are the indices that sort x1 where it is not sorted.
    """
    if side not in ("left", "right"):
        raise InputError(f"side is 'left' or 'right', got {side!r}")
    if sorter is not None:
        x1 = take(x1, sorter)
    ordered, values = operands(x1, x2)
    if ordered.ndim != 1:
        raise ShapeError(f"searchsorted needs a 1-d array, got {ordered.shape}")
    low = manipulation.broadcast_to(literal(0, I32), values.shape)
    high = manipulation.broadcast_to(literal(ordered.size, I32), values.shape)
    for _ in range(ordered.size.bit_length()):  # bisection: low <= answer <= high
        middle = elementwise.bitwise_right_shift(elementwise.add(low, high), 1)
        middles = take(ordered, elementwise.minimum(middle, max(ordered.size - 1, 0)))
        later = _before(middles, values) if side == "left" else elementwise.logical_not(_before(values, middles))
        later = elementwise.logical_and(later, elementwise.less(low, high))
        low, high = elementwise.where(later, middle + 1, low), elementwise.where(later, high, middle)
    return low


def nonzero(x: Operand) -> tuple[Array, ...]:
    """The indices of the elements that are not 0, one int32 array per axis.  x must have a value: not while tracing."""
    array = asarray(x)
    if not array.ndim:
        raise ShapeError("nonzero needs an array of one dimension or more, got shape ()")
    return tuple([asarray(positions.astype(np.int32)) for positions in np.nonzero(concrete(array, "nonzero"))])


# -- basic indexing ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Gather:
    axis: int  # of the result of basic indexing
    index: Array


@dataclass(frozen=True, slots=True)
class _Flag:
    """A 0-d mask: a new axis, of which `index` takes one or none."""

    index: Array


class _Basic:
    """Ints, slices and None as one slice, one reverse and one reshape; `gathers` are the array indices left over."""

    def __init__(self, array: Array, items: list[Any]) -> None:
        self.start: list[int] = []
        self.stop: list[int] = []
        self.step: list[int] = []
        self.reversed: list[int] = []
        self.shape: list[int] = []
        self.gathers: list[_Gather] = []
        for item in items:
            if isinstance(item, _Flag):
                self.gathers.append(_Gather(len(self.shape), item.index))
                self.shape.append(1)
            elif item is None:
                self.shape.append(1)
            else:
                self._consume(item, len(self.start), array.shape)

    def _consume(self, item: Any, axis: int, shape: tuple[int, ...]) -> None:
        dim = shape[axis]
        if isinstance(item, Array):
            self.gathers.append(_Gather(len(self.shape), item))
            item = slice(None)
        if isinstance(item, slice):
            count = self._take_slice(item, axis, dim)
            self.shape.append(count)
            return
        if not -dim <= item < dim:
            raise InputError(f"index {item} is outside axis {axis} of {dim}")
        self._cut(item % dim, item % dim + 1, 1)

    def _take_slice(self, item: slice, axis: int, dim: int) -> int:
        start, stop, step = item.indices(dim)
        count = len(range(start, stop, step))
        if count == 0:
            self._cut(0, 0, 1)
        elif step > 0:
            self._cut(start, start + (count - 1) * step + 1, step)
        else:
            self._cut(start + (count - 1) * step, start + 1, -step)
            self.reversed.append(axis)
        return count

    def _cut(self, start: int, stop: int, step: int) -> None:
        self.start.append(start)
        self.stop.append(stop)
        self.step.append(step)

    def apply(self, array: Array) -> Array:
        start, stop, step = tuple(self.start), tuple(self.stop), tuple(self.step)
        if stop != array.shape or any(start) or any(by != 1 for by in step):
            array = apply("slice", array, start=start, stop=stop, step=step)
        if self.reversed:
            array = apply("reverse", array, axes=tuple(self.reversed))
        return manipulation.reshape(array, self.shape)


def _are_apart(items: list[Any]) -> bool:
    """Whether something stands between two arrays or numbers, be it an Ellipsis for no axis at all."""
    places = [place for place, item in enumerate(items) if isinstance(item, int | Array)]
    return bool(places) and len(places) <= places[-1] - places[0]


def _expanded(array: Array, items: list[Any]) -> list[Any]:
    """The key with one item per axis and None: masks as integer arrays, Ellipsis and missing axes as full slices."""
    items = list(items)
    count = sum(_axes_of(item) for item in items)
    if count > array.ndim:
        raise InputError(f"{count} indices for an array of {counted(array.ndim, 'dimension')}")
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise InputError("an index has at most one Ellipsis (...)")
    at = dots[0] if dots else len(items)
    items[at : at + 1] = [slice(None)] * (array.ndim - count)
    return _without_masks(array, items)


def _item(item: Any) -> Any:
    if item is None or isinstance(item, EllipsisType | slice):
        return item
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    if not isinstance(item, (Array, Handle, np.ndarray, np.bool_, bool, list, tuple)):
        raise InputError(f"{type(item).__name__} is not an index", next_step="Use ints, slices, None, ... or arrays")
    index = asarray(np.zeros(0, np.int32)) if isinstance(item, (list, tuple)) and not len(item) else asarray(item)
    if index.type.dtype.kind == "f":
        raise DTypeError(f"an index array has an integer dtype, got {index.type.dtype.name}")
    return index


def sole_mask(array: Array, key: Any) -> Array | None:
    """The boolean array that is the whole key, x[mask] or x[mask, ...]; None for another key."""
    first, *more = key if isinstance(key, tuple) and key else (key,)
    if len(more) > 1 or (more and more[0] is not Ellipsis) or first is None or isinstance(first, EllipsisType | slice):
        return None
    mask = _item(first)
    if not _is_mask(mask):
        return None
    if mask.ndim > array.ndim or mask.shape != array.shape[: mask.ndim]:
        raise ShapeError(f"a mask of shape {mask.shape} does not fit an array of shape {array.shape}")
    return mask  # type: ignore[no-any-return]


def chooses_by_arrays(key: Any) -> bool:
    """Whether a key has arrays of integers, which may name an element several times."""
    items = [_item(item) for item in (key if isinstance(key, tuple) else (key,))]
    return any(isinstance(item, Array) and not _is_mask(item) for item in items)


def opened(array: Array, key: Any) -> tuple[tuple[Any, ...], frozenset[int]]:
    """The key with its computed indices counted from the front, those outside as the length of their axis; and these
    axes."""
    items = [_item(item) for item in (key if isinstance(key, tuple) else (key,))]
    taken = sum(map(_axes_of, items))
    axis, axes = 0, set()
    for place, item in enumerate(items):
        if isinstance(item, Array) and not _is_mask(item) and item.value is None and axis < array.ndim:
            dim, index = array.shape[axis], wrapped(item, array.shape[axis])
            items[place] = elementwise.where(elementwise.less(index, 0), dim, index)
            axes.add(axis)
        axis += array.ndim - taken if item is Ellipsis else _axes_of(item)
    return tuple(items), frozenset(axes)


def _axes_of(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, Array) and item.type.dtype is BOOL


def _without_masks(array: Array, items: list[Any]) -> list[Any]:
    result: list[Any] = []
    axis = 0
    for item in items:
        covered = array.shape[axis : axis + _axes_of(item)]
        axis += len(covered)
        if not _is_mask(item):
            result.append(item)
            continue
        if item.shape != covered:
            raise ShapeError(f"a mask of shape {item.shape} does not fit axes of shape {covered}")
        value = concrete(item, "a boolean mask")
        if item.ndim:
            result.extend(asarray(positions.astype(np.int32)) for positions in np.nonzero(value))
        else:
            result.append(_Flag(asarray(np.zeros(int(value), np.int32))))
    return result


# -- integer arrays ---------------------------------------------------------------------------------------


def _advanced(array: Array, gathers: list[_Gather], apart: bool) -> Array:
    """Index with arrays; if they stand `apart`, the new dimensions come first, as in numpy."""
    axes = [gather.axis for gather in gathers]
    dims = [array.shape[axis] for axis in axes]
    indices = [wrapped(gather.index, dim) for gather, dim in zip(gathers, dims, strict=True)]
    if len(axes) == 1:
        return apply("gather", array, indices[0], axis=axes[0], batch_dims=0)
    if apart:
        array = manipulation.moveaxis(array, axes, range(len(axes)))
        axes = list(range(len(axes)))
    merged = manipulation.reshape(array, (*array.shape[: axes[0]], math.prod(dims), *array.shape[axes[-1] + 1 :]))
    return apply("gather", merged, _flat(indices, dims), axis=axes[0], batch_dims=0)


def _flat(indices: list[Array], dims: list[int]) -> Array:
    """One index into the merged axes."""
    dtype = index_dtype(math.prod(dims))
    flat = literal(0, dtype)
    for index, dim in zip(indices, dims, strict=True):
        clamped = index if index.value is not None else elementwise.clip(index, 0, max(dim - 1, 0))
        flat = elementwise.add(elementwise.multiply(flat, dim), cast(clamped, dtype))
    return flat


def wrapped(index: Array, dim: int) -> Array:
    """`index` counted from the front: checked if its value is known; if not, `gather` clamps what is outside."""
    if index.type.dtype.kind not in "iu":
        raise DTypeError(f"an index array has an integer dtype, got {index.type.dtype.name}")
    if index.value is not None:
        return _checked(index.value, dim)
    dtype = index_dtype(dim)
    low, high = np.iinfo(index.type.dtype.numpy).min, np.iinfo(index.type.dtype.numpy).max
    if low < np.iinfo(dtype.numpy).min or high > np.iinfo(dtype.numpy).max:  # what is far outside stays outside
        index = elementwise.clip(index, -dim - 1 if low else 0, dim)
    narrow = cast(index, dtype)
    if not low:
        return narrow
    return elementwise.where(elementwise.less(narrow, 0), elementwise.add(narrow, dim), narrow)


def _checked(value: NDArray[Any], dim: int) -> Array:
    outside = (value < -dim) | (value >= dim)
    if outside.any():
        raise InputError(f"index {value[outside].flat[0]} is outside an axis of {dim}")
    counted = np.where(value < 0, value.astype(np.int64) + dim, value)
    return asarray(counted.astype(index_dtype(dim).numpy))


def _index_literal(item: int) -> Array:
    return literal(item, I64)


def _before(left: Array, right: Array) -> Array:
    """left sorts before right, NaN last."""
    smaller = elementwise.less(left, right)
    if left.type.dtype.kind != "f":
        return smaller
    return elementwise.logical_or(
        smaller, elementwise.logical_and(elementwise.isnan(right), elementwise.logical_not(elementwise.isnan(left)))
    )
