"""Outlining: groups of nodes that one kernel computes are put in place of their nodes, as one node each.

The other nodes stay as they are and in their order, which ranks that meet rely on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wire.ir.graph import Node, WireGraph
from wire.ir.ops import LEAVES, VIEWS
from wire.ir.types import Attrs, TensorType
from wire.passes.provenance import Provenance

from ..compiler.cut import Cut, cut
from ..compiler.fuse import Group, fuse
from ..cpu.inplace_analysis import FUSED
from .kernels.frame import Frame
from .kernels.product import REACH, is_even
from .kernels.row import reaches
from .rewrite import rewritten
from .target import NATIVE, takes

MASK_WEIGHT_MAX = 8  # of its group: it costs less than to read it
MASK_KINDS = "biu"
FREE = frozenset({"reshape"})  # what numpy computes without touching an element


def outlined(graph: WireGraph, provenance: Provenance | None = None) -> WireGraph:
    """`graph` with a node FUSED, whose attribute `cut` is the group, for each group that is worth a kernel."""
    graph = rewritten(graph, provenance)
    groups = {group.root: group for group in _groups(graph) if _pays(graph, group)}
    _inline_masks(graph, groups)
    inside = {index for group in groups.values() for index in (*group.inlined, *group.anchors)} - set(groups)
    needed = _needed(graph, groups)
    parts = {index: cut(graph, group) for index, group in groups.items()}
    unplaced = {index for index, node in enumerate(graph.nodes) if index in inside or node.op in VIEWS} - needed
    emitted = [index for index in range(len(graph.nodes)) if index not in unplaced]
    _tell_reaches(graph, parts, [index for index in emitted if index not in parts])
    nodes, types, placed = list[Node](), list[TensorType](), dict[int, int]()
    for index in emitted:
        node, placed[index] = graph.nodes[index], len(nodes)
        if index in parts:
            part = parts[index]
            reads = tuple(placed[number] for number in _reads(part))
            nodes.append(Node(FUSED, reads, Attrs({"cut": part})))
        else:
            nodes.append(node._replace(inputs=tuple(placed[source] for source in node.inputs)))
        types.append(graph.types[index])
        if provenance is not None:
            for member in members(nodes[-1].attrs["cut"]) if index in parts else (index,):
                provenance.note(member, (placed[index],))
    if provenance is not None:
        provenance.passed(range(len(nodes)))
    outputs = tuple(placed[index] for index in graph.outputs)
    return WireGraph(tuple(nodes), outputs, graph.output_names, tuple(types), graph.name, graph.blobs)


def members(part: Cut) -> list[int]:
    """The numbers, in the graph it was cut from, of what a group computes."""
    return [number for number, node in zip(part.numbers, part.nodes, strict=True) if node.op not in LEAVES]


def _inline_masks(graph: WireGraph, groups: dict[int, Group]) -> None:
    """Let rows compute masks that follow from positions alone, however many of them share one: their kernels then know
    its edge (`kernels/edges.py`)."""
    masks = {
        root: group for root, group in groups.items()
        if group.kind == "map" and not group.reads and group.weight <= MASK_WEIGHT_MAX
        and graph.types[root].dtype.kind in MASK_KINDS
    }  # fmt: skip
    for group in groups.values():
        if group.kind == "row":
            for root in group.reads & masks.keys():
                group.inlined |= {root, *masks[root].inlined}
                group.reads.discard(root)
    members = {index for group in groups.values() for index in (group.root, *group.inlined, *group.anchors)}
    others = (node.inputs for index, node in enumerate(graph.nodes) if index not in members)
    read = {*graph.outputs, *(source for sources in others for source in sources)}
    read.update(*(group.reads for group in groups.values()))
    for root in masks.keys() - read:
        del groups[root]


def _tell_reaches(graph: WireGraph, parts: dict[int, Cut], others: Sequence[int]) -> None:
    """Tell products whose results are behind an edge where a part is not read (`kernels/edges.py`), if no other node
    reads them."""
    everywhere = {*graph.outputs, *(source for index in others for source in graph.nodes[index].inputs)}
    readers: dict[int, list[Cut]] = {}
    for part in parts.values():
        for number in _reads(part):
            readers.setdefault(number, []).append(part)
    known: dict[object, dict[int, int]] = {}  # a model has the same softmax in each of its layers
    for index in readers.keys() & parts.keys() - everywhere:
        product = parts[index].nodes[-1]
        if product.op == "dot":
            found = [_reach(reader, index, known) for reader in readers[index]]
            far = [one for one in found if one is not None]
            if len(far) == len(found):
                limited = product._replace(attrs=Attrs({**product.attrs, REACH: max(far)}))
                parts[index] = replace(parts[index], nodes=(*parts[index].nodes[:-1], limited))


def _reach(reader: Cut, number: int, known: dict[object, dict[int, int]]) -> int | None:
    """How far a group reads the rows of a value, if it says so."""
    if reader.kind != "row" or all(node.op != "select" for node in reader.nodes):
        return None
    if reader.key not in known:
        known[reader.key] = reaches(Frame.of(reader))
    return known[reader.key].get(reader.numbers.index(number))


def _groups(graph: WireGraph) -> list[Group]:
    """The groups of a graph.  Views before products are left out of these where one makes an operand uneven, and then
    products whose operands are uneven as they lie in memory."""
    groups = fuse(graph, NATIVE)
    if _uneven(graph, groups):
        plain = replace(NATIVE, prologue=frozenset(), unpacking=frozenset(), picking=frozenset())
        groups = fuse(graph, plain)
        if uneven := _uneven(graph, groups):
            groups = fuse(graph, replace(plain, takes=lambda graph, index: index not in uneven and takes(graph, index)))
    return groups


def _uneven(graph: WireGraph, groups: list[Group]) -> set[int]:
    """The products whose operands are not matrices at even strides."""
    known: dict[object, bool] = {}  # a model has the same product in each of its layers

    def even(part: Cut) -> bool:
        if part.key not in known:
            known[part.key] = is_even(Frame.of(part))
        return known[part.key]

    return {group.anchors[0] for group in groups if group.kind == "matmul" and not even(cut(graph, group))}


def _pays(graph: WireGraph, group: Group) -> bool:
    return any(graph.nodes[index].op not in FREE for index in (group.root, *group.inlined, *group.anchors))


def _needed(graph: WireGraph, groups: dict[int, Group]) -> set[int]:
    """The nodes whose results have to be there: outputs, and what kernels and other nodes read."""
    needed, pending = set[int](), list(graph.outputs)
    pending += [index for index, node in enumerate(graph.nodes) if node.op in ("input", "param")]
    while pending:
        index = pending.pop()
        if index not in needed:
            needed.add(index)
            pending += groups[index].reads if index in groups else graph.nodes[index].inputs
    return needed


def _reads(part: Cut) -> list[int]:
    """The numbers, in the graph it was cut from, of what a group reads, in the order of its kernel's arguments."""
    return [part.numbers[place] for place, node in enumerate(part.nodes) if node.op == "input"]
