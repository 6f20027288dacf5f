"""varying: over which axes of a grid a value may differ from rank to rank, and where it is surely the same.

The idea is JAX's (shard_map, "varying manual axes"): what a rank is given differs over the axes of its spec; an op's
result differs where an operand does; a reduction, a gathering or a broadcast over axes makes their ranks agree, and
`axis_index` makes them differ.  It is a proof of sameness only: what is not proven may be the same all the same.

Pure.  `through` is the rule of one node, of whoever walks expressions of another kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InputError
from .graph import WireGraph
from .ops import COLLECTIVES, inner_graphs
from .types import Attrs

Over = frozenset[str]
"""The axes over which a value may differ."""

NOWHERE: Over = frozenset()
AGREED = frozenset({"all_reduce", "all_gather", "broadcast_from"})


def varying(graph: WireGraph, given: Sequence[Over]) -> list[Over]:
    """For each output of a body, whose inputs differ over `given`, the axes over which it may.

    InputError where a branch or a loop has collectives inside and its predicate may differ within their group: some
    ranks would wait for others that never come.
    """
    rest = iter(given)
    found: list[Over] = []
    for op, inputs, attrs in graph.nodes:
        found.append(next(rest) if op == "input" else through(op, attrs, [found[index] for index in inputs]))
    return [found[index] for index in graph.outputs]


def through(op: str, attrs: Attrs, operands: Sequence[Over]) -> Over:
    """The axes over which the result of a node may differ, whose operands do over `operands`."""
    if op in COLLECTIVES:
        over = frozenset(attrs["axes"])
        return _joined(operands) - over if op in AGREED else _joined(operands) | over
    rule = _INSIDE.get(op)
    return _joined(operands) if rule is None else rule(attrs, operands)[attrs.get("output", 0)]


def _joined(operands: Sequence[Over]) -> Over:
    return NOWHERE.union(*operands)


def _composite(attrs: Attrs, operands: Sequence[Over]) -> list[Over]:
    return varying(attrs["body"], operands)


def _cond(attrs: Attrs, operands: Sequence[Over]) -> list[Over]:
    asked, *given = operands
    _check_agreed("cond", attrs, asked)
    branches = zip(varying(attrs["then"], given), varying(attrs["otherwise"], given), strict=True)
    return [asked | then | otherwise for then, otherwise in branches]


def _while(attrs: Attrs, operands: Sequence[Over]) -> list[Over]:
    count = len(attrs["body"].outputs)
    carry, constants = list(operands[:count]), operands[count:]
    while True:
        (asked,) = varying(attrs["test"], [*carry, *constants])
        turned = [asked | a | b for a, b in zip(carry, varying(attrs["body"], [*carry, *constants]), strict=True)]
        if turned == carry:
            _check_agreed("while", attrs, asked)
            return carry
        carry = turned


def _scan(attrs: Attrs, operands: Sequence[Over]) -> list[Over]:
    count = attrs["carry"]
    carry, rest = list(operands[:count]), operands[count:]
    while True:
        found = varying(attrs["body"], [*carry, *rest])
        turned = [a | b for a, b in zip(carry, found, strict=False)]
        if turned == carry:
            return [*carry, *found[count:]]
        carry = turned


_INSIDE = {"composite": _composite, "cond": _cond, "while": _while, "scan": _scan}


def _check_agreed(op: str, attrs: Attrs, asked: Over) -> None:
    free = {axis for inner in inner_graphs(op, attrs) for axis in inner.free_axes}
    if free & asked:
        names = ", ".join(sorted(free & asked))
        raise InputError(
            f"a {op} has collectives over {', '.join(sorted(free))} inside, and its predicate may differ over {names}: "
            "ranks that take part would wait for ranks that do not",
            next_step="Make the predicate the same on all of them, e.g. with mesh.collectives.all_reduce",
        )
