"""The working set of a graph: the most bytes of results that are alive at once while its nodes run in order.

What is inside a node counts while the node runs: a branch that is taken, a turn of a loop, or what its kernel copies.
Siblings are made together.
"""

from __future__ import annotations

from wire.ir.graph import WireGraph
from wire.ir.graph_memory import kept_with_graph
from wire.ir.ops import CONTROL, inner_graphs
from wire.ir.workspace import scratch_bytes

CONSTANTS = frozenset({"const", "iota"})
DUPLICATED = CONSTANTS | {"input", "param"}  # held or made again by every part that uses them


def working_set(graph: WireGraph, by_numpy: bool = False) -> int:
    """A result is freed after its last reader, and an output never; `by_numpy` on the engine of that name."""
    return _of_numpy(graph) if by_numpy else _of_most(graph)


@kept_with_graph
def _of_numpy(graph: WireGraph) -> int:
    return _working_set(graph, True)


@kept_with_graph
def _of_most(graph: WireGraph) -> int:
    return _working_set(graph, False)


def _working_set(graph: WireGraph, by_numpy: bool) -> int:
    later = {index for first, group in graph.siblings.items() for index in group if index != first}
    last_reader = {i: at for at, node in enumerate(graph.nodes) if at not in later for i in node.inputs}
    freed_by: dict[int, int] = {}
    outputs = frozenset(graph.outputs)
    for source, reader in last_reader.items():
        if graph.nodes[source].op not in DUPLICATED and source not in outputs:
            freed_by[reader] = freed_by.get(reader, 0) + graph.types[source].size_bytes
    alive = most = 0
    for index, node in enumerate(graph.nodes):
        if node.op not in DUPLICATED and index not in later:
            alive += sum(graph.types[sibling].size_bytes for sibling in graph.siblings.get(index, (index,)))
            most = max(most, alive + inside(graph, index, by_numpy))
            alive -= freed_by.get(index, 0)
    return most


def inside(graph: WireGraph, index: int, by_numpy: bool = False) -> int:
    """What a node needs besides its operands and results.  A composite is taken to be one kernel."""
    node = graph.nodes[index]
    if node.op in CONTROL:
        return max(working_set(inner, by_numpy) for inner in inner_graphs(node.op, node.attrs))
    return scratch_bytes(graph, index, by_numpy)
