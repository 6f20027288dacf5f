"""Annotation checks: what an argument may be, as its annotation says it.

    @checked
    def huber(prediction: Operand, target: Operand, *, delta: float = 1.0, reduction: str = "mean") -> Array: ...

    huber(x, y, delta="x")      # InputError: delta of huber is a number, not 'x'

Annotations are texts here, and each text means one kind: a row of `_KINDS`, or that of a class that the function's
module knows.  What has no row (Operand, Any) is checked where it is used.  To add a kind: one row.
"""

from __future__ import annotations

import inspect
import numbers
import operator
import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import FunctionType, NoneType
from typing import Any, NamedTuple, TypeVar, cast

from wire.errors import InputError

from .argument_checks import check_function, integer, value_text
from .did_you_mean import suggestion

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Any, str], Any]  # of a value and what it is called: the value as the function wants it


class Kind(NamedTuple):
    """A check, and the types whose values all pass it as they are, so that it need not be made."""

    check: Check
    passing: frozenset[type] = frozenset()


def checked(fn: F) -> F:
    """`fn`, which first checks its arguments by their annotations; InputError names the argument that is wrong.

    Nearly every call gives values of types that pass as they are: it is handed on after a look at these.
    """
    parameters = list(inspect.signature(fn).parameters.values())
    asker = fn.__qualname__.removesuffix(".__init__").removesuffix(".__call__")
    kinds = {parameter.name: _kind_of(parameter.annotation, fn) for parameter in parameters}
    places = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    more = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), "")
    rest = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD), "")
    passing = {name: kind.passing for name, kind in kinds.items() if kind is not None and name not in (more, rest)}
    by_place = tuple([passing.get(name) for name in places])
    free = next((at for at, types in enumerate(by_place) if types is not None), len(by_place))
    named = [parameter.name for parameter in parameters if parameter.name not in ("self", "cls", more, rest)]
    most = len(places) + (1 << 32 if kinds.get(more) is None else 0)  # *args that are not checked may be as many

    def taken(name: str, value: Any) -> Any:
        kind = kinds.get(name)
        return value if kind is None else kind.check(value, f"{name} of {asker}")

    def looked_at(args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        names = [*places, *[more] * (len(args) - len(places))]
        values = [taken(name, value) for name, value in zip(names, args, strict=False)]
        keywords = {name: taken(name, value) if name in passing else value for name, value in keywords.items()}
        try:
            return fn(*values, **keywords)
        except TypeError as error:
            if _began(error, fn):
                raise
            raise TypeError(f"{error}. {suggestion('', named)}") from None

    @wraps(fn)
    def call(*args: Any, **keywords: Any) -> Any:
        if len(args) > free:
            if len(args) > most:
                return looked_at(args, keywords)
            for value, types in zip(args, by_place, strict=False):
                if types is not None and type(value) not in types:
                    return looked_at(args, keywords)
        for name in keywords:
            if name in passing and type(keywords[name]) not in passing[name]:
                return looked_at(args, keywords)
        try:
            return fn(*args, **keywords)
        except TypeError as error:
            if _began(error, fn):
                raise
            raise TypeError(f"{error}. {suggestion('', named)}") from None

    return cast(F, call)


def _began(error: TypeError, fn: Callable[..., Any]) -> bool:
    """Whether a function ran when this was raised, and its arguments fitted."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code is getattr(fn, "__code__", None):
            return True
        at = at.tb_next
    return False


def truth(value: Any, what: str) -> bool:
    """True or False, which may be a 1 or a 0."""
    if isinstance(value, numbers.Integral) and value in (0, 1):
        return bool(value)
    if type(value).__name__ == "bool":  # numpy's
        return bool(value)
    raise InputError(f"{what} is True or False, not {value_text(value)}")


def text(value: Any, what: str) -> str:
    """A str."""
    return cast(str, instance(value, what, str, "a text"))


def path(value: Any, what: str) -> Any:
    """The path of a file."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{what} is the path of a file, not {value_text(value)}")
    return value


def instance(value: Any, what: str, cls: type, kind: str = "") -> Any:
    """An instance of a class."""
    if not isinstance(value, cls):
        raise InputError(f"{what} is {kind or f'of the class {cls.__name__}'}, not {value_text(value)}")
    return value


def whole(value: Any, what: str) -> int:
    """An int, or an array that holds one."""
    if isinstance(value, numbers.Integral):
        return integer(value, what)
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what} is an int, not {value_text(value)}") from None


def real(value: Any, what: str) -> Any:
    """A number, which may be infinite, or an array without dimensions, whose value may not be known yet."""
    if isinstance(value, bool) or not (isinstance(value, numbers.Real) or _is_number(value)):
        raise InputError(f"{what} is a number, not {value_text(value)}")
    if isinstance(value, numbers.Integral) and abs(int(value)) >> 1023:
        raise InputError(f"{what} is a number that a float can hold, not {value_text(value)}")
    return value


def wholes(value: Any, what: str) -> Any:
    """An int, or several."""
    if _has_several(value):
        return several(whole, value, what)
    if isinstance(value, numbers.Integral) or hasattr(value, "__index__"):
        return whole(value, what)
    raise InputError(f"{what} is an int or a list of ints, not {value_text(value)}")


def several(check: Check, value: Any, what: str) -> tuple[Any, ...]:
    """A tuple of things of one kind."""
    if not _has_several(value):
        raise InputError(f"{what} is a list, not {value_text(value)}")
    return tuple([check(item, what) for item in value])


def anything(value: Any, what: str) -> Any:
    """What is checked where it is used."""
    return value


def function(value: Any, what: str) -> Any:
    """What can be called."""
    check_function(value, what)
    return value


_INT = Kind(whole, frozenset({int}))
_INTS = Kind(wholes, frozenset({int}))
_FUNCTION = Kind(function, frozenset({FunctionType}))
_KINDS: dict[str, Kind | None] = {
    "Any": None,
    "PyTree": None,
    "int": _INT,
    "float": Kind(real, frozenset({float})),
    "bool": Kind(truth, frozenset({bool})),
    "str": Kind(text, frozenset({str})),
    "Ints": _INTS,
    "Shape": _INTS,
    "int | Sequence[int]": _INTS,
    "Initialiser": _FUNCTION,
    "Schedule": _FUNCTION,
    "Function": _FUNCTION,
    "Callable[..., Any]": _FUNCTION,
    "Callable[[Any], Array]": _FUNCTION,
    "str | Path": Kind(path, frozenset({str})),
    "Sizes": Kind(lambda value, what: None if value is None else several(whole, value, what)),
    "tuple[int, int]": Kind(partial(several, whole)),
}


def _kind_of(annotation: Any, fn: Callable[..., Any]) -> Kind | None:
    """None for what is not checked here."""
    asked = annotation if isinstance(annotation, str) else ""
    if asked in _KINDS:
        return _KINDS[asked]
    if asked.endswith(" | None"):
        kind = _kind_of(asked.removesuffix(" | None"), fn)
        return None if kind is None else Kind(partial(_unless_none, kind.check), kind.passing | {NoneType})
    if asked.startswith("Sequence["):
        item = _kind_of(asked[len("Sequence[") : -1], fn)
        return Kind(partial(several, anything if item is None else item.check))
    if asked.startswith("Mapping["):
        return Kind(partial(_of_class, Mapping), frozenset({dict}))
    cls = getattr(inspect.getmodule(fn), asked, None) if asked else None
    return Kind(partial(_of_class, cls), frozenset({cls})) if isinstance(cls, type) else None


def _of_class(cls: type, value: Any, what: str) -> Any:
    return instance(value, what, cls)


def _unless_none(check: Check, value: Any, what: str) -> Any:
    return None if value is None else check(value, what)


def _is_number(value: Any) -> bool:
    """Whether it is an array of one number and no dimensions."""
    return getattr(value, "shape", None) == () and getattr(getattr(value, "dtype", None), "kind", "O") not in "OUSMmc"


def _has_several(value: Any) -> bool:
    """Whether a list is given; arrays without dimensions are numbers."""
    if isinstance(value, str | bytes | dict | type):
        return False
    return hasattr(value, "__iter__") and getattr(value, "shape", None) != ()
