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
    """`fn` with a strategy, as a decorator or a function; InputError for a strategy that is not known."""
    chosen = text_of(strategy)
    if fn is None:
        return lambda own: function(own, strategy=chosen)
    return function(fn, strategy=chosen)
