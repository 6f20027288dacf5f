"""JAX functions: traced by JAX to a jaxpr, which is then a function of our arrays.

    step = mesh.from_jax(jax.jit(train_step), params, state, x)
    params, state, loss = mesh.run(step, params, state, x)

The result takes and gives the pytrees that the function does, for the shapes and dtypes of the examples.  It may be
traced, compiled, differentiated and put into other functions like any function on arrays; gradients that JAX took (jit
of value_and_grad, an optax update) are just more primitives.  JAX is needed to import, not to run.

A primitive is a row of PRIMITIVES: a function from (values, parameters of the equation) to values.  Keys of
`jax.random` are arrays u32 (..., 2) here, as `jax.random.PRNGKey` makes them.  Reference: docs.jax.dev, "Understanding
jaxprs".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wire.errors import ConfigError, InputError

from ...array import Array
from ...numpy.promotion import asarray
from .interpret import call, check_supported, type_of


def from_jax(fn: Callable[..., Any], *examples: Any) -> Callable[..., Any]:
    """`fn`, which JAX can trace, as a function of Arrays for arguments like `examples` (arrays, or anything of a shape
    and a dtype).

    ConfigError if JAX is not installed, Unsupported listing all primitives and dtypes that are not known.
    """
    try:
        import jax
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"from_jax needs {error.name!r}, which is not installed", next_step="pip install 'graph-mesh[jax]'"
        ) from None
    shapes = jax.tree_util.tree_map(lambda leaf: _example(jax, leaf), examples)
    closed, result = jax.make_jaxpr(fn, return_shape=True)(*shapes)
    check_supported(closed.jaxpr, getattr(fn, "__name__", "the function"))
    in_tree: Any
    in_tree, out_tree = jax.tree_util.tree_structure(examples), jax.tree_util.tree_structure(result)
    kinds = [type_of(var.aval) for var in closed.jaxpr.invars]
    constants = [np.asarray(constant) for constant in closed.consts]

    def imported(*args: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten(args)
        if structure != in_tree:
            raise InputError(f"the arguments differ in structure: imported with {in_tree}, called with {structure}")
        given = [_fitting(leaf, kind, place) for place, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True))]
        found = call(closed.jaxpr, [asarray(constant) for constant in constants], given)
        return jax.tree_util.tree_unflatten(out_tree, found)

    imported.__name__ = getattr(fn, "__name__", "imported")
    imported.__doc__ = getattr(fn, "__doc__", None)
    return imported


def _example(jax: Any, leaf: Any) -> Any:
    """An example as JAX sees it: our Arrays and handles by their types alone."""
    if hasattr(leaf, "__tree_leaf__"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


def _fitting(leaf: Any, kind: Any, place: int) -> Array:
    array = asarray(leaf)
    if array.weak or not hasattr(leaf, "dtype"):
        array = asarray(array, kind.dtype.numpy)
    if array.type != kind:
        raise InputError(f"leaf {place} of the arguments is {array.type}, the function was imported for {kind}")
    return array


__all__ = ["from_jax"]
