"""Precision: functions of float16 and bfloat16 are computed in float32 and rounded once, as other frameworks do."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from wire.ir.dtypes import BF16, F16, F32

from ..core.array import Array, Operand
from ..numpy.promotion import cast as converted
from ..numpy.promotion import floats

Function = TypeVar("Function", bound=Callable[..., Array])


def wide(x: Array) -> Array:
    """The array x, in float32 if it is narrower."""
    return converted(x, F32) if x.type.dtype in (F16, BF16) else x


def rounded_once(function: Function) -> Function:
    """The function, computed in float32 where x is narrower, with its result in x's dtype."""

    @wraps(function)
    def computed(x: Operand, *args: Any, **named: Any) -> Array:
        (array,) = floats(x)
        return converted(function(wide(array), *args, **named), array.type.dtype)

    return cast(Function, computed)
