"""Derivatives of functions of pytrees: vjp, grad, value_and_grad, jvp, jacobian, hessian.

    loss, gradient = mesh.value_and_grad(loss_of)(params, batch)

They take what traced functions take (numpy arrays, Arrays, handles, Python scalars, pytrees of these) and give lazy
Arrays; outside of a traced function these are computed when someone looks.  Derivatives have the dtype of what they
are of; a Python float is float64 where the function needs it so, else float32.  Only floats and complex numbers have
them: where an integer stands among the arguments of `vjp` or `jvp`, its derivative is None.  Cotangents of complex
numbers are not conjugated (docs/transforms.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from wire.errors import InputError

from .. import numpy as mnp
from .. import tree
from ..core.array import Array, literal
from ..core.call_arguments import check_call, merge_arguments, split_arguments
from ..tree import PyTree
from ..util.annotation_checks import truth
from ..util.argument_checks import check_function, integer, items
from ..util.units import counted
from .jvp_rules import forward_of
from .pytree_functions import Flat, arrays_in, fitting, parameter_names, same_structure, zeros_for_none
from .step_list import Inner
from .vjp_rules import backward_of, is_continuous
from .vmap_rules import batch, repeated

Function = Callable[..., Any]


def vjp(fn: Function, *primals: PyTree, has_aux: bool = False) -> tuple[Any, ...]:
    """Compute a function, and the function that pulls cotangents back (reverse mode).

    Parameters
    ----------
    fn : callable
        A function of arrays.
    *primals : pytree of Array
        Its arguments.
    has_aux : bool, optional
        Whether `fn` returns a pair (result, aux).

    Returns
    -------
    result : pytree of Array
        The result of `fn`.
    pull : callable
        From a cotangent, with the structure and types of the result and None for zero, to the tuple of the cotangents
        of the arguments.
    aux : pytree of Array
        What else `fn` returns, with `has_aux`.

    Raises
    ------
    InputError
        If a cotangent differs from the result in structure or type.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> y, pull = mesh.vjp(lambda x: x * x, mnp.asarray([1.0, 3.0]))
    >>> pull(mnp.ones(2))
    (Array([2., 6.], dtype=float32),)
    """
    check_function(fn, "what vjp differentiates")
    flat = Flat(fn, primals, has_aux=has_aux)
    outputs, pull_back = backward_of(flat.run(), flat.arrays)
    result, aux = flat.results(outputs)
    count = flat.out_tree.leaf_count

    def pull(cotangent: PyTree) -> PyTree:
        cotangents_of_leaves = same_structure(flat.out_tree, cotangent, "the cotangent")
        cotangents = [
            None
            if value is None or not is_continuous(output.type)
            else fitting(value, output, f"the cotangent of {name!r}")
            for value, output, name in zip(cotangents_of_leaves, outputs, flat.out_names, strict=False)
        ]
        pulled = pull_back([*cotangents, *[None] * (len(outputs) - count)])
        return flat.arguments(_filled(pulled, flat.arrays))

    return (result, pull, aux) if has_aux else (result, pull)


def grad(fn: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Make the function that computes the gradient of a function.

    Parameters
    ----------
    fn : callable
        A function of arrays that returns one float.
    argnums : int or sequence of int, optional
        The arguments to differentiate by.
    has_aux : bool, optional
        Whether `fn` returns a pair (float, aux).

    Returns
    -------
    callable
        From the arguments of `fn` to the gradient, which has the structure and dtypes of the argument; to a tuple of
        gradients if `argnums` is a sequence; and to (gradient, aux) with `has_aux`.

    Raises
    ------
    InputError
        If `fn` does not return one float, or an argument is not of floats.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.grad(lambda p, x: (p["w"] * x).sum())({"w": mnp.ones(3)}, mnp.arange(3.0))
    {'w': Array([0., 1., 2.], dtype=float32)}
    """
    check_function(fn, "what grad differentiates")
    both = value_and_grad(fn, argnums, has_aux)

    @wraps(fn)
    def gradient(*args: PyTree, **keywords: PyTree) -> PyTree:
        value, slope = both(*args, **keywords)
        return (slope, value[1]) if has_aux else slope

    return gradient


def value_and_grad(fn: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Make the function that computes a function's value and its gradient.

    Parameters
    ----------
    fn : callable
        A function of arrays that returns one float.
    argnums : int or sequence of int, optional
        The arguments to differentiate by.
    has_aux : bool, optional
        Whether `fn` returns a pair (float, aux).

    Returns
    -------
    callable
        From the arguments of `fn` to (value, gradient), and to ((value, aux), gradient) with `has_aux`.

    Raises
    ------
    InputError
        If `fn` does not return one float, or an argument is not of floats.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.value_and_grad(lambda x: (x * x).sum())(mnp.arange(3.0))
    (Array(5., dtype=float32), Array([0., 2., 4.], dtype=float32))
    """
    check_function(fn, "what value_and_grad differentiates")
    truth(has_aux, "has_aux")
    several, places = _chosen(argnums)

    @wraps(fn)
    def value_and_gradient(*args: PyTree, **keywords: PyTree) -> PyTree:
        flat = _of_arguments(fn, places, args, keywords, has_aux)
        _check_continuous("grad", flat)
        outputs, pull_back = backward_of(flat.run(), flat.arrays)
        _check_scalar(outputs, flat)
        seed = literal(1, outputs[0].type.dtype, outputs[0].weak)
        slopes = flat.arguments(_filled(pull_back([seed, *[None] * (len(outputs) - 1)]), flat.arrays))
        value, aux = flat.results(outputs)
        return ((value, aux) if has_aux else value), (slopes if several else slopes[0])

    return value_and_gradient


def jvp(fn: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> tuple[Any, ...]:
    """Compute a function and its derivative along a direction (forward mode).

    Parameters
    ----------
    fn : callable
        A function of arrays.
    primals : sequence of pytree
        Its arguments.
    tangents : sequence of pytree
        The direction, with the structure and types of the arguments; None for zero.
    has_aux : bool, optional
        Whether `fn` returns a pair (result, aux).

    Returns
    -------
    result : pytree of Array
        The result of `fn`.
    tangent : pytree of Array
        Its derivative along the direction.
    aux : pytree of Array
        What else `fn` returns, with `has_aux`.

    Raises
    ------
    InputError
        If tangents differ from the arguments in structure or type.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.jvp(lambda x: x * x, (mnp.asarray(3.0),), (mnp.asarray(1.0),))
    (Array(9., dtype=float32), Array(6., dtype=float32))
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise InputError("jvp takes a tuple of primals and one of tangents", next_step="jvp(f, (x,), (t,))")
    check_function(fn, "what jvp differentiates")
    flat = Flat(fn, primals, has_aux=has_aux)
    inner = flat.run()
    tangents_of_leaves = same_structure(flat.in_tree, tuple(tangents), "the tangents")
    moving = [
        None if value is None or not is_continuous(primal.type) else fitting(value, primal, f"the tangent of {name!r}")
        for value, primal, name in zip(tangents_of_leaves, flat.arrays, flat.names, strict=True)
    ]
    outputs, moved = forward_of(inner, flat.arrays, moving)
    result, aux = flat.results(outputs)
    tangent, _ = flat.results(_filled(moved, outputs))
    return (result, tangent, aux) if has_aux else (result, tangent)


def jacobian(fn: Function, argnums: int | Sequence[int] = 0, mode: str | None = None) -> Function:
    """Make the function that computes all derivatives of a function.

    Parameters
    ----------
    fn : callable
        A function of arrays that returns floats.
    argnums : int or sequence of int, optional
        The arguments to differentiate by.
    mode : {"forward", "reverse"}, optional
        By columns or by rows; by default the one that takes fewer passes.

    Returns
    -------
    callable
        From the arguments of `fn` to the derivatives: a leaf of shape R by one of shape A has shape R + A, in the
        structure of the result with the arguments' inside.

    Raises
    ------
    InputError
        If `fn` returns something else than floats, or an argument is not of floats.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.jacobian(lambda x: x[:2] * x[2])(mnp.asarray([1.0, 2.0, 3.0]))
    Array([[3., 0., 1.],
           [0., 3., 2.]], dtype=float32)
    """
    if not isinstance(mode, str | None) or mode not in (None, "forward", "reverse"):
        raise InputError(f"mode is 'forward' or 'reverse', got {mode!r}")
    check_function(fn, "what jacobian differentiates")
    several, places = _chosen(argnums)

    @wraps(fn)
    def derivatives(*args: PyTree, **keywords: PyTree) -> PyTree:
        flat = _of_arguments(fn, places, args, keywords, False)
        _check_continuous("jacobian", flat, "f")
        inner = flat.run()
        for tensor, name in zip(inner.outputs, flat.out_names, strict=True):
            if tensor.type.dtype.kind != "f":
                raise InputError(f"jacobian needs a function that gives floats, got {tensor.type} at {name!r}")
        fewer = sum(array.size for array in flat.arrays) < sum(tensor.type.size for tensor in inner.outputs)
        by_columns = mode == "forward" or (mode is None and fewer)
        rows = (_by_columns if by_columns else _by_rows)(inner, flat.arrays)
        rows_of_arguments = [flat.arguments(row) if several else flat.arguments(row)[0] for row in rows]
        return tree.unflatten(flat.out_tree, rows_of_arguments)

    return derivatives


def hessian(fn: Function, argnums: int | Sequence[int] = 0) -> Function:
    """Make the function that computes the second derivatives of a function.

    Parameters
    ----------
    fn : callable
        A function of arrays that returns one float.
    argnums : int or sequence of int, optional
        The arguments to differentiate by.

    Returns
    -------
    callable
        From the arguments of `fn` to the derivatives: for leaves of shapes A and B one of shape A + B, in the
        arguments' structure twice.

    Raises
    ------
    InputError
        If `fn` does not return one float, or an argument is not of floats.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.hessian(lambda x: (x**3).sum())(mnp.asarray([1.0, 2.0]))
    Array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    check_function(fn, "what hessian differentiates")
    return jacobian(grad(fn, argnums), argnums, mode="forward")


# -- helpers ----------------------------------------------------------------------------------------------


def _chosen(argnums: Any) -> tuple[bool, tuple[int, ...]]:
    """Whether `argnums` are several, and the places of arguments that they give."""
    several = isinstance(argnums, Iterable)
    listed = items(argnums, "as argnums") if several else [argnums]
    return several, tuple([integer(number, "argnums") for number in listed])


def _of_arguments(
    fn: Function, argnums: Sequence[int], args: Sequence[Any], keywords: Mapping[str, Any], has_aux: bool
) -> Flat:
    """`fn` as a function of some of its arguments."""
    args, keywords = split_arguments(merge_arguments(fn, args, keywords))
    check_call(fn, args, keywords)
    for place in argnums:
        if not -len(args) <= place < len(args):
            raise InputError(f"argnums has {place}, but the function was called with {counted(len(args), 'argument')}")
    places = tuple([place % len(args) for place in argnums])
    others = [arrays_in(value) if place not in places else value for place, value in enumerate(args)]

    def of_some(*chosen: PyTree, **keywords: PyTree) -> PyTree:
        every = list(others)
        for place, value in zip(places, chosen, strict=True):
            every[place] = value
        return fn(*every, **keywords)

    fixed = {name: arrays_in(value) for name, value in keywords.items()}
    roots = parameter_names(fn, len(args))
    return Flat(of_some, [args[place] for place in places], fixed, has_aux, [roots[place] for place in places])


def _check_continuous(what: str, flat: Flat, kinds: str = "fc") -> None:
    for array, name in zip(flat.arrays, flat.names, strict=True):
        kind = array.type.dtype.kind
        if kind not in kinds:
            complex_only = kind == "c"
            raise InputError(
                f"{what} by {name!r}, which is {array.type}: "
                + ("it has two derivatives" if complex_only else "only floats have derivatives"),
                next_step="Give the function its real and its imaginary part"
                if complex_only
                else "Choose other argnums, or convert it with astype",
            )


def _check_scalar(outputs: Sequence[Array], flat: Flat) -> None:
    result = outputs[0].type if outputs else None
    if flat.out_tree.kind is not None or result is None or result.shape or result.dtype.kind != "f":
        raise InputError(
            f"grad needs a function that gives one float, got {flat.out_tree if flat.out_tree.kind else result}",
            next_step="Reduce the result (sum, mean, the real part), use mesh.jacobian, or has_aux=True for what else "
            "it gives",
        )


def _filled(derivatives: Sequence[Array | None], like: Sequence[Array]) -> list[Array | None]:
    """Derivatives with zeros where there is none, and None where there can be none."""
    return [
        mnp.zeros_like(array) if derivative is None and is_continuous(array.type) else derivative
        for derivative, array in zip(derivatives, like, strict=True)
    ]


def _basis(arrays: Sequence[Array]) -> list[Array]:
    """A batch for each array, with a row for every element of all of them: 1 at that element."""
    total = sum(array.size for array in arrays)
    batches, first = [], 0
    for array in arrays:
        ones = mnp.eye(total, array.size, k=-first, dtype=array.dtype)
        batches.append(mnp.reshape(ones, (total, *array.shape)))
        first += array.size
    return batches


def _by_columns(inner: Inner, primals: Sequence[Array]) -> list[list[Array]]:
    """The derivatives of each result by each argument, with a forward pass per element of the arguments."""

    def column(*tangents: Array) -> list[Array]:
        outputs, moved = forward_of(inner, primals, tangents)
        return zeros_for_none(moved, outputs)

    return [_cut(columns, primals, last=True) for columns in _passes(column, primals)]


def _by_rows(inner: Inner, primals: Sequence[Array]) -> list[list[Array]]:
    """The derivatives of each result by each argument, with a backward pass per element of the results."""
    outputs, pull_back = backward_of(inner, primals)

    def row(*cotangents: Array) -> list[Array]:
        return zeros_for_none(pull_back(cotangents), primals)

    cuts = [_cut(rows, outputs, last=False) for rows in _passes(row, outputs)]
    return [[cut[place] for cut in cuts] for place in range(len(outputs))]


def _passes(one: Callable[..., list[Array]], arrays: Sequence[Array]) -> list[Array]:
    """The results of `one` for every element of all `arrays` in turn: given 1 there and 0 elsewhere."""
    basis = _basis(arrays)
    total = sum(array.size for array in arrays)
    results, batched = batch(one, total, basis, [True] * len(basis))
    return [array if flag else repeated(array, total) for array, flag in zip(results, batched, strict=True)]


def _cut(array: Array, like: Sequence[Array], last: bool) -> list[Array]:
    """A batch with a row per element of all of `like`, as one array for each, its dimensions first or `last`."""
    parts, first = [], 0
    for argument in like:
        part = array[first : first + argument.size]
        first += argument.size
        rest = array.shape[1:]
        if last:
            parts.append(mnp.reshape(mnp.moveaxis(part, 0, -1), (*rest, *argument.shape)))
        else:
            parts.append(mnp.reshape(part, (*argument.shape, *rest)))
    return parts
