"""Provenance: which nodes of a first graph each node of a rewritten one comes from, through one pass after another.

A pass that is lent one notes, for every node that it places, the nodes that this made in its builder.  Of a node that a
pass leaves out, nothing comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..ir.graph import WireGraph

NOTHING: frozenset[int] = frozenset()


class Provenance:
    """`of[n]` are the nodes of the first graph that node n of the present one comes from."""

    def __init__(self, graph: WireGraph) -> None:
        self.of: list[frozenset[int]] = [frozenset((index,)) for index in range(len(graph.nodes))]
        self._noted: dict[int, frozenset[int]] = {}

    def note(self, source: int, made: Iterable[int]) -> None:
        """Nodes that a pass has made, by its own numbers, come from node `source` of the graph that it was given."""
        for number in made:
            self._noted[number] = self._noted.get(number, NOTHING) | self.of[source]

    def passed(self, order: Sequence[int]) -> None:
        """A pass is over: the nodes of its graph, by the numbers that were noted."""
        self.of = [self._noted.get(number, NOTHING) for number in order]
        self._noted = {}
