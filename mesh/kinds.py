"""Kinds: what an argument may be, as its annotation says it.

    @checked
    def huber(prediction: Operand, target: Operand, *, delta: float = 1.0, reduction: str = "mean") -> Array: ...

    huber(x, y, delta="x")      # InputError: delta of huber is a number, not 'x'

Annotations are texts here, and each text means one check: a row of `_CHECKS`, or that of a class that the function's
module knows.  What has no row (Operand, Any) is checked where it is used.  To add a kind: one row.
"""

from __future__ import annotations

import inspect
import numbers
import operator
import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar, cast

from wire.errors import InputError

from .arguments import check_function, integer, said

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Any, str], Any]  # of a value and what it is called: the value as the function wants it


def checked(fn: F) -> F:
    """`fn`, which first checks its arguments by their annotations; InputError names the argument that is wrong."""
    parameters = inspect.signature(fn).parameters.values()
    places: list[Callable[[Any], Any] | None] = []
    names: dict[str, Callable[[Any], Any]] = {}
    more: Callable[[Any], Any] | None = None
    for each in parameters:
        check = _check_of(each.annotation, fn)
        named = None if check is None else _called(check, f"{each.name} of {fn.__qualname__.removesuffix('.__init__')}")
        if each.kind is each.VAR_POSITIONAL:
            more = named
        elif each.kind is not each.VAR_KEYWORD:
            if each.kind is not each.KEYWORD_ONLY:
                places.append(named)
            if named is not None:
                names[each.name] = named

    @wraps(fn)
    def call(*args: Any, **keywords: Any) -> Any:
        checks = [*places, *[more] * (len(args) - len(places))]
        given = [value if check is None else check(value) for value, check in zip(args, checks, strict=False)]
        given += args[len(given) :]
        return fn(*given, **{name: names[name](value) if name in names else value for name, value in keywords.items()})

    return cast(F, call)


def truth(value: Any, what: str) -> bool:
    """True or False, which may be a 1 or a 0."""
    if isinstance(value, numbers.Integral) and value in (0, 1):
        return bool(value)
    if type(value).__name__ == "bool":  # numpy's
        return bool(value)
    raise InputError(f"{what} is True or False, not {said(value)}")


def text(value: Any, what: str) -> str:
    """A str."""
    return cast(str, instance(value, what, str, "a text"))


def path(value: Any, what: str) -> Any:
    """Where a file is."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{what} is the path of a file, not {said(value)}")
    return value


def instance(value: Any, what: str, cls: type, kind: str = "") -> Any:
    """One of a class."""
    if not isinstance(value, cls):
        raise InputError(f"{what} is {kind or f'of the class {cls.__name__}'}, not {said(value)}")
    return value


def whole(value: Any, what: str) -> int:
    """An int, or an array that holds one."""
    if isinstance(value, numbers.Integral):
        return integer(value, what)
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what} is an int, not {said(value)}") from None


def real(value: Any, what: str) -> Any:
    """A number, which may be infinite, or an array without dimensions, whose value may not be known yet."""
    if isinstance(value, bool) or not (isinstance(value, numbers.Real) or _is_number(value)):
        raise InputError(f"{what} is a number, not {said(value)}")
    if isinstance(value, numbers.Integral) and abs(int(value)) >> 1023:
        raise InputError(f"{what} is a number that a float can hold, not {said(value)}")
    return value


def wholes(value: Any, what: str) -> Any:
    """An int, or several."""
    if _has_several(value):
        return several(whole, value, what)
    if isinstance(value, numbers.Integral) or hasattr(value, "__index__"):
        return whole(value, what)
    raise InputError(f"{what} is an int or a list of ints, not {said(value)}")


def several(check: Check, value: Any, what: str) -> tuple[Any, ...]:
    """A tuple of things of one kind."""
    if not _has_several(value):
        raise InputError(f"{what} is a list, not {said(value)}")
    return tuple([check(each, what) for each in value])


def anything(value: Any, what: str) -> Any:
    """What is checked where it is used."""
    return value


def function(value: Any, what: str) -> Any:
    """What can be called."""
    check_function(value, what)
    return value


_CHECKS: dict[str, Check | None] = {
    "Any": None,
    "int": whole,
    "float": real,
    "bool": truth,
    "str": text,
    "Ints": wholes,
    "Shape": wholes,
    "int | Sequence[int]": wholes,
    "Initialiser": function,
    "Schedule": function,
    "Function": function,
    "Callable[..., Any]": function,
    "Callable[[Any], Array]": function,
    "str | Path": path,
    "Sizes": lambda value, what: None if value is None else several(whole, value, what),
    "tuple[int, int]": partial(several, whole),
}


def _check_of(annotation: Any, fn: Callable[..., Any]) -> Check | None:
    """None for what is not checked here."""
    asked = annotation if isinstance(annotation, str) else ""
    if asked in _CHECKS:
        return _CHECKS[asked]
    if asked.endswith(" | None"):
        check = _check_of(asked.removesuffix(" | None"), fn)
        return None if check is None else partial(_unless_none, check)
    if asked.startswith("Sequence["):
        return partial(several, _check_of(asked[len("Sequence[") : -1], fn) or anything)
    if asked.startswith("Mapping["):
        return partial(_of_class, Mapping)
    found = getattr(inspect.getmodule(fn), asked, None) if asked else None
    return partial(_of_class, found) if isinstance(found, type) else None


def _of_class(cls: type, value: Any, what: str) -> Any:
    return instance(value, what, cls)


def _unless_none(check: Check, value: Any, what: str) -> Any:
    return None if value is None else check(value, what)


def _called(check: Check, what: str) -> Callable[[Any], Any]:
    return lambda value: check(value, what)


def _is_number(value: Any) -> bool:
    """Whether it is an array of one number and no dimensions."""
    return getattr(value, "shape", None) == () and getattr(getattr(value, "dtype", None), "kind", "O") not in "OUSMmc"


def _has_several(value: Any) -> bool:
    """Whether a list is given; arrays without dimensions are numbers."""
    if isinstance(value, str | bytes | dict | type):
        return False
    return hasattr(value, "__iter__") and getattr(value, "shape", None) != ()
