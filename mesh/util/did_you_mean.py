"""Did you mean: arguments that a call does not have, and the ones that were meant.  Pure.

@names_checked  # of a public function: InputError instead of Python's TypeError
@optioned       # the same for a function whose keyword-only arguments are options
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from wire.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to do about a name that is not known."""
    known = tuple(known)
    near = difflib.get_close_matches(name, known, n=1)
    takes = f"It takes {', '.join(known)}" if known else "It takes nothing"
    return f"Did you mean {near[0]!r}? {takes}" if near else takes


def names_checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function that raises InputError where a caller names an argument which it does not have, or forgets one.
    What is raised inside of it stays as it is."""

    @wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise
            raise InputError(f"{_what(function)} {_wrong(function, error)}", next_step=_step(function, named)) from None

    return called


def optioned(function: Callable[P, T]) -> Callable[P, T]:
    """`names_checked` for options: an unknown keyword is called an option in the error."""
    parameters, call = _parameters(function), names_checked(function)
    known = {parameter.name for parameter in parameters}
    options = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

    @wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> T:
        unknown = next((name for name in named if name not in known), None)
        if unknown is not None:
            raise InputError(f"{function.__name__} has no option {unknown!r}", next_step=suggestion(unknown, options))
        return call(*args, **named)

    return called


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]


def _what(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _wrong(function: Callable[..., Any], error: TypeError) -> str:
    """Python's own words, without the name of the function."""
    _, _, problem = str(error).partition(f"{function.__name__}() ")
    return problem or str(error)


def _step(function: Callable[..., Any], named: Mapping[str, Any]) -> str:
    parameters = _parameters(function)
    known = [
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    unknown = [name for name in named if name not in known]
    return suggestion(unknown[0] if unknown else "", known)
