"""Region builder: a graph made of some nodes of another, whose inputs stand for the nodes that it leaves out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from wire.ir.dtypes import DType
from wire.ir.graph import GraphBuilder, Node, WireGraph


class RegionBuilder(ABC):
    """`value` adds a node with all that it is made of, as far as `outside` does not stand in for it."""

    def __init__(self, graph: WireGraph) -> None:
        self.graph = graph
        self.builder = GraphBuilder()
        self.builder.blobs.update(graph.blobs)
        self._local: dict[int, int] = {}  # by node of `graph`, the node of the region

    def value(self, index: int) -> int:
        """The region's node for one of the graph."""
        stack = [index]  # and not a recursion: sums of gradients are as deep as there are weights
        while stack:
            index_now = stack[-1]
            if index_now not in self._local:
                op, inputs, attrs = self.graph.nodes[index_now]
                stand_in = self.outside(index_now)
                lacking = [source for source in reversed(inputs) if source not in self._local]
                if stand_in is None and lacking:
                    stack += lacking
                    continue
                if stand_in is None:
                    stand_in = self.builder.put(Node(op, tuple([self._local[source] for source in inputs]), attrs))
                self._local[index_now] = stand_in
            stack.pop()
        return self._local[index]

    @abstractmethod
    def outside(self, index: int) -> int | None:
        """The region's node that stands for one which is not computed here; None for one that is."""

    def input(self, number: int, shape: tuple[int, ...], dtype: DType) -> int:
        """A new input, named by its position."""
        return self.builder.input(str(number), shape, dtype)
