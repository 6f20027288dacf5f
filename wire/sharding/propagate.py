"""Propagate: layouts for all tensors of a program from those of some.

Every node's rule ties dimensions of its operands and results together; what splits one of them comes to split the
others, forwards and backwards, until nothing changes.  Layouts only grow: an axis that once splits a dimension stays,
and what somebody asked for (`Program.fixed`) is never changed.  Where tensors of a node disagree, each has its say
first in turn, and the way that costs least is taken.  Elementwise ops and views go first, as there is one natural
layout for them; contractions and all others join when those have settled.

The method is Shardy's (openxla.org/shardy, "Propagation": user, operation and aggressive priorities), and before it
GSPMD's (arXiv 2105.04663, section 3.5).
"""

from __future__ import annotations

from collections.abc import Callable

from ..ops import OPS
from .assignment import agreements, dims_of, projected
from .layout import Dims
from .pricing import Prices
from .program import Program
from .rule import Made

PLAIN = frozenset({"unary", "binary", "ternary", "convert", "view"})  # families with one natural layout


def propagate(program: Program, prices: Prices) -> list[Dims]:
    """A layout for every node."""
    found: list[Dims] = [
        program.fixed.get(index, ((),) * len(kind.shape)) for index, kind in enumerate(program.graph.types)
    ]
    plain = [index for index, node in enumerate(program.graph.nodes) if OPS[node.op].family in PLAIN]
    for indices in (plain, list(range(len(found)))):
        _settle(indices, lambda index: _node(program, prices, found, index))
    return found


def _settle(indices: list[int], visit: Callable[[int], bool]) -> None:
    """Visit all, forwards and backwards, until nothing changes."""
    changed = True
    while changed:
        changed = False
        for order in (indices, reversed(indices)):
            for index in order:
                changed |= visit(index)


def _node(program: Program, prices: Prices, found: list[Dims], index: int) -> bool:
    """Let a node's tensors learn of each other; whether one did."""
    rule = program.rules[index]
    if rule is None:
        return False
    operands = zip(program.graph.nodes[index].inputs, rule.operands, strict=True)
    tensors: list[tuple[int, Made]] = [(index, rule.results[program.output(index)]), *operands]
    parts = [projected(rule, made, found[tensor], program.axes) for tensor, made in tensors]
    offers = agreements(rule, [part for part in parts if part], program.axes)
    if not offers:
        return False
    best = offers[0]
    if len(offers) > 1:
        best = min(offers, key=lambda offer: prices.node_s([index], rule, offer, found))
    changed = False
    for tensor, made in tensors:
        if tensor not in program.fixed:
            grown = _grown(found[tensor], dims_of(rule, made, best, program.axes))
            changed |= grown != found[tensor]
            found[tensor] = grown
    return changed


def _grown(had: Dims, offered: Dims) -> Dims:
    """With the axes that are new, each where the layout has not used it yet."""
    used = {axis for split in had for axis in split}
    found = []
    for split, more in zip(had, offered, strict=True):
        fits = more[: len(split)] == split and not used.intersection(more[len(split) :])
        found.append(more if fits else split)
        used.update(found[-1])
    return tuple(found)
