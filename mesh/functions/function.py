"""`mesh.function`: a function traced once for each set of shapes and dtypes, then run as one graph.

    @mesh.function
    def step(params, x): ...

    @mesh.function(buckets={"x": 0})          # any number of rows; graphs for 1, 2, 4, 8, ... of them
    def embed(params, x): ...

    @mesh.distributed(strategy=mesh.DataParallel())     # how the mesh in use places it
    def predict(params, x): ...

A call runs on the mesh in use or in this process and gives Arrays with values; inside another traced function it is
traced as part of that one.  What the function does besides computing its result (printing, appending to a list) it does
when it is traced and not again; a traced array that it leaves behind somewhere is an error.

Buckets: a dimension that changes from call to call would make a graph for each size.  Such an axis is padded with zeros
to the next size that has a graph, and results are cut to what was asked.  This is right for functions that treat rows
apart; the first padded call of each graph is computed twice, with other rows as padding, and refused if that shows.
This file knows neither how a function is traced (`mesh/tracing/trace.py`) nor how a graph is run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.policy.strategies import Strategy, text_of

from .. import tree
from ..core.array import Array, value_array
from ..core.call_arguments import call_with, merge_arguments, positional
from ..core.expression import computable
from ..core.realise import current_evaluator
from ..tracing.trace import Part
from ..tree import PyTree
from ..util.annotation_checks import instance, several, whole
from .call_options import CallOptions
from .compiled import CompiledFunction

SIZES: tuple[int, ...] = tuple(1 << power for power in range(31))


class Function:
    """A function that is traced once for each combination of shapes and dtypes; `mesh.function` makes one.

    Parameters
    ----------
    fn : callable
        A function of arrays.
    buckets : mapping of str to int
        The arguments with an axis of any size, and that axis.
    sizes : sequence of int
        The sizes to which that axis is padded.
    out_axes : int or None
        That axis in every result; None if results have none.
    strategy : str, optional
        How the mesh in use places it, as for `Mesh.run`.

    Raises
    ------
    InputError
        If an argument is not possible.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.function(lambda x: x.sum())(mnp.arange(4.0))
    Array(6., dtype=float32)
    """

    def __init__(
        self, fn: Callable[..., Any], buckets: Mapping[str, int], sizes: Sequence[int], out_axes: int | None,
        strategy: str = "auto",
    ) -> None:  # fmt: skip
        if not callable(fn):
            raise InputError(f"{fn!r:.40} is no function")
        instance(buckets, "buckets of a function", Mapping, "a mapping of names to axes")
        sizes = several(whole, sizes, "sizes of a function")
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._compiled = CompiledFunction(fn, CallOptions(strategy))
        self._buckets = _Buckets(fn, buckets, sorted(sizes), out_axes) if buckets else None

    def __call__(self, *args: PyTree, **keywords: PyTree) -> PyTree:
        """The result as Arrays with values; errors as for `mesh.trace` and `Mesh.run`."""
        args = (positional if self._buckets else merge_arguments)(self._fn, args, keywords)
        leaves = tree.leaves(args)
        if any(isinstance(leaf, Array) and not computable(leaf.tensor) for leaf in leaves):
            return call_with(self._fn, args)
        outputs = self._buckets.call(self._run, args) if self._buckets else self._run(args)
        return tree.map(value_array, outputs)

    def __repr__(self) -> str:
        buckets = f", buckets {self._buckets.description}" if self._buckets else ""
        return f"<mesh.function {getattr(self, '__name__', 'unnamed')}{buckets}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _run(self, args: tuple[Any, ...]) -> Any:
        """The result as numpy arrays."""
        form, inputs, work = self._compiled.bind(args)
        return form.unbind(current_evaluator()(work, inputs))


@overload
def function(
    fn: Callable[..., Any], *, buckets: Mapping[str, int] = ..., sizes: Sequence[int] = ...,
    out_axes: int | None = ..., strategy: str = ...,
) -> Function: ...  # fmt: skip
@overload
def function(
    fn: None = None,
    *,
    buckets: Mapping[str, int] = ...,
    sizes: Sequence[int] = ...,
    out_axes: int | None = ...,
    strategy: str = ...,
) -> Callable[[Callable[..., Any]], Function]: ...
def function(
    fn: Callable[..., Any] | None = None,
    *,
    buckets: Mapping[str, int] | None = None,
    sizes: Sequence[int] = SIZES,
    out_axes: int | None = 0,
    strategy: str = "auto",
) -> Any:
    """Trace a function once for each combination of shapes and dtypes, as a decorator or a function.

    Parameters
    ----------
    fn : callable, optional
        A function of arrays.  Without it, the result is a decorator.
    buckets : mapping of str to int, optional
        Names of arguments, and the axis (of every leaf below) that may have any size.  It is padded with zeros to the
        next of `sizes`, so that few sizes are traced.
    sizes : sequence of int, optional
        The sizes to which that axis is padded.
    out_axes : int or None, optional
        That axis in every result; None if results have none.
    strategy : str, optional
        How the mesh in use places it, as for `Mesh.run`.

    Returns
    -------
    Function
        The function; or a decorator.

    Raises
    ------
    InputError
        If an argument is not possible.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> @mesh.function(buckets={"x": 0})
    ... def scaled(x):
    ...     return 2 * x
    >>> scaled(mnp.ones(3)), scaled(mnp.ones(5)).shape
    (Array([2., 2., 2.], dtype=float32), (5,))
    """
    if fn is None:
        return functools.partial(function, buckets=buckets, sizes=sizes, out_axes=out_axes, strategy=strategy)
    return Function(fn, dict(buckets or {}), sizes, out_axes, strategy)


@overload
def distributed(fn: Callable[..., Any], *, strategy: str | Strategy = ...) -> Function: ...
@overload
def distributed(fn: None = None, *, strategy: str | Strategy = ...) -> Callable[[Callable[..., Any]], Function]: ...
def distributed(fn: Callable[..., Any] | None = None, *, strategy: str | Strategy = "auto") -> Any:
    """Give a function a strategy, as a decorator or a function.

    Parameters
    ----------
    fn : callable, optional
        A function of arrays.  Without it, the result is a decorator.
    strategy : str or Strategy, optional
        How the mesh in use places it, as for `Mesh.run`.

    Returns
    -------
    Function
        The function, which is traced once for each combination of shapes and dtypes; or a decorator.

    Raises
    ------
    InputError
        If the strategy is not known.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> @mesh.distributed(strategy="single")
    ... def double(x):
    ...     return 2 * x
    >>> with mesh.Mesh.builder().simulate(2).build():
    ...     double(np.ones(2))
    Array([2., 2.], dtype=float64)
    """
    chosen = text_of(strategy)
    if fn is None:
        return lambda own: function(own, strategy=chosen)
    return function(fn, strategy=chosen)


class _Buckets:
    """Pads arguments to a size that has a graph, and cuts results."""

    def __init__(
        self, fn: Callable[..., Any], buckets: Mapping[str, int], sizes: Sequence[int], out_axis: int | None
    ) -> None:
        known = list(inspect.signature(fn).parameters)
        for name in buckets:
            if name not in known:
                raise InputError(f"the function has no argument {name!r}", next_step=f"It takes: {', '.join(known)}")
        if not sizes or sizes[0] < 1:
            raise InputError(f"sizes of buckets are positive, got {list(sizes)[:5]}")
        self._axes = {known.index(name): axis for name, axis in buckets.items()}
        self._names = known
        self._sizes = sizes
        self._out_axis = out_axis
        self._checked: set[Any] = set()

    @property
    def description(self) -> str:
        """The arguments with an axis of any size."""
        return ", ".join(f"{self._names[place]} axis {axis}" for place, axis in self._axes.items())

    def call(self, run: Callable[[tuple[Any, ...]], Any], args: tuple[Any, ...]) -> Any:
        count = self._count(args)
        size = next((size for size in self._sizes if size >= count), None)
        if size is None:
            raise InputError(f"a batch of {count} is larger than the largest bucket, {self._sizes[-1]}")
        if size == count:
            return run(args)
        padded = self._padded(args, size - count, _zeros)
        result = tree.map(lambda leaf: self._cut(leaf, count, size), run(padded))
        kinds = tuple([Part(value).kind for value in padded])
        if kinds not in self._checked:
            other = tree.map(lambda leaf: self._cut(leaf, count, size), run(self._padded(args, size - count, _others)))
            if not all(map(_same, tree.leaves(result), tree.leaves(other))):
                raise InputError(
                    "rows of this function depend on each other, so they cannot be padded to a bucket",
                    next_step="Leave `buckets` away, or pass a mask and take it into account",
                )
            self._checked.add(kinds)
        return result

    def _count(self, args: tuple[Any, ...]) -> int:
        counts: dict[int, str] = {}
        for place, axis in self._axes.items():
            if place >= len(args):
                raise InputError(f"the argument {self._names[place]!r} is missing")
            for leaf in tree.leaves(args[place]):
                shape = np.shape(leaf)
                if not -len(shape) <= axis < len(shape):
                    raise InputError(f"the argument {self._names[place]!r} of shape {shape} has no axis {axis}")
                counts.setdefault(shape[axis], self._names[place])
        if len(counts) != 1:
            sizes = " and ".join(f"{size} in {name!r}" for size, name in counts.items()) or "none"
            raise InputError(f"the batch has one size, got {sizes}")
        (count,) = counts
        if count == 0:
            raise InputError("an empty batch fits no bucket")
        return count

    def _padded(
        self, args: tuple[Any, ...], rows: int, filled: Callable[[NDArray[Any], int, int], NDArray[Any]]
    ) -> tuple[Any, ...]:
        return tuple(
            tree.map(lambda leaf, axis=self._axes[place]: filled(np.asarray(leaf), rows, axis), value)
            if place in self._axes
            else value
            for place, value in enumerate(args)
        )

    def _cut(self, leaf: NDArray[Any], count: int, size: int) -> NDArray[Any]:
        axis = self._out_axis
        if axis is None:
            return leaf
        if not -leaf.ndim <= axis < leaf.ndim or leaf.shape[axis] != size:
            raise InputError(
                f"a result of shape {leaf.shape} has no batch of {size} in axis {axis}",
                next_step="Say out_axes=, or None if results have no batch",
            )
        return np.take(leaf, np.arange(count), axis=axis)


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Equal but for rounding: the second computation may have run elsewhere."""
    if one.dtype.kind not in "fcV":
        return bool(np.array_equal(one, other))
    wide, beside = one.astype(np.complex128), other.astype(np.complex128)
    return bool(np.allclose(wide, beside, rtol=1e-3 if one.itemsize < 4 else 1e-5, atol=1e-7, equal_nan=True))


def _zeros(array: NDArray[Any], rows: int, axis: int) -> NDArray[Any]:
    return _extended(array, np.zeros_like(np.take(array, [0] * rows, axis=axis)), axis)


def _others(array: NDArray[Any], rows: int, axis: int) -> NDArray[Any]:
    """Padding that is not like `_zeros`: copies of the first row, with every number one more."""
    first = np.take(array, [0] * rows, axis=axis)
    return _extended(array, ~first if first.dtype == np.bool_ else (first + 1).astype(first.dtype), axis)


def _extended(array: NDArray[Any], more: NDArray[Any], axis: int) -> NDArray[Any]:
    return np.concatenate([array, more], axis=axis)
