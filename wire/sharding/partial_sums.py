"""Partial sums: which ops may be applied to the terms of a sum, so that adding them up can wait.

f(a) + f(b) = f(a + b) holds for a row of LINEAR in the operands it names.  An op that is not there gets its operands
complete.  Deferred reductions are what GSPMD and PyTorch's DTensor call partial values.
"""

from __future__ import annotations

from collections.abc import Sequence

FIRST = "first"  # linear in the first operand
ALL = "all"  # in the operands at these places together: all of them partial, or none
ONE = "one"  # in each of two operands, where the other is complete

LINEAR: dict[str, str] = {
    **dict.fromkeys(
        ("neg", "real", "imag", "reduce_sum", "cumsum", "reshape", "transpose", "broadcast", "slice", "reverse",
         "dynamic_slice", "gather"),
        FIRST,
    ),
    **dict.fromkeys(("add", "concat", "complex", "select", "dynamic_update_slice"), ALL),
    **dict.fromkeys(("mul", "dot", "conv"), ONE),
}  # fmt: skip
TOGETHER = {"select": (1, 2), "dynamic_update_slice": (0, 1)}  # of the ops of ALL: where not every operand is meant


def stays_partial(op: str, partial: Sequence[bool]) -> bool:
    """Whether the op of operands of which some are partial, all over the same axes, is a term of its result."""
    kind = LINEAR.get(op)
    places = [place for place, is_partial in enumerate(partial) if is_partial]
    if kind == FIRST:
        return places == [0]
    if kind == ONE:
        return len(places) == 1
    return kind == ALL and tuple(places) == TOGETHER.get(op, tuple(range(len(partial))))


def may_wait(op: str, place: int) -> bool:
    """Whether the op could take a partial operand at this place."""
    kind = LINEAR.get(op)
    if kind == FIRST:
        return place == 0
    return kind == ONE or (kind == ALL and place in TOGETHER.get(op, (place,)))
