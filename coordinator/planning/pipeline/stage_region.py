"""Stage region: graphs of what a stage computes before and after the loop over micro-batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from wire.ir.dtypes import DType
from wire.ir.graph import WireGraph

from ..model.liveness import CONSTANTS
from ..model.region_builder import RegionBuilder


@dataclass(frozen=True, slots=True)
class Pack:
    """Single numbers of one dtype that travel as one tensor."""

    nodes: tuple[int, ...]


def packs_of(graph: WireGraph, nodes: Sequence[int]) -> list[Pack]:
    """The numbers among these nodes, packed by dtype; one alone travels as it is."""
    by_dtype: dict[str, list[int]] = {}
    for index in nodes:
        if graph.types[index].shape == ():
            by_dtype.setdefault(graph.types[index].dtype.name, []).append(index)
    return [Pack(tuple(numbers)) for numbers in by_dtype.values() if len(numbers) > 1]


class StageRegion(RegionBuilder):
    """A graph of `members`, or of all that its values are made of; `packs` are those that some nodes come in.

    `needs` are its inputs: nodes of the whole graph, or packs of them.
    """

    def __init__(
        self, graph: WireGraph, members: Collection[int] | None = None, packs: Mapping[int, Pack] | None = None
    ) -> None:
        super().__init__(graph)
        self._members, self._packs = members, packs or {}
        self.needs: list[int | Pack] = []
        self._unpacked: dict[Pack, int] = {}

    def outside(self, index: int) -> int | None:
        op = self.graph.nodes[index].op
        if index in self._packs:
            return self._number_in(self._packs[index], index)
        computed = op in CONSTANTS or self._members is None or index in self._members
        if computed and op not in ("input", "param"):
            return None
        return self._needed(index, *self.graph.types[index])

    def packed(self, pack: Pack) -> int:
        """Several numbers as one tensor."""
        numbers = [self.builder.add("reshape", self.value(index), shape=(1,)) for index in pack.nodes]
        return self.builder.add("concat", *numbers, axis=0)

    def micro_batch(self, index: int, number: int | None) -> int:
        """The rows of a node that one micro-batch has, or all of it."""
        value, shape = self.value(index), self.graph.types[index].shape
        if number is None:
            return value
        start, stop = (number, *(0,) * (len(shape) - 1)), (number + 1, *shape[1:])
        rows = self.builder.add("slice", value, start=start, stop=stop, step=(1,) * len(shape))
        return self.builder.add("reshape", rows, shape=shape[1:])

    def _number_in(self, pack: Pack, index: int) -> int:
        if pack not in self._unpacked:
            self._unpacked[pack] = self._needed(pack, (len(pack.nodes),), self.graph.types[index].dtype)
        at = pack.nodes.index(index)
        number = self.builder.add("slice", self._unpacked[pack], start=(at,), stop=(at + 1,), step=(1,))
        return self.builder.add("reshape", number, shape=())

    def _needed(self, what: int | Pack, shape: tuple[int, ...], dtype: DType) -> int:
        self.needs.append(what)
        return self.input(len(self.needs) - 1, shape, dtype)
