"""Epilogue: the nodes of a training step after its loop, and where on the line of micro-batches they belong.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wire.ir.graph import WireGraph

from ..model.liveness import CONSTANTS, DUPLICATED
from .microbatch_loop import CONST, Line, Loop


class Epilogue:
    """The nodes of a step outside its loop, each with a place on the line: that of its largest operand.

    Numbers of several places, such as the norm of all gradients, are put together at the first, which is done last.
    `members` are the nodes, `place` is by node, `owner` by tensor of the state the place where its next value is made.
    """

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
        self._leaf_place: dict[int, int] = {}
        leaves = {graph.nodes[index].attrs["name"]: index for index in graph.params}
        makers = {name: graph.outputs[at] for name, at in carries.items()}
        for at_first in (False, True):
            while self._spread() | self._own(makers, leaves, at_first):
                pass
        for index in self.members:
            self.place.setdefault(index, 0)

    def _own(self, makers: Mapping[str, int], leaves: Mapping[str, int], at_first: bool) -> bool:
        """Place tensors of the state where their next values are made, `at_first` those of no place too."""
        before = len(self.owner)
        for name, maker in makers.items():
            if name not in self.owner and (maker in self.place or at_first):
                self.owner[name] = self.place.setdefault(maker, 0)
                if name in leaves:
                    self._leaf_place[leaves[name]] = self.owner[name]
        return len(self.owner) > before

    def _spread(self) -> bool:
        """Place every node whose largest operand has a place."""
        graph, before = self._graph, len(self.place)
        for index in self.members:
            operands = [i for i in graph.nodes[index].inputs if graph.nodes[i].op not in CONSTANTS]
            if index in self.place or not operands:
                continue
            largest = max(graph.types[operand].size_bytes for operand in operands)
            of_largest = [operand for operand in operands if graph.types[operand].size_bytes == largest]
            known = (self.place.get(operand, self._leaf_place.get(operand)) for operand in of_largest)
            placed = [place for place in known if place is not None]
            if placed:
                self.place[index] = min(placed)
        return len(self.place) > before


def gradient_consts(graph: WireGraph, loop: Loop, carries: Mapping[str, int]) -> dict[int, int]:
    """The constant whose gradient each carry sums: the tensor of the state whose next value is made of the carry."""
    carry_of = {index: carry for carry, index in loop.results.items()}
    params = {graph.nodes[index].attrs["name"]: index for index in graph.params}
    consts = {}
    for const in range(loop.consts):
        leaf = graph.nodes[loop.operand((CONST, const))]
        if leaf.op != "param" or leaf.attrs["name"] not in carries:
            continue
        shape = graph.types[params[leaf.attrs["name"]]].shape
        seen, stack, sums = set(), [graph.outputs[carries[leaf.attrs["name"]]]], set()
        while stack:  # down to results of the loop, by way of tensors of this shape
            index = stack.pop()
            if index in seen or graph.types[index].shape != shape:
                continue
            seen.add(index)
            if index in carry_of:
                sums.add(carry_of[index])
            else:
                stack += graph.nodes[index].inputs
        if len(sums) == 1:
            consts[sums.pop()] = const
    return consts
