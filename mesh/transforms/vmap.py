"""vmap: a function of single elements as one of whole batches, over pytrees.

distances = mesh.vmap(mesh.vmap(distance, in_axes=(None, 0)), in_axes=(0, None))(points, points)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from wire.errors import InputError
from wire.ir.types import TensorType

from .. import numpy as mnp
from .. import tree
from ..core.array import Array
from ..core.call_arguments import check_call
from ..tree import PyTree
from ..util.argument_checks import check_function, native
from ..util.units import counted
from .pytree_functions import Flat, parameter_names, same_structure
from .vmap_rules import batch_of, repeated


def vmap(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Map a function over an axis of its arguments, as one function of whole arrays.

    Parameters
    ----------
    fn : callable
        A function of one element.
    in_axes : int, None, or tuple of pytrees of these, optional
        The axis of each argument that has the elements, or one for all; an int stands for all leaves below it.  None is
        an argument that is the same for every element.  Arguments by name are mapped over axis 0.
    out_axes : int, None, or pytree of these, optional
        That axis of each result; None is a result that does not depend on the element.

    Returns
    -------
    callable
        The function of all elements.

    Raises
    ------
    InputError
        If axes do not fit the arguments, or arguments differ in their number of elements.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.vmap(lambda x, w: (x * w).sum(), in_axes=(0, None))(mnp.ones((3, 2)), mnp.arange(2.0))
    Array([1., 1., 1.], dtype=float32)
    """
    check_function(fn, "what vmap maps")

    @wraps(fn)
    def mapped(*args: PyTree, **keywords: PyTree) -> PyTree:
        check_call(fn, args, keywords)
        flat = Flat(
            lambda *leading: fn(*leading[:-1], **leading[-1]),
            (*args, keywords),
            roots=(*parameter_names(fn, len(args)), ""),
        )
        per_argument = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
        if len(per_argument) != len(args):
            raise InputError(f"in_axes is for {counted(len(per_argument), 'argument')}, and the call has {len(args)}")
        axes = same_structure(flat.in_tree, (*per_argument, 0), "in_axes", prefix=True)
        axes = [_normal(axis, array, name) for axis, array, name in zip(axes, flat.arrays, flat.names, strict=True)]
        size = _size(axes, flat)
        inner = flat.run([_of_one(array, axis) for array, axis in zip(flat.arrays, axes, strict=True)])
        rows = [
            array if axis is None else mnp.moveaxis(array, axis, 0)
            for array, axis in zip(flat.arrays, axes, strict=True)
        ]
        results, batched = batch_of(inner, size, rows, [axis is not None for axis in axes])
        places = same_structure(flat.out_tree, out_axes, "out_axes", prefix=True)
        placed = [
            _placed(result, flag, axis, size, name)
            for result, flag, axis, name in zip(results, batched, places, flat.out_names, strict=True)
        ]
        return tree.unflatten(flat.out_tree, placed)

    return mapped


def _normal(axis: Any, array: Array, name: str) -> int | None:
    if axis is None:
        return None
    axis = native(axis)
    if not isinstance(axis, int):
        raise InputError(f"in_axes has {axis!r} for {name!r}: expected an int or None")
    if not -array.ndim <= axis < array.ndim:
        raise InputError(f"in_axes has {axis} for {name!r}, which is {array.type}")
    return axis % array.ndim


def _of_one(array: Array, axis: int | None) -> TensorType:
    """What the function gets of the argument: one element of it, unless it has none."""
    return array.type if axis is None else array.type._replace(shape=(*array.shape[:axis], *array.shape[axis + 1 :]))


def _size(axes: list[int | None], flat: Flat) -> int:
    sizes = {
        name: array.shape[axis]
        for axis, array, name in zip(axes, flat.arrays, flat.names, strict=True)
        if axis is not None
    }
    if not sizes:
        raise InputError("vmap needs one argument at least that is mapped over", next_step="Set in_axes")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        raise InputError(f"the mapped axes differ in size: {listed}")
    return next(iter(sizes.values()))


def _placed(result: Array, batched: bool, axis: Any, size: int, name: str) -> Array:
    if axis is None:
        if batched:
            raise InputError(
                f"out_axes is None for {name!r}, which depends on the element", next_step="Give it an axis"
            )
        return result
    if not batched:
        result = repeated(result, size)
    axis = native(axis)
    if not isinstance(axis, int) or not -result.ndim <= axis < result.ndim:
        raise InputError(f"out_axes has {axis!r} for {name!r}, which is {result.type} with its batch")
    return mnp.moveaxis(result, 0, axis)
