"""From functions of pytrees to functions of lists of arrays, and back: what the transforms' public faces share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from wire.dtypes import C64, C128, F32, F64
from wire.errors import InputError
from wire.types import Attrs, TensorType

from .. import tree
from ..array import Array, literal, strong
from ..calls import apart, called, check_call
from ..closures import referred
from ..expression import Expression, Tensor
from ..handle import Handle
from ..numpy.creation import zeros_like
from ..numpy.promotion import asarray, cast, is_python_scalar
from ..trace import OUTPUT, argument_names, leaf_type
from ..tree import Tree


class Flat:
    """`fn` as a function of the leaves of its first arguments, which are as `calls.taken` has them.

    Beside arrays of 64-bit floats, Python's floats are passed on in 64 bits (`arrays`); `fn` sees them as numbers,
    which are float32 by default.

    `keywords` are part of it.  With `has_aux` it returns a pair, and only the first of it counts.  `out_tree` and
    `aux_tree` are known once it was called; `names` are for errors, and `roots` the arguments' own.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        keywords: Mapping[str, Any] | None = None,
        has_aux: bool = False,
        roots: Sequence[str] = (),
    ) -> None:
        leaves, self.in_tree = tree.flatten(tuple(args))
        given, by_name = apart(args)
        check_call(fn, given, {**by_name, **(keywords or {})})
        self.names = argument_names(fn, self.in_tree) if not roots else [
            tree.join(root, path)
            for root, child in zip(roots, self.in_tree.children, strict=True)
            for path in tree.paths(child)
        ]  # fmt: skip
        arrays = [as_array(leaf, name) for leaf, name in zip(leaves, self.names, strict=True)]
        self.arrays = precise(arrays, fn)
        self._types = [array.type for array in arrays]
        self._fn = partial(fn, **keywords) if keywords else fn
        self._has_aux = has_aux
        self.out_tree = self.aux_tree = tree.LEAF
        self.out_names: list[str] = []

    def __call__(self, *leaves: Array) -> list[Array]:
        """The leaves of the result, then those of aux."""
        result = called(self._fn, self.arguments(leaves))
        aux = ()
        if self._has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise InputError("with has_aux=True the function returns a pair (result, aux)")
            result, aux = result
        found, self.out_tree = tree.flatten_with_paths(result)
        others, self.aux_tree = tree.flatten(aux)
        self.out_names = [path or OUTPUT for path, _ in found]
        given = zip((*[leaf for _, leaf in found], *others), (*self.out_names, *["aux"] * len(others)), strict=True)
        return [_result(leaf, name) for leaf, name in given]

    def results(self, arrays: Sequence[Any]) -> tuple[Any, Any]:
        """The result and aux made of leaves as `__call__` gives them."""
        count = self.out_tree.leaf_count
        return tree.unflatten(self.out_tree, arrays[:count]), tree.unflatten(self.aux_tree, arrays[count:])

    def arguments(self, leaves: Sequence[Any]) -> Any:
        """What has the arguments' structure, with other leaves."""
        return tree.unflatten(self.in_tree, [_narrowed(*each) for each in zip(leaves, self._types, strict=True)])


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The names of the first `count` parameters."""
    return argument_names(fn, Tree(tuple, tuple(range(count)), (tree.LEAF,) * count))


def as_array(leaf: Any, name: str) -> Array:
    """A leaf of an argument as an Array; a Python scalar stays one that adapts.  InputError names what is no array."""
    if isinstance(leaf, Array):
        return Array(leaf.tensor)
    type = leaf_type(name, leaf)
    if is_python_scalar(leaf):
        return literal(leaf, type.dtype, weak=True)
    return asarray(leaf)


def precise(arrays: Sequence[Array], *functions: Callable[..., Any], beside: Sequence[Array] = ()) -> list[Array]:
    """`arrays` with Python's floats in 64 bits if any of them, of those beside them, or of those that the functions
    refer to, has floats of 64 bits."""
    if not any(array.tensor.wide for array in arrays):
        return list(arrays)
    met = (*arrays, *beside, *[each for fn in functions for _, each in referred(fn)])
    if not any(each.dtype in (F64.numpy, C128.numpy) for each in met):
        return list(arrays)
    return [Array(array.tensor.wide or array.tensor) for array in arrays]


def _narrowed(leaf: Any, type: TensorType) -> Any:
    """A leaf in the dtype that its argument had before it was widened; a Python number has its 64 bits still."""
    if not isinstance(leaf, Array) or (leaf.type.dtype, type.dtype) not in ((F64, F32), (C128, C64)):
        return leaf
    expression = Expression("cast", (leaf.tensor,), Attrs({"dtype": type.dtype.name}))
    narrow = leaf.type._replace(dtype=type.dtype)  # batches have an axis more
    return Array(Tensor(expression, narrow, leaf.weak, None, leaf.tensor if leaf.weak else None))


def arrays_in(value: Any) -> Any:
    """`value` with its arrays and handles as Arrays; anything else stays what it is."""
    if not any(isinstance(leaf, _ARRAYS) for leaf in tree.leaves(value)):
        return value
    return tree.map(lambda leaf: asarray(leaf) if isinstance(leaf, _ARRAYS) else leaf, value)


_ARRAYS = (Handle, np.ndarray, np.generic)


def fitting(value: Any, like: Array, what: str) -> Array:
    """`value` as an Array of the type of `like`; a Python scalar adapts.  InputError if it does not fit."""
    array = as_array(value, what)
    if array.weak or (like.weak and array.type.dtype.kind == like.type.dtype.kind):
        array = strong(cast(array, like.type.dtype))
    if array.type != like.type:
        raise InputError(f"{what} is {array.type}, expected {like.type}")
    return array


def same_structure(expected: Tree, value: Any, what: str, prefix: bool = False) -> list[Any]:
    """The leaves of `value`, None standing for all below it, and with `prefix` any leaf; InputError if it has another
    structure."""
    try:
        return tree.spread(value, expected, prefix)
    except InputError as error:
        raise InputError(f"{what} differs in structure: {error.message}") from error


def zeros_for_none(derivatives: Sequence[Array | None], like: Sequence[Array]) -> list[Array]:
    """Derivatives of `like`, those that are zero as arrays too."""
    return [zeros_like(array) if found is None else found for found, array in zip(derivatives, like, strict=True)]


def _result(leaf: Any, name: str) -> Array:
    if isinstance(leaf, Array):
        return leaf
    if is_python_scalar(leaf) or isinstance(leaf, _ARRAYS):
        return as_array(leaf, name)
    raise InputError(f"the function returned a {type(leaf).__name__} at {name!r}, not an array")
