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

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from wire.errors import ConfigError, DTypeError, InputError

from ...core.array import Array
from ...numpy.promotion import asarray
from ...util.argument_checks import check_function
from .interpret import call, check_supported, type_of


def from_jax(fn: Callable[..., Any], *examples: Any) -> Callable[..., Any]:
    """Convert a function that JAX can trace to a function of Arrays.

    Parameters
    ----------
    fn : callable
        A function of JAX's arrays.
    *examples : pytree
        Arguments like those of the calls to come: arrays, or anything with a shape and a dtype.

    Returns
    -------
    callable
        The function of arguments with these shapes and dtypes.  As in JAX, 64 bits become 32, unless jax_enable_x64 is
        set.

    Raises
    ------
    ConfigError
        If JAX is not installed.
    InputError
        If an example is no array, or results are no arrays.
    Unsupported
        If there are primitives or dtypes that are not known; it lists all of them.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import mesh
    >>> norm = mesh.from_jax(lambda x: jnp.sqrt(jnp.sum(x * x)), np.ones(2, np.float32))
    >>> norm(np.array([3.0, 4.0], np.float32))
    Array(5., dtype=float32)
    """
    try:
        import jax
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"from_jax needs {error.name!r}, which is not installed", next_step="pip install 'graph-mesh[jax]'"
        ) from None
    check_function(fn, "what from_jax takes")
    in_tree: Any
    leaves, in_tree = jax.tree_util.tree_flatten_with_path(examples)
    shapes = [_example(jax, f"examples{jax.tree_util.keystr(path)}", leaf) for path, leaf in leaves]
    try:
        closed, result = jax.make_jaxpr(fn, return_shape=True)(*jax.tree_util.tree_unflatten(in_tree, shapes))
    except TypeError as error:
        if "returned a value of type" not in str(error):  # JAX's words for a result; others come from `fn` itself
            raise
        raise InputError("what from_jax takes gives arrays", cause=str(error)[:200]) from error
    check_supported(closed.jaxpr, getattr(fn, "__name__", "the function"))
    out_tree = jax.tree_util.tree_structure(result)
    kinds = [type_of(var.aval) for var in closed.jaxpr.invars]
    constants = [np.asarray(constant) for constant in closed.consts]
    narrowed = {name: jax.eval_shape(_itself, np.zeros((), name)).dtype.name for name in _WIDE}

    def imported(*args: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten(args)
        if structure != in_tree:
            raise InputError(f"the arguments differ in structure: imported with {in_tree}, called with {structure}")
        fitted = [
            _fitting(leaf, kind, place, narrowed) for place, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True))
        ]
        results = call(closed.jaxpr, [asarray(constant) for constant in constants], fitted)
        return jax.tree_util.tree_unflatten(out_tree, results)

    imported.__name__ = getattr(fn, "__name__", "imported")
    imported.__doc__ = getattr(fn, "__doc__", None)
    return imported


_WIDE = ("float64", "int64", "uint64", "complex128")


def _itself(x: Any) -> Any:
    return x


def _example(jax: ModuleType, where: str, leaf: Any) -> Any:
    """An example as JAX sees it: its type; our Arrays and handles by theirs alone."""
    if hasattr(leaf, "__tree_leaf__"):
        leaf = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    try:
        seen = jax.eval_shape(_itself, leaf)
        type_of(seen)
    except (TypeError, OverflowError, DTypeError):
        what = f"of dtype {leaf.dtype}" if hasattr(leaf, "dtype") else f"{leaf!r:.40} of class {type(leaf).__name__}"
        raise InputError(
            f"{where} is {what}, which makes no array of JAX and of a graph",
            next_step="Give arrays, numbers or pytrees of them, and bind all else before: functools.partial(fn, ...)",
        ) from None
    return seen


def _fitting(leaf: Any, kind: Any, place: int, narrowed: Mapping[str, str]) -> Array:
    array = asarray(leaf)
    number = array.weak or not hasattr(leaf, "dtype")
    if number or narrowed.get(str(array.dtype)) == kind.dtype.numpy.name:
        array = asarray(leaf, kind.dtype.numpy)
    if array.type != kind:
        raise InputError(f"leaf {place} of the arguments is {array.type}, the function was imported for {kind}")
    return array


__all__ = ["from_jax"]
