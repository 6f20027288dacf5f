"""Call arguments: the arguments of a function as one tuple, those given by name among them.

    args = merge_arguments(fn, (x,), {"b": 3})  # (x, 3), or (x, Keywords(b=3)) where `b` has no place of its own
    result = call_with(fn, args)

Whatever is done with arguments (naming, tracing, binding, asking whether two calls are alike) is done with this tuple,
so that it holds for both kinds.  This file knows neither arrays nor meshes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wire.errors import InputError

from ..tree import Keywords
from ..util.did_you_mean import suggestion

Function = Callable[..., Any]


def merge_arguments(
    fn: Any, args: Sequence[Any], keywords: Mapping[str, Any], own: Sequence[str] = ()
) -> tuple[Any, ...]:
    """`args` and `keywords` as one tuple, the same for calls that Python takes for the same.

    InputError if `fn` cannot be called so.  `own` are the keywords that the caller took for itself, to say what a
    misspelt one may have meant.
    """
    if not keywords:
        return tuple(args)
    parameters = _parameters(fn)
    if parameters is None:
        return (*args, Keywords(sorted(keywords.items())))
    _check_named(fn, parameters, len(args), keywords, own)
    check_call(fn, args, keywords)
    left, placed = dict(keywords), list(args)
    for place in _places(parameters)[len(args) :]:
        if place.kind is place.POSITIONAL_ONLY or place.name not in left:
            break
        placed.append(left.pop(place.name))
    return (*placed, Keywords(sorted(left.items()))) if left else tuple(placed)


def call_with(fn: Function, args: Sequence[Any]) -> Any:
    """What `fn` gives for arguments as `merge_arguments` has them."""
    placed, keywords = split_arguments(args)
    return fn(*placed, **keywords)


def split_arguments(args: Sequence[Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments given by place, and those given by name."""
    if args and type(args[-1]) is Keywords:
        return tuple(args[:-1]), args[-1]
    return tuple(args), {}


def positional(fn: Function, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    """All arguments by place: defaults fill what lies between.  InputError where an argument has no place."""
    if not keywords:
        return args
    parameters = _parameters(fn) or []
    places = _places(parameters)
    names = [parameter.name if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else "" for parameter in places]
    for name in keywords:
        if name not in names[len(args) :]:
            why = (
                "is given twice"
                if name in names
                else f"has no place among its arguments ({', '.join(filter(None, names))})"
            )
            raise InputError(f"the argument {name!r} of {_name(fn)} {why}")
    filled = []
    for place in places[len(args) : 1 + max(map(names.index, keywords))]:
        value = keywords.get(place.name, place.default)
        if value is inspect.Parameter.empty:
            raise InputError(f"the argument {place.name!r} of {_name(fn)} is missing")
        filled.append(value)
    return (*args, *filled)


def check_examples(fn: Any, examples: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise InputError, which says what to give, if a function that is compiled takes arguments and none are given."""
    if examples or named or not callable(fn):
        return
    try:
        check_call(fn, (), {})
    except InputError as error:
        error.next_step = f"Give arguments like those of the calls: m.compile(fn, x). {error.next_step}"
        raise


def check_call(fn: Function, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Raise InputError if `fn` cannot be called with this number of arguments, or with these names."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        missing = re.fullmatch(r"missing a required .*argument: ('\w+')", str(error))
        problem = f"the argument {missing[1]} of {_name(fn)} is missing" if missing else f"{_name(fn)}: {error}"
        takes = ", ".join(
            str(parameter.replace(annotation=parameter.empty)) for parameter in signature.parameters.values()
        )
        raise InputError(problem, next_step=f"It takes {takes or 'nothing'}") from None


def _check_named(
    fn: Function, parameters: Sequence[inspect.Parameter], placed: int, keywords: Mapping[str, Any], own: Sequence[str]
) -> None:
    known = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    taken_by_place = [parameter.name for parameter in _places(parameters)[:placed]]
    for name in keywords:
        if name in taken_by_place and name in known:
            raise InputError(f"the argument {name!r} of {_name(fn)} is given twice")
        if name not in known and not takes_any:
            problem = f"the argument {name!r} of {_name(fn)} has no place among its arguments"
            raise InputError(problem, next_step=suggestion(name, (*known, *own)))


def _places(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters that the arguments given by place go to, in their order."""
    return [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def _parameters(fn: Function) -> list[inspect.Parameter] | None:
    """None where nobody knows: a builtin without a signature."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return None


def _name(fn: Function) -> str:
    return str(getattr(fn, "__name__", "the function"))
