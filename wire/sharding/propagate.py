"""Propagate: layouts for all tensors of a program from those of some.

Every node's rule ties dimensions of its operands and results together; what splits one of them comes to split the
others, forwards and backwards, until nothing changes.  Layouts only grow: an axis that once splits a dimension stays,
and what the user asked for (`Program.fixed`) is never changed.  Where tensors of a node disagree, each has its say
first in turn, and the way that costs least is taken.  Elementwise ops and views go first, as there is one natural
layout for them; contractions and all others join when those have settled.

The method is Shardy's (openxla.org/shardy, "Propagation": user, operation and aggressive priorities), and before it
GSPMD's (arXiv 2105.04663, section 3.5).
"""

from __future__ import annotations

from ..ir.ops import OPS
from .assignment import agreements, dims_of, projected
from .layout import Dims
from .op_cost import Prices
from .program import Program
from .rule import DimFactors

PLAIN = frozenset({"unary", "binary", "ternary", "convert", "view"})  # families with one natural layout


def propagate(program: Program, prices: Prices) -> list[Dims]:
    """A layout for every node."""
    layouts: list[Dims] = [
        program.fixed.get(index, ((),) * len(kind.shape)) for index, kind in enumerate(program.graph.types)
    ]
    changed = [0] * len(layouts)  # when each tensor's layout changed last
    visited = [-1] * len(layouts)  # when each node was looked at last
    time = 0
    plain = [index for index, node in enumerate(program.graph.nodes) if OPS[node.op].family in PLAIN]
    for indices in (plain, range(len(layouts))):
        settled = False
        while not settled:
            settled = True
            for order in (indices, reversed(indices)):
                for index in order:
                    tensors = (index, *program.graph.nodes[index].inputs)
                    if max([changed[tensor] for tensor in tensors]) < visited[index]:
                        continue
                    time += 1
                    visited[index] = time
                    for tensor in _node(program, prices, layouts, index):
                        changed[tensor] = time
                        settled = False
    return layouts


def _node(program: Program, prices: Prices, layouts: list[Dims], index: int) -> list[int]:
    """Let a node's tensors learn of each other; those that did."""
    rule = program.rules[index]
    if rule is None:
        return []
    operands = zip(program.graph.nodes[index].inputs, rule.operands, strict=True)
    tensors: list[tuple[int, DimFactors]] = [(index, rule.results[program.output(index)]), *operands]
    parts = [projected(rule, dims, layouts[tensor], program.axes) for tensor, dims in tensors]
    offers = agreements(rule, [part for part in parts if part], program.axes)
    if not offers:
        return []
    best = offers[0]
    if len(offers) > 1:
        best = min(offers, key=lambda offer: prices.node_s([index], rule, offer, layouts))
    learnt = []
    for tensor, dims in tensors:
        grown = _grown(layouts[tensor], dims_of(rule, dims, best, program.axes))
        if tensor not in program.fixed and grown != layouts[tensor]:
            layouts[tensor] = grown
            learnt.append(tensor)
    return learnt


def _grown(had: Dims, offered: Dims) -> Dims:
    """A layout with the axes that are new, each where the layout has not used it yet."""
    used = {axis for split in had for axis in split}
    dims = []
    for split, more in zip(had, offered, strict=True):
        fits = more[: len(split)] == split and not used.intersection(more[len(split) :])
        dims.append(more if fits else split)
        used.update(dims[-1])
    return tuple(dims)
