"""Program: a graph, a grid, and the rules of its nodes; what propagation and partitioning both read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..cached_property import cached_property
from ..ir.graph import WireGraph
from ..ir.types import TensorType
from .factors import computed_together, rules_within
from .layout import Axes, Dims
from .rule import Rule


class Program:
    """A graph over whole tensors, to be split over `axes`; `fixed` are the layouts that the user asked for, by node.

    With `in_order` no sum of numbers that round is shared out.
    """

    def __init__(self, graph: WireGraph, axes: Axes, fixed: Mapping[int, Dims], in_order: bool = False) -> None:
        self.graph = graph
        self.axes = axes
        self.fixed = fixed
        self.in_order = in_order

    def types(self, index: int) -> list[TensorType]:
        """The types of a node's operands."""
        return [self.graph.types[source] for source in self.graph.nodes[index].inputs]

    @cached_property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """The nodes that are computed together, a node alone included, by the first of them."""
        return computed_together(self.graph)

    @cached_property
    def rules(self) -> tuple[Rule | None, ...]:
        """The rule of every node; nodes that are computed together share one.  None for leaves."""
        rules = rules_within(self.graph)
        for first, group in self.groups.items() if self.in_order else ():
            rule = rules[first]
            if rule and any(self.graph.types[index].dtype.kind in "fc" for index in group):
                in_order = rule.in_order()
                for index in group:
                    rules[index] = in_order
        return tuple(rules)

    def output(self, index: int) -> int:
        """The number of its op's result that a node is."""
        output: int = self.graph.nodes[index].attrs.get("output", 0)
        return output

    @cached_property
    def users(self) -> Sequence[Sequence[tuple[int, int]]]:
        """The users of each node: nodes, and the place among their operands."""
        users: list[list[tuple[int, int]]] = [[] for _ in self.graph.nodes]
        for index, node in enumerate(self.graph.nodes):
            for place, source in enumerate(node.inputs):
                users[source].append((index, place))
        return users
