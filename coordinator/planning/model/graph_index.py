"""Graph index: a graph as the units that planners place, with what each reads and which units read it.  It knows no
machines.

A *unit* is a graph node that computes something, or siblings, which are results of one computation.  *Leaves* (input,
param, const, iota) belong to no unit: every unit that reads one holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from wire.ir.graph import WireGraph

from .liveness import DUPLICATED
from .sent_bytes import fronts, sent_bytes
from .unit_work import kinds_of, units_of

Unit = int  # a position in `units`
GraphNode = int  # a position in the graph's nodes


@dataclass(frozen=True, slots=True)
class GraphIndex:
    """All of `members` to `consumers` are by unit.  Bytes are those of one value of a tensor."""

    graph: WireGraph
    units: tuple[GraphNode, ...]  # the node of each, of siblings the first
    members: tuple[tuple[GraphNode, ...], ...]  # the nodes of each
    operands: tuple[tuple[Unit, ...], ...]  # the units that it reads
    reads: tuple[tuple[tuple[Unit, GraphNode], ...], ...]  # the results that it reads, each with the unit that makes it
    leaves: tuple[tuple[GraphNode, ...], ...]  # the leaves that it reads
    out_bytes: tuple[int, ...]  # of all its results
    scratch_bytes: tuple[int, ...]  # what it needs besides operands and results while it runs
    numpy_scratch_bytes: tuple[int, ...]  # on the engine of that name
    consumers: tuple[tuple[Unit, ...], ...]  # the units that read it
    read_bytes: Mapping[GraphNode, int]  # of each result that a unit reads
    sent_bytes: Mapping[GraphNode, int]  # to another machine, of those of which fewer are sent
    sibling_readers: Mapping[GraphNode, frozenset[Unit]]  # the units that read this one of several siblings
    leaf_bytes: Mapping[GraphNode, int]
    inputs: frozenset[GraphNode]
    output_nodes: frozenset[GraphNode]
    outputs: frozenset[Unit]  # units that make outputs of the graph
    returned: frozenset[GraphNode]  # those of the output nodes that the client is sent

    @classmethod
    def of(cls, graph: WireGraph) -> GraphIndex:
        """The index of a graph all of whose outputs are returned."""
        nodes, kinds = graph.nodes, kinds_of(graph)
        units = units_of(graph)
        unit_of = {index: unit for unit, index in enumerate(units)}
        first = {index: group[0] for group in graph.siblings.values() for index in group}
        unit_of |= {index: unit_of[of] for index, of in first.items()}
        members = tuple([graph.siblings.get(index, (index,)) for index in units])
        operands = tuple([tuple({unit_of[i] for i in nodes[n].inputs if i in unit_of}) for n in units])
        reads = tuple([tuple({(unit_of[i], i): None for i in nodes[n].inputs if i in unit_of}) for n in units])
        made = tuple([kinds.each[kind].result_bytes for kind in kinds.of])
        read = {pair: None for pairs in reads for pair in pairs}
        types, front = graph.types, fronts(graph)
        sizes = {i: made[unit] if len(members[unit]) == 1 else types[i].size_bytes for unit, i in read}
        sent = {i: sent_bytes(types[i], front[i]) for _, i in read if i in front} if front else {}
        consumers: list[list[Unit]] = [[] for _ in units]
        for unit, sources in enumerate(operands):
            for source in sources:
                consumers[source].append(unit)
        readers: dict[GraphNode, set[Unit]] = {index: set() for index in first}
        for index, node in enumerate(nodes) if first else ():
            for operand in node.inputs:
                if operand in first:
                    readers[operand].add(unit_of[index])
        outputs = frozenset(unit_of[index] for index in graph.outputs if index in unit_of)
        return cls(
            graph,
            units,
            members,
            operands,
            reads,
            tuple([tuple({i for i in nodes[n].inputs if i not in unit_of}) for n in units]),
            made,
            tuple([kinds.each[kind].scratch_bytes for kind in kinds.of]),
            tuple([kinds.each[kind].numpy_scratch_bytes for kind in kinds.of]),
            tuple(map(tuple, consumers)),
            sizes,
            sent,
            {index: frozenset(reading) for index, reading in readers.items()},
            {i: graph.types[i].size_bytes for i, node in enumerate(nodes) if node.op in DUPLICATED},
            frozenset(graph.inputs),
            frozenset(graph.outputs),
            outputs,
            frozenset(index for index in graph.outputs if index in unit_of),
        )

    def leaving(self, unit: Unit, local_units: Collection[Unit]) -> list[GraphNode]:
        """The nodes of a unit that are outputs of the graph, or that a unit not among `local_units` reads."""
        members = self.members[unit]
        if len(members) == 1:
            needed = unit in self.outputs or any(consumer not in local_units for consumer in self.consumers[unit])
            return [members[0]] if needed else []
        here = set(local_units)
        return [i for i in members if i in self.output_nodes or not self.sibling_readers[i] <= here]
