"""Argument checks: what callers give, checked where they give it.

Each check returns the value as the rest of the code wants it, or raises InputError with what was expected and what
came.  It knows no arrays and no meshes.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Sequence
from typing import Any

from wire.errors import InputError, MeshError
from wire.timeouts import SECONDS_MAX

from .units import counted


def integer(value: Any, what: str, least: int | None = None, below: int | None = None) -> int:
    """An int, `least` or more and `below` something; numpy's are taken, True and False are not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InputError(f"{what} is an int, not {value_text(value)}")
    whole = int(value)
    if (least is not None and whole < least) or (below is not None and whole >= below):
        fits = f"from {least}" if below is None else f"from {least or 0} to {below - 1}"
        raise InputError(f"{what} is an int {fits}, not {value_text(whole)}")
    return whole


def native(value: Any) -> Any:
    """An integer of numpy's as Python's own, and all else as it is."""
    return int(value) if isinstance(value, numbers.Integral) else value


def number(value: Any, what: str, least: float = -math.inf) -> float:
    """A number that is neither NaN nor infinite, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{what} is a number, not {value_text(value)}")
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real) or real < least:
        more = f" from {least:g}" if least > -math.inf else ""
        raise InputError(f"{what} is a finite number{more}, not {real}")
    return real


def seconds_to_wait(timeout_s: float | None) -> float | None:
    """The seconds to wait: None for ever, which an infinite number means too.  InputError for what is no number."""
    if timeout_s is None or (isinstance(timeout_s, numbers.Real) and timeout_s == math.inf):
        return None
    return min(max(number(timeout_s, "timeout_s"), 0.0), SECONDS_MAX)


def check_number(value: Any, what: str, least: float = -math.inf, below: float = math.inf) -> None:
    """Raise InputError for a Python number that is NaN or infinite, less than `least`, or not below something.

    Arrays, whose values may not be known yet, pass.
    """
    if isinstance(value, str | bytes | bool | None | list | tuple | dict):
        raise InputError(f"{what} is a number, not {value_text(value)}")
    if isinstance(value, numbers.Real) and number(value, what, least) >= below:
        raise InputError(f"{what} is a number from {least:g} to below {below:g}, not {value}")


def axis_of(axis: Any, rank: int, asker: str, of: object, error: type[MeshError] = InputError) -> int:
    """An axis of something with `rank` dimensions, counted from 0."""
    at = integer(axis, f"the axis of {asker}")
    if not -rank <= at < rank:
        raise error(
            f"{asker} along axis {at} of {of}", next_step=f"It has {counted(rank, 'dimension')}, counted from 0"
        )
    return at % rank


def pairs_of(pairs: Any, ranks: int) -> list[tuple[int, int]]:
    """Sources and destinations among `ranks` ranks, none of either twice."""
    checked: list[tuple[int, int]] = []
    for pair in items(pairs, "the pairs of permute are (source, destination), of which"):
        ends = items(pair, "a pair of permute is (source, destination), of which")
        if len(ends) != 2:
            raise InputError(f"a pair of permute is (source, destination), not {value_text(pair)}")
        source, destination = (integer(end, "a rank of permute") for end in ends)
        if not (0 <= source < ranks and 0 <= destination < ranks):
            raise InputError(f"permute from {source} to {destination}: the group has {ranks} ranks")
        checked.append((source, destination))
    for what, ranks_of_pairs in (("source", [a for a, _ in checked]), ("destination", [b for _, b in checked])):
        twice = [rank for place, rank in enumerate(ranks_of_pairs) if rank in ranks_of_pairs[:place]]
        if twice:
            raise InputError(f"permute has the {what} {twice[0]} twice in {checked}")
    return checked


def items(value: Any, what: str) -> Sequence[Any]:
    """A list of something that has several."""
    if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
        raise InputError(f"{what} a list is given, not {value_text(value)}")
    return list(value)


def check_function(value: Any, what: str) -> None:
    """Raise InputError for what cannot be called."""
    if not callable(value):
        raise InputError(f"{what} is a function, not {value_text(value)}")


def value_text(value: Any) -> str:
    """A value in a message."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python writes no digits of very large ones
    text = re.sub(r"\s*\n\s*", " ", repr(value))  # an error is one line
    return text if len(text) <= 80 else f"{text[:77]}..."
