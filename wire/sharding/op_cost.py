"""Prices: what a node costs a rank if its factors are split in some way, in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..ir.ops import OPS
from .assignment import Assignment, dims_of, shards_of
from .layout import Dims, Layout
from .program import Program
from .reshard import Path, path
from .rule import Rule


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a rank is: operations and bytes sent per second, and what a collective takes however small it is.

    The defaults are those of a laptop's cores on wired Ethernet.  Their ratio decides; measured figures are better.
    """

    flops_per_s: float = 2e10
    bytes_per_s: float = 1e8
    collective_s: float = 1e-4

    def moving_s(self, way: Path) -> float:
        return way.sent_bytes / self.bytes_per_s + way.collectives * self.collective_s


class Prices:
    """Costs in a program."""

    def __init__(self, program: Program, rates: Rates) -> None:
        self._program = program
        self._rates = rates

    def moving_s(self, index: int, sources: Iterable[Layout], target: Layout) -> float:
        """Seconds to bring a node's tensor into a layout from the cheapest of those that it is held in."""
        kind = self._program.graph.types[index]
        ways = [path(kind.shape, kind.dtype.itemsize, self._program.axes, source, target) for source in sources]
        return min(self._rates.moving_s(way) for way in ways)

    def computing_s(self, index: int, rule: Rule, assignment: Assignment) -> float:
        """Seconds to compute a rank's share of a node."""
        node = self._program.graph.nodes[index]
        flops = OPS[node.op].flops(node.attrs, self._program.types(index), self._program.graph.types[index])
        return flops / math.prod(shards_of(rule, assignment, self._program.axes)) / self._rates.flops_per_s

    def settling_s(self, index: int, made: Layout, wanted: Dims) -> float:
        """Seconds until a result is what others want: complete, and split as they do, if they split it at all."""
        target = Layout(wanted) if any(wanted) or index in self._program.fixed else made.complete()
        return 0.0 if made == target else self.moving_s(index, [made], target)

    def node_s(self, group: Sequence[int], rule: Rule, assignment: Assignment, layouts: Sequence[Dims]) -> float:
        """Seconds for a group of nodes, whose operands lie as in `layouts`, and whose results are made complete."""
        axes, first = self._program.axes, group[0]
        cost = self.computing_s(first, rule, assignment)
        for source, dims in zip(self._program.graph.nodes[first].inputs, rule.operands, strict=True):
            cost += self.moving_s(source, [Layout(layouts[source])], Layout(dims_of(rule, dims, assignment, axes)))
        for index in group:
            layout = result_layout(self._program, index, rule, assignment)
            cost += self.settling_s(index, layout, layout.dims)
        return cost


def result_layout(program: Program, index: int, rule: Rule, assignment: Assignment, kept: Sequence[str] = ()) -> Layout:
    """How a node's result lies where its factors are split so, and its operands are partial over the axes `kept`."""
    axes = program.axes
    layout = Layout(dims_of(rule, rule.results[program.output(index)], assignment, axes))
    reduced = [factor for factor in rule.reduced if assignment.get(factor)]
    partial = axes.ordered([axis for factor in reduced for axis in assignment[factor]] + list(kept))
    if not partial:
        return layout
    return replace(layout, partial=partial, reduction=rule.reduced[reduced[0]] if reduced else "sum")
