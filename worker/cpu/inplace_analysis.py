"""Inplace analysis: which updates of a schedule may be written over the tensor that they update.  Pure.

An update copies a tensor and replaces some rows.  Where nobody reads the old tensor afterwards, the copy is spared.
Each value *reaches* some memory: that of an input, that which a node made, or some of which nothing is known.  What a
kernel makes anew is its own (`FRESH`); any other result may be its operands', or a part of them.  An update may write
over a tensor if all values in the same memory were read before.  Branches of a `cond` are searched with it.

Inputs are taken to be memory of their own: the caller that runs the schedule ensures that, and knows their owners.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from wire.ir.dtypes import BF16, F16
from wire.ir.graph import WireGraph
from wire.ir.ops import COLLECTIVES, ELEMENTWISE, GRAPH_ATTRS, MULTIPLE

from ..compiler.inline_composites import inline_composites

UPDATES = frozenset({"scatter", "dynamic_update_slice"})
UPDATED_BYTES_MIN = 1 << 14  # what is smaller is copied as quickly
MAYBE_VIEWS = frozenset({"select", "real", "imag", "floor", "round", "bitcast", "after", "constraint", "transfer"})
FUSED = "fused"  # in place of a group of nodes: one kernel, which makes memory of its own
FRESH = (ELEMENTWISE | UPDATES | {"dot", "conv", "gather", "concat", "pad", "argmax", "argsort", FUSED}) - MAYBE_VIEWS
"""Ops whose kernels give memory that no operand has; a test runs them all.  So does an update, of a kind: what was
written over is nobody's from then on."""

Memory = Hashable  # the index of the node that made it, or what stands for it in a branch
Reach = Sequence[frozenset[Memory]]  # by node
UNKNOWN: Memory = "unknown"


@dataclass(frozen=True, slots=True)
class Spare:
    """What a schedule may overwrite: the operands of updates, and, for each cond, the operands that its branches may
    overwrite.  These are counted without the first one, which chooses."""

    updates: frozenset[int] = frozenset()
    operands: Mapping[int, frozenset[int]] | None = None

    def of(self, cond: int) -> frozenset[int]:
        return (self.operands or {}).get(cond, frozenset())


class Branches:
    """What the outputs of branches reach, of all graphs inside one.  A chain of conds has a branch in a branch: each
    would be searched once more for every cond around it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[WireGraph, Reach]] = {}  # by the graph's id; the graph is kept, and so is its id

    def of(self, branch: WireGraph) -> Reach:
        known = self._known.get(id(branch))
        if known is None:
            known = self._known[id(branch)] = branch, _inside(branch, self)
        return known[1]


def spare(
    graph: WireGraph, order: Sequence[int], mine: Collection[int], bytes_min: int, branches: Branches | None = None
) -> Spare:
    """What a schedule of `graph`, whose nodes are computed in this order, may write over, if it has `bytes_min`;
    `mine` are the inputs whose memory it may have."""
    if not _has_updates(graph):
        return Spare()
    uses = _Uses(graph, order, frozenset(mine), branches or Branches())
    conds = [index for index in order if graph.nodes[index].op == "cond"]
    operands = {index: frozenset(_operands(uses, index)) for index in conds}
    updates = frozenset(index for index in order if _pays(graph, index, bytes_min) and uses.over(index, 0))
    return Spare(updates, operands)


def _operands(uses: _Uses, cond: int) -> Iterator[int]:
    for place in range(1, len(uses.graph.nodes[cond].inputs)):
        if uses.over(cond, place):
            yield place - 1


class _Uses:
    """The last reads of values, and the memory that each node's value may lie in."""

    def __init__(self, graph: WireGraph, order: Sequence[int], mine: frozenset[int], branches: Branches) -> None:
        self.graph = graph
        self._reach = _reach(graph, branches)
        self._made = dict.fromkeys(range(len(graph.nodes)), -1)  # when; leaves are there from the beginning
        self._read: dict[int, float] = {}
        for when, index in enumerate(order):
            group = graph.siblings.get(index, (index,))
            self._made.update(dict.fromkeys(group, when) if graph.nodes[index].inputs else {})
            self._read.update(dict.fromkeys(graph.nodes[index].inputs, when))
        self._read.update(dict.fromkeys(graph.outputs, inf))
        leaves = {index for index, node in enumerate(graph.nodes) if node.op in ("input", "param")}
        read_elsewhere = (source for node in graph.nodes if node.op in COLLECTIVES for source in node.inputs)
        self._barred = {UNKNOWN, *(leaves - mine)}.union(*(self._reach[source] for source in read_elsewhere))
        self._who: dict[Memory, list[int]] = {}
        for index, reached in enumerate(self._reach):
            for memory in reached:
                self._who.setdefault(memory, []).append(index)

    def over(self, index: int, place: int) -> bool:
        """Whether a node may write over its operand in this place."""
        inputs, now = self.graph.nodes[index].inputs, self._made[index]
        mine = self._reach[inputs[place]]
        others = frozenset().union(*(self._reach[operand] for at, operand in enumerate(inputs) if at != place))
        if mine & (others | self._barred):
            return False
        return all(
            self._read.get(value, -1) <= now
            for memory in mine
            for value in self._who[memory]
            if self._made[value] < now
        )


def _reach(graph: WireGraph, branches: Branches) -> Reach:
    memories: list[frozenset[Memory]] = []
    first = {sibling: group[0] for group in graph.siblings.values() for sibling in group}
    for index, (op, inputs, attrs) in enumerate(graph.nodes):
        operands: frozenset[Memory] = frozenset().union(*(memories[source] for source in inputs))
        if op in ("input", "param") or op in FRESH:
            memories.append(frozenset({index}))
        elif op == "cond":
            group = first[index]
            said = [branches.of(attrs[name])[attrs["output"]] for name in GRAPH_ATTRS["cond"]]
            memories.append(_chosen(group, said, [memories[operand] for operand in inputs[1:]]))
        elif op in MULTIPLE or op in COLLECTIVES or not inputs:
            memories.append(operands | {UNKNOWN})
        else:
            memories.append(operands)
    return memories


def _inside(branch: WireGraph, branches: Branches) -> Reach:
    """What the outputs of a branch reach: the places of its inputs, or memory of its own."""
    flat = inline_composites(branch)
    reach = _reach(flat, branches)
    names = [branch.nodes[index].attrs["name"] for index in (*branch.inputs, *branch.params)]
    places = {index: names.index(flat.nodes[index].attrs["name"]) for index in (*flat.inputs, *flat.params)}
    return [
        frozenset(("operand", places[memory]) if memory in places else memory for memory in reach[output])
        for output in flat.outputs
    ]


def _chosen(cond: int, said: Reach, operands: Sequence[frozenset[Memory]]) -> frozenset[Memory]:
    """What a result of a cond reaches, of which each branch said this."""
    reached: set[Memory] = set()
    for which, memories in enumerate(said):
        for memory in memories:
            if isinstance(memory, tuple) and memory[0] == "operand":
                reached |= operands[memory[1]]
            else:
                reached.add(memory if memory == UNKNOWN else ("branch", cond, which, memory))
    return frozenset(reached)


def _has_updates(graph: WireGraph) -> bool:
    return any(
        node.op in UPDATES or any(_has_updates(node.attrs[name]) for name in GRAPH_ATTRS.get(node.op, ()))
        for node in graph.nodes
    )


def _pays(graph: WireGraph, index: int, bytes_min: int) -> bool:
    node, kind = graph.nodes[index], graph.types[index]
    if node.op not in UPDATES or kind.size_bytes < bytes_min:
        return False
    if node.op == "scatter" and node.attrs["mode"] != "set" and kind.dtype in (F16, BF16):
        return False  # computed wider
    update = graph.types[node.inputs[2 if node.op == "scatter" else 1]]
    return 2 * update.size_bytes <= kind.size_bytes
