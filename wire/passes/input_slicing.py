"""narrow: a graph that is given no more than it reads: inputs that nobody reads are gone, and of one that only slices
read there is the smallest box that has them all.

Its sender then sends less.  It knows nothing else of what a node needs: rows that a gather picks are all rows.
"""

from __future__ import annotations

from collections.abc import Collection

from ..ir.graph import GraphBuilder, Node, WireGraph
from ..ir.types import TensorType

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where it begins, and its sizes."""


def narrow(graph: WireGraph, whole: Collection[str] = ()) -> tuple[WireGraph, dict[str, Box]]:
    """The graph, and for each of its inputs the box that it is of what it was; those in `whole` are not cut."""
    boxes = _boxes(graph, whole)
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        if node.op == "input":
            if index in boxes:
                placed[index] = builder.input(node.attrs["name"], boxes[index][1], graph.types[index].dtype)
        elif node.op == "slice" and node.inputs[0] in boxes:
            placed[index] = _within(builder, placed[node.inputs[0]], boxes[node.inputs[0]][0], node, graph.types[index])
        else:
            placed[index] = builder.copy(node, [placed[source] for source in node.inputs])
    narrowed = builder.build([placed[index] for index in graph.outputs], graph.output_names, graph.name)
    return narrowed, {graph.nodes[index].attrs["name"]: box for index, box in boxes.items()}


def _within(builder: GraphBuilder, source: int, low: tuple[int, ...], node: Node, kind: TensorType) -> int:
    """The slice of an input of which there is only what begins at `low`."""
    if builder.types[source].shape == kind.shape:
        return source
    start, stop = (tuple(map(int.__sub__, bound, low)) for bound in (node.attrs["start"], _end(node, kind)))
    return builder.add("slice", source, start=start, stop=stop, step=node.attrs["step"])


def _end(node: Node, kind: TensorType) -> tuple[int, ...]:
    """The ends behind the last elements that a slice takes; a slice that takes none may have any end."""
    stop: tuple[int, ...] = node.attrs["stop"]
    if not kind.size:
        return stop
    last = zip(node.attrs["start"], node.attrs["step"], kind.shape, strict=True)
    return tuple(start + (count - 1) * step + 1 for start, step, count in last)


def _boxes(graph: WireGraph, whole: Collection[str]) -> dict[int, Box]:
    """The box of every input that is read."""
    read: dict[int, list[Box]] = {}
    for index, node in enumerate(graph.nodes):
        for source in node.inputs:
            if graph.nodes[source].op != "input":
                continue
            kind = graph.types[index]
            if node.op == "slice" and kind.size and graph.nodes[source].attrs["name"] not in whole:
                read.setdefault(source, []).append((node.attrs["start"], _end(node, kind)))
            else:
                read.setdefault(source, []).append(_all(graph, source))
    for index in graph.outputs:
        if graph.nodes[index].op == "input":
            read.setdefault(index, []).append(_all(graph, index))
    return {index: _hull(spans) for index, spans in sorted(read.items())}


def _all(graph: WireGraph, index: int) -> Box:
    shape = graph.types[index].shape
    return (0,) * len(shape), shape


def _hull(spans: list[Box]) -> Box:
    """The smallest box around boxes that are given by where they begin and end."""
    starts, ends = zip(*spans, strict=True)
    low, high = tuple(map(min, zip(*starts, strict=True))), tuple(map(max, zip(*ends, strict=True)))
    return low, tuple(map(int.__sub__, high, low))
