"""Unit work: what a unit of a graph demands of a device, and what it takes there.  It knows no machines but by their
figures.

Programs repeat: layers have the same ops over tensors of the same types.  So units are numbered by their *kind*, and
all that is derived of a unit is derived once for its kind.  A graph of 100,000 nodes has a few dozen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BOOL
from wire.ir.graph import Node, WireGraph
from wire.ir.graph_memory import kept_with_graph
from wire.ir.ops import CONTROL, ELEMENTWISE, LEAVES, VIEWS, WHILE_TRIPS, inner_graphs
from wire.ir.types import TensorType
from wire.limits import MIB
from wire.units import size_text

from .liveness import DUPLICATED, inside
from .profiles import DeviceProfile

COPIED = frozenset({"pad", "concat"})  # the views that engines do not fold into their readers
PICKED = frozenset({"gather", "dynamic_slice"})  # they read as much of their first operand as they write
BINDING_BYTES_MIN = 128 * MIB  # every device binds tensors of this size: WebGPU's minimum
RATE_MIN = 1.0  # flops or bytes per second: no time is endless, whatever a worker says of its device
NUMBERED_MAX = (1 << 31) - 1  # elements; kernels for GPUs cannot count more, whether they are in memory or not


class Need(NamedTuple):
    """An op with the dtypes of its operands and its result, and the bytes of the largest tensor that must be in a
    device's memory for it; 0 if every device can have it."""

    op: str
    dtypes: tuple[str, ...]
    tensor_bytes: int = 0

    def __str__(self) -> str:
        size = f" with a tensor of {size_text(self.tensor_bytes)}" if self.tensor_bytes else ""
        return f"{self.op} of {', '.join(self.dtypes)}{size}"


Needs = frozenset[Need]


class Kind(NamedTuple):
    """What all units of one kind have in common."""

    needs: Needs
    flops: int
    moved: int  # bytes read and written
    turns: int  # of a loop, each with a dispatch of its own
    result_bytes: int
    scratch_bytes: int  # what it needs besides operands and results while it runs
    numpy_scratch_bytes: int  # on the engine of that name

    def seconds(self, device: DeviceProfile) -> float:
        """What a unit takes on a device: the roofline's maximum, and a dispatch for every turn."""
        computing_s = self.flops / max(device.gflops * 1e9, RATE_MIN)
        return self.turns * device.dispatch_s + max(computing_s, self.moved / max(device.gbytes_per_s * 1e9, RATE_MIN))


class Kinds(NamedTuple):
    """The kinds of a graph's units: `of` is by unit a position in `each`."""

    of: tuple[int, ...]
    each: tuple[Kind, ...]


@kept_with_graph
def units_of(graph: WireGraph) -> tuple[int, ...]:
    """The nodes that compute something, of siblings the first."""
    again = {index for first, group in graph.siblings.items() for index in group if index != first}
    return tuple([i for i, node in enumerate(graph.nodes) if node.op not in DUPLICATED and i not in again])


@kept_with_graph
def kinds_of(graph: WireGraph) -> Kinds:
    """The kinds of the units, in the order in which they are met.

    Two units are of one kind if op, attributes, and the types of operands and results are the same.
    """
    nodes, siblings, large = graph.nodes, graph.siblings, _large_tensors(graph)
    types: dict[TensorType, int] = {}
    type_of = [types.setdefault(type_, len(types)) for type_ in graph.types]
    numbers: dict[tuple[object, ...], int] = {}
    of, each = list[int](), list[Kind]()
    for index in units_of(graph):
        op, inputs, attrs = nodes[index]
        made = siblings.get(index, (index,))
        # attributes that are equal are one object in graphs that were built or decoded
        signature: tuple[object, ...] = (op, id(attrs), len(made), *[type_of[i] for i in (*inputs, *made)])
        if large:
            signature = (*signature, tensor_bytes(graph, index))
        number = numbers.setdefault(signature, len(each))
        if number == len(each):
            each.append(_kind(graph, index, made))
        of.append(number)
    return Kinds(tuple(of), tuple(each))


def _kind(graph: WireGraph, index: int, made: Sequence[int]) -> Kind:
    return Kind(
        needs(graph, index),
        graph.flops_of(index),
        _moved(graph, index),
        turns(graph.nodes[index]),
        sum(graph.types[sibling].size_bytes for sibling in made),
        inside(graph, index),
        inside(graph, index, by_numpy=True),
    )


def _moved(graph: WireGraph, index: int) -> int:
    """Bytes read and written; a view moves nothing, because engines fold it into its readers."""
    node, types = graph.nodes[index], graph.types
    if node.op in VIEWS and node.op not in COPIED:
        return 0
    moved = [types[i].size_bytes for i in (*node.inputs, *graph.siblings.get(index, (index,)))]
    if node.op in PICKED:
        moved[0] = types[index].size_bytes
    if node.op in CONTROL:
        per_turn = max(map(_moved_inside, inner_graphs(node.op, node.attrs)))
        moved.append(max(turns(node), 1) * per_turn)
    return sum(moved)


@kept_with_graph
def _moved_inside(graph: WireGraph) -> int:
    again = {index for first, group in graph.siblings.items() for index in group if index != first}
    return sum(_moved(graph, i) for i, n in enumerate(graph.nodes) if n.op not in DUPLICATED and i not in again)


def turns(node: Node) -> int:
    """How often a loop turns, each time with a dispatch of its own."""
    if node.op == "scan":
        length: int = node.attrs["length"]
        return length
    return WHILE_TRIPS if node.op == "while" else 0


def needs(graph: WireGraph, index: int) -> Needs:
    """What a device must support to compute a node: ops with their dtypes, also those of the graphs inside it.

    A composite itself is nothing to support.
    """
    node = graph.nodes[index]
    names = tuple(sorted({graph.types[i].dtype.name for i in (*node.inputs, index)}))
    own: Needs = frozenset({Need(node.op, names, tensor_bytes(graph, index))} if node.op != "composite" else ())
    return own.union(*map(_body_needs, inner_graphs(node.op, node.attrs)))


def tensor_bytes(graph: WireGraph, index: int) -> int:
    """The bytes of the largest of a node's tensors that are in memory whatever kernels there are, if it is large."""
    large = _large_tensors(graph)
    return max([large.get(each, 0) for each in (*graph.nodes[index].inputs, index)]) if large else 0


@kept_with_graph
def _large_tensors(graph: WireGraph) -> Mapping[int, int]:
    """The bytes of the large tensors that are in a device's memory, by their nodes.

    Those are what comes from outside and what leaves, products with params, what ops make that no kernel computes on
    the way to something else, and what is made of these.  Others, such as the scores of attention, may never be there.
    What has more elements than kernels count is large in any case.
    """
    large, outputs = dict[int, int](), frozenset(graph.outputs)
    for index, (node, type_) in enumerate(zip(graph.nodes, graph.types, strict=True)):
        size = type_.size * (4 if type_.dtype is BOOL else type_.dtype.itemsize)  # GPUs take 4 bytes for a bool
        if type_.size > NUMBERED_MAX:
            large[index] = size
        if size <= BINDING_BYTES_MIN or node.op in ("const", "iota"):
            continue
        weights = node.op == "dot" and any(graph.nodes[source].op == "param" for source in node.inputs)
        on_the_way = node.op == "dot" or node.op in ELEMENTWISE or node.op in VIEWS - COPIED
        if weights or index in outputs or not on_the_way or any(source in large for source in node.inputs):
            large[index] = size
    return large


@kept_with_graph
def _body_needs(body: WireGraph) -> Needs:
    inner = (index for index, node in enumerate(body.nodes) if node.op not in LEAVES)
    return frozenset().union(*(needs(body, index) for index in inner))


def graph_seconds(graph: WireGraph, device: DeviceProfile) -> float:
    """The seconds that a device needs for a graph, without its own dispatch."""
    counts, flops, moved, dispatches = _all_work(graph)
    rates = max(device.gflops * 1e9, RATE_MIN), max(device.gbytes_per_s * 1e9, RATE_MIN)
    computing = np.maximum(flops / rates[0], moved / rates[1])
    return float(counts @ computing) + dispatches * device.dispatch_s


@kept_with_graph
def _all_work(graph: WireGraph) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], int]:
    """The number of units of every kind, their flops and bytes moved; and how often loops turn in all."""
    kinds = kinds_of(graph)
    counted = Counter(kinds.of)
    counts = np.array([counted[number] for number in range(len(kinds.each))], np.float64)
    flops = np.array([kind.flops for kind in kinds.each], np.float64)
    moved = np.array([kind.moved for kind in kinds.each], np.float64)
    return counts, flops, moved, sum(counted[number] * kind.turns for number, kind in enumerate(kinds.each))
