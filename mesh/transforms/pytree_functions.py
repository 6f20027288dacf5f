"""Functions of pytrees as functions of lists of arrays, and back: what all public transforms share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from wire.errors import InputError
from wire.ir.types import TensorType

from .. import tree
from ..core.array import WIDER, Array, literal, strong
from ..core.call_arguments import call_with, check_call, split_arguments
from ..core.handle import Handle
from ..numpy.creation import zeros_like
from ..numpy.promotion import asarray, cast, is_python_scalar
from ..tracing.trace import OUTPUT, argument_names, leaf_type
from ..tree import PyTree, Tree
from ..util.annotation_checks import truth
from .step_list import Function, Inner, run


class Flat:
    """`fn` as a function of the leaves of its first arguments, which are as `merge_arguments` returns them.

    Once it was `run`, those of Python's floats among `arrays` have 64 bits that its results need so; `fn` sees them as
    numbers, which are float32 by default.

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
        placed, by_name = split_arguments(args)
        check_call(fn, placed, {**by_name, **(keywords or {})})
        self.names = argument_names(fn, self.in_tree) if not roots else [
            tree.join(root, path)
            for root, child in zip(roots, self.in_tree.children, strict=True)
            for path in tree.paths(child)
        ]  # fmt: skip
        self.arrays = [as_array(leaf, name) for leaf, name in zip(leaves, self.names, strict=True)]
        self._fn = partial(fn, **keywords) if keywords else fn
        self._has_aux = truth(has_aux, "has_aux")
        self.out_tree = self.aux_tree = tree.LEAF
        self.out_names: list[str] = []

    def __call__(self, *leaves: Array) -> list[Array]:
        """The leaves of the result, then those of aux."""
        result = call_with(self._fn, self.arguments(leaves))
        aux = ()
        if self._has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise InputError("with has_aux=True the function returns a pair (result, aux)")
            result, aux = result
        pairs, self.out_tree = tree.flatten_with_paths(result)
        others, self.aux_tree = tree.flatten(aux)
        self.out_names = [path or OUTPUT for path, _ in pairs]
        named = zip((*[leaf for _, leaf in pairs], *others), (*self.out_names, *["aux"] * len(others)), strict=True)
        return [_result(leaf, name) for leaf, name in named]

    def run(self, types: Sequence[TensorType] = ()) -> Inner:
        """What `fn` does with the arguments; `types` are those it gets where it does not get all of them."""
        (inner,) = self.fit(self.run_as(self, types))
        return inner

    def run_as(self, fn: Function, types: Sequence[TensorType] = ()) -> Inner:
        """What another function does with the same arguments, to be made to `fit`."""
        types = types or [array.type for array in self.arrays]
        return run(fn, types, [array.weak for array in self.arrays], self.names, widens=True)

    def fit(self, *inners: Inner) -> list[Inner]:
        """The functions, taking the same `arrays`: those in 64 bits that one of them needs so."""
        places = set[int]().union(*[inner.needed_wide for inner in inners])
        self.widen(places)
        return [inner.widened(places) for inner in inners]

    def widen(self, places: Collection[int]) -> None:
        """Pass these of `arrays` in 64 bits."""
        self.arrays = in_64_bits(self.arrays, places)

    def results(self, arrays: Sequence[Any]) -> tuple[Any, Any]:
        """The result and aux made of leaves as `__call__` gives them."""
        count = self.out_tree.leaf_count
        return tree.unflatten(self.out_tree, arrays[:count]), tree.unflatten(self.aux_tree, arrays[count:])

    def arguments(self, leaves: Sequence[Any]) -> Any:
        """What has the arguments' structure, with other leaves."""
        return tree.unflatten(self.in_tree, leaves)


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


def in_64_bits(arrays: Sequence[Array], places: Collection[int]) -> list[Array]:
    """The arrays, those at these places, Python's numbers all of them, with 64 bits."""
    return [cast(array, WIDER[array.type.dtype]) if at in places else array for at, array in enumerate(arrays)]


def arrays_in(value: PyTree) -> PyTree:
    """`value` with its arrays and handles as Arrays; anything else stays what it is."""
    if not any(isinstance(leaf, _ARRAYS) for leaf in tree.leaves(value)):
        return value
    return tree.map(lambda leaf: asarray(leaf) if isinstance(leaf, _ARRAYS) else leaf, value)


_ARRAYS = (Handle, np.ndarray, np.generic)


def fitting(value: PyTree, like: Array, what: str) -> Array:
    """`value` as an Array of the type of `like`; a Python scalar adapts.  InputError if it does not fit."""
    array = as_array(value, what)
    if array.weak or (like.weak and array.type.dtype.kind == like.type.dtype.kind):
        array = strong(cast(array, like.type.dtype))
    if array.type != like.type:
        raise InputError(f"{what} is {array.type}, expected {like.type}")
    return array


def same_structure(expected: Tree, value: PyTree, what: str, prefix: bool = False) -> list[Any]:
    """The leaves of `value`, None standing for all below it, and with `prefix` any leaf; InputError if it has another
    structure."""
    try:
        return tree.spread(value, expected, prefix)
    except InputError as error:
        raise InputError(f"{what} differs in structure: {error.message}") from error


def zeros_for_none(derivatives: Sequence[Array | None], like: Sequence[Array]) -> list[Array]:
    """Derivatives of `like`, those that are zero as arrays too."""
    return [
        zeros_like(array) if derivative is None else derivative
        for derivative, array in zip(derivatives, like, strict=True)
    ]


def _result(leaf: Any, name: str) -> Array:
    if isinstance(leaf, Array):
        return leaf
    if is_python_scalar(leaf) or isinstance(leaf, _ARRAYS):
        return as_array(leaf, name)
    raise InputError(f"the function returned a {type(leaf).__name__} at {name!r}, not an array")
