"""After the loop: where on the line of micro-batches the other nodes of a training step belong.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wire.ir.graph import WireGraph

from ..model.liveness import DUPLICATED
from .microbatch_loop import CONST, Line, Loop


class After:
    """Where on the line the nodes of the step are that are not of its loop: by what most of their bytes come from.

    Numbers of several places, such as the norm of all gradients, are put together at the first, which is done last."""

    def __init__(self, graph: WireGraph, loop: Loop, line: Line, carries: Mapping[str, int]) -> None:
        self._graph = graph
        results = {index: line.place.get(loop.body.outputs[number], 0) for number, index in loop.results.items()}
        needed = set(graph.outputs)
        for index in range(len(graph) - 1, -1, -1):
            if index in needed and index not in results:
                needed.update(graph.nodes[index].inputs)
        self.members = [i for i in sorted(needed) if i not in results and graph.nodes[i].op not in DUPLICATED]
        self.place: dict[int, int] = dict(results)
        self.owner: dict[str, int] = {}
        self._leaf_at: dict[int, int] = {}
        leaves = {graph.nodes[index].attrs["name"]: index for index in graph.params}
        makers = {name: graph.outputs[at] for name, at in carries.items()}
        for settled in (False, True):
            while self._spread() | self._own(makers, leaves, settled):
                pass
        for index in self.members:
            self.place.setdefault(index, 0)

    def _own(self, makers: Mapping[str, int], leaves: Mapping[str, int], all_of_them: bool) -> bool:
        """A tensor of the state is where its next value is made."""
        before = len(self.owner)
        for name, maker in makers.items():
            if name not in self.owner and (maker in self.place or all_of_them):
                self.owner[name] = self.place.setdefault(maker, 0)
                if name in leaves:
                    self._leaf_at[leaves[name]] = self.owner[name]
        return len(self.owner) > before

    def _spread(self) -> bool:
        """Place what has its largest operand in some place."""
        graph, before = self._graph, len(self.place)
        for index in self.members:
            operands = [each for each in graph.nodes[index].inputs if graph.nodes[each].op not in ("const", "iota")]
            if index in self.place or not operands:
                continue
            largest = max(graph.types[each].size_bytes for each in operands)
            there = [self.place.get(each, self._leaf_at.get(each)) for each in operands
                     if graph.types[each].size_bytes == largest]  # fmt: skip
            placed = [each for each in there if each is not None]
            if placed:
                self.place[index] = min(placed)
        return len(self.place) > before


def beside(graph: WireGraph, loop: Loop, carries: Mapping[str, int]) -> dict[int, int]:
    """By carry the constant of which it sums the gradient: the tensor of the state whose next value it makes."""
    result = {index: number for number, index in loop.results.items()}
    params = {graph.nodes[index].attrs["name"]: index for index in graph.params}
    found = {}
    for const in range(loop.consts):
        leaf = graph.nodes[loop.operand((CONST, const))]
        if leaf.op != "param" or leaf.attrs["name"] not in carries:
            continue
        kind = graph.types[params[leaf.attrs["name"]]]
        seen, stack, ends = set(), [graph.outputs[carries[leaf.attrs["name"]]]], set()
        while stack:
            index = stack.pop()
            if index in seen or graph.types[index].shape != kind.shape:
                continue
            seen.add(index)
            if index in result:
                ends.add(result[index])
            else:
                stack += graph.nodes[index].inputs
        if len(ends) == 1:
            found[ends.pop()] = const
    return found
