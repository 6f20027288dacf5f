"""Updates in place: a scatter or dynamic_update_slice of a large tensor as two programs, of a few rows each.

`save` reads the rows that will be written over, `put` writes: it has no operand for the tensor, but its result's memory
is the tensor's (values.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wire.ir.graph import GraphBuilder, Node, WireGraph
from wire.ir.types import TensorType

from ..compiler.fuse import Group

UPDATED_BYTES_MIN = 256 << 10  # of a tensor, unless an engine is given another figure; smaller ones are soon copied
INDICES_MAX = 1_024  # of a scatter: each invocation looks at all that follow its own
SMALLER = 2  # times that the rows must be


@dataclass(frozen=True, slots=True)
class Update:
    """The places of an op's operands: the rows, and where they go."""

    rows: int
    where: int


UPDATES: Mapping[str, Update] = {"scatter": Update(rows=2, where=1), "dynamic_update_slice": Update(rows=1, where=2)}


def in_place(graph: WireGraph, bytes_min: int) -> frozenset[int]:
    """The updates of a graph of tensors that take `bytes_min` or more.  Ranks that meet compute in an order of their
    own: they have none."""
    if graph.free_axes:
        return frozenset()
    return frozenset(index for index in range(len(graph.nodes)) if _pays(graph, index, bytes_min))


def _pays(graph: WireGraph, index: int, bytes_min: int) -> bool:
    node, kind = graph.nodes[index], graph.types[index]
    if node.op not in UPDATES or kind.size_bytes < bytes_min:
        return False
    rows, where = (graph.types[node.inputs[place]] for place in (UPDATES[node.op].rows, UPDATES[node.op].where))
    if node.op == "scatter" and (node.attrs["mode"] != "set" or where.size > INDICES_MAX):
        return False
    return 0 < SMALLER * rows.size <= kind.size and _is_given(graph, node.inputs[0])


def _is_given(graph: WireGraph, index: int) -> bool:
    """Whether a tensor comes from outside, updated or not; one that is computed is computed with its update."""
    while graph.nodes[index].op in ("reshape", *UPDATES):
        index = graph.nodes[index].inputs[0]
    return graph.nodes[index].op in ("input", "param")


def save_graph(node: Node, types: tuple[TensorType, ...]) -> WireGraph:
    """The rows that are there, of the tensor and where they are."""
    builder, update = GraphBuilder(), UPDATES[node.op]
    tensor, where = (builder.input(str(place), *types[place]) for place in (0, update.where))
    if node.op == "scatter":
        return builder.build([builder.add("gather", tensor, where, axis=node.attrs["axis"], batch_dims=0)])
    return builder.build([builder.add("dynamic_slice", tensor, where, sizes=types[update.rows].shape)])


def put_graph(node: Node, types: tuple[TensorType, ...]) -> tuple[WireGraph, Group]:
    """The update alone, and its kernel's group, which reads all but the tensor."""
    builder = GraphBuilder()
    inputs = [builder.input(str(place), *type_) for place, type_ in enumerate(types)]
    root = builder.add(node.op, *inputs, **node.attrs)
    return builder.build([root]), Group(root, "put", reads=set(inputs))
