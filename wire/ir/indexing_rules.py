"""Shape and dtype rules of ops that read or write where another operand says.

As in `rules.py`, a rule's name and docstring are what others see of it.
"""

from __future__ import annotations

from ..errors import AttrError, DTypeError, ShapeError
from .dtypes import DType
from .rules import KIND_NAMES, Types, axis_of, dims, same_dtype
from .types import Attrs


def gathered(attrs: Attrs, types: Types) -> DType:
    """The first operand's dtype; the second is an integer."""
    same_dtype(types[1:2], "iu")
    return types[0].dtype


def gather_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """data[:axis] + indices[batch_dims:] + data[axis + 1:]; the first batch_dims axes of both are paired."""
    data, indices = types[0].shape, types[1].shape
    axis, batch = axis_of(attrs["axis"], len(data)), attrs["batch_dims"]
    if not 0 <= batch <= min(axis, len(indices)) or data[:batch] != indices[:batch]:
        raise ShapeError(f"gather of {data} by {indices}: batch_dims {batch} do not match")
    if data[axis] == 0 and 0 not in data[:axis] + indices + data[axis + 1 :]:
        raise ShapeError(f"gather from an empty axis: shape {data}, axis {axis}")
    return data[:axis] + indices[batch:] + data[axis + 1 :]


_SCATTERED = {"set": "biufc", "add": "iufc"}


def scattered_in(attrs: Attrs, types: Types) -> DType:
    """The common dtype of data and updates: any for the mode `set`, a number for `add`, and an ordered one for the
    others; the indices are integers."""
    same_dtype(types[1:2], "iu")
    dtype = same_dtype((types[0], types[2]), "biufc")
    kinds = _SCATTERED.get(attrs["mode"], "iuf")
    if dtype.kind not in kinds:
        raise DTypeError(f"scatter mode {attrs['mode']!r} needs {KIND_NAMES[kinds]}, got {dtype.name}")
    return dtype


SCATTER_MODES = ("set", "add", "max", "min")


def scatter_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of data; updates have shape data[:axis] + indices + data[axis + 1:]."""
    data, indices, updates = (t.shape for t in types)
    axis = axis_of(attrs["axis"], len(data))
    if attrs["mode"] not in SCATTER_MODES:
        raise AttrError(f"scatter mode {attrs['mode']!r}; known: {', '.join(SCATTER_MODES)}")
    expected = data[:axis] + indices + data[axis + 1 :]
    if updates != expected:
        raise ShapeError(f"scatter into {data} along axis {axis} by {indices} needs updates {expected}, got {updates}")
    return data


def windowed(attrs: Attrs, types: Types) -> DType:
    """The common dtype of all operands except the last, which is an integer."""
    same_dtype(types[-1:], "iu")
    return same_dtype(types[:-1], "biufc")


def dynamic_slice_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The attribute `sizes`, none larger than the operand's; one start per axis."""
    shape, sizes = types[0].shape, dims(attrs["sizes"])
    _check_window(shape, sizes, types[1].shape)
    return sizes


def dynamic_update_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of data; the update is no larger, with one start per axis."""
    shape, update, starts = (t.shape for t in types)
    _check_window(shape, update, starts)
    return shape


def _check_window(shape: tuple[int, ...], window: tuple[int, ...], starts: tuple[int, ...]) -> None:
    if starts != (len(shape),):
        raise ShapeError(f"starts has one entry per axis, shape ({len(shape)},), got {starts}")
    if len(window) != len(shape) or any(size > dim for size, dim in zip(window, shape, strict=True)):
        raise ShapeError(f"a window of {window} does not fit in {shape}")
