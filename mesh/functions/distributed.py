"""`mesh.distributed`: a function whose calls are placed by a strategy.

    @mesh.distributed(strategy=mesh.DataParallel())
    def predict(params, x): ...

It is traced once for each set of shapes and dtypes; calls run on the mesh in use, or in this process where there is
none, and give Arrays with values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from wire.policy.strategies import Strategy, text_of

from .function import Function, function


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
