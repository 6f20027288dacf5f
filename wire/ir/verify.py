"""verify: everything the decoder promises of a graph, checked on one that is already in memory.

GraphBuilder and the decoder only make graphs that pass.  Code that puts a WireGraph together by hand (the text form,
a rewriting pass) calls this before it lets the graph go.  What one op demands is in `ops.py` and `rules.py`; how
large a graph may be is in `wire/limits.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..errors import AttrError, GraphError, LimitExceeded
from ..limits import DEFAULT, Limits
from ..units import size_text
from .graph import WireGraph, check_name, infer
from .types import Attrs


def verify(graph: WireGraph, limits: Limits = DEFAULT, grid: Mapping[str, int] = MappingProxyType({})) -> None:
    """Return if `graph` is valid; otherwise raise a GraphError (or a subclass, as decoding does) naming op and node.

    Checked: every index refers to an earlier node, arities, attributes, stored types against derived ones, names
    distinct, every limit, the graphs inside nodes likewise, and the size of each constant that is held.  Collectives
    stand in the body of an spmd node, unless `grid` (sizes by axis) says over which axes the graph itself is run.
    """
    _verify(graph, limits, depth=0)
    check_bound(graph, grid)
    if len(graph.encoded) > limits.graph_bytes_max:
        raise LimitExceeded(f"a graph of {size_text(len(graph.encoded))} exceeds {size_text(limits.graph_bytes_max)}")


def check_bound(graph: WireGraph, grid: Mapping[str, int] = MappingProxyType({})) -> None:
    """Check that collectives are in an spmd node's body, or over axes of the grid that it runs on; AttrError if not."""
    for axis, size in graph.free_axes.items():
        if grid.get(axis) != size:
            raise AttrError(
                f"a collective over the axis {axis!r} of size {size} stands outside of a grid that has it",
                next_step="Call it within a function given to mesh.shard_map",
            )


def _verify(graph: WireGraph, limits: Limits, depth: int) -> None:
    if depth > limits.nesting_max:
        raise LimitExceeded(f"graphs nest deeper than {limits.nesting_max}")
    count = len(graph.nodes)
    if count > limits.graph_nodes_max:
        raise LimitExceeded(f"{count} nodes exceed {limits.graph_nodes_max}")
    if len(graph.types) != count:
        raise GraphError(f"{count} nodes have {len(graph.types)} types")
    verified: set[int] = set()
    for index in range(count):
        try:
            _check_node(graph, index, limits, depth, verified)
        except GraphError as error:
            error.op = f"{graph.nodes[index].op} (node {index})"
            raise
    edges = sum(len(node.inputs) for node in graph.nodes)
    if edges > limits.graph_edges_max:
        raise LimitExceeded(f"{edges} edges exceed {limits.graph_edges_max}")
    if not _are_indices(graph.outputs, count):
        raise GraphError(f"the outputs {graph.outputs} are not indices of {count} nodes")
    if len(graph.output_names) != len(graph.outputs):
        raise GraphError(f"{len(graph.outputs)} outputs have {len(graph.output_names)} names")
    _check_distinct(graph.output_names, "outputs", limits)
    _check_distinct([graph.nodes[leaf].attrs["name"] for leaf in (*graph.inputs, *graph.params)], "leaves", limits)
    check_name(graph.name, limits)


def _check_node(graph: WireGraph, index: int, limits: Limits, depth: int, verified: set[int]) -> None:
    """`verified` are the ids of the graphs inside earlier nodes: siblings share theirs."""
    op, inputs, attrs = node = graph.nodes[index]
    if not _are_indices(inputs, index):
        raise GraphError(f"an input of {inputs} does not come before the node")
    _check_attr_sizes(attrs, limits)
    for inner in attrs.values():
        if isinstance(inner, WireGraph) and id(inner) not in verified:
            _verify(inner, limits, depth + 1)
            verified.add(id(inner))
    derived = infer(node, [graph.types[source] for source in inputs], limits)
    if graph.types[index] != derived:
        raise GraphError(f"the stored type {graph.types[index]} is not the derived one, {derived}")
    held = graph.blobs.get(attrs["blob"]) if op == "const" and "blob" in attrs else None
    if held is not None and held.nbytes != derived.size_bytes:
        raise GraphError(f"the constant held has {held.nbytes} bytes, {derived} needs {derived.size_bytes}")


def _check_attr_sizes(attrs: Attrs, limits: Limits) -> None:
    if not isinstance(attrs, Attrs):
        raise AttrError(f"a node's attributes are Attrs, got {type(attrs).__name__}")
    if len(attrs) > limits.attrs_per_node_max:
        raise LimitExceeded(f"{len(attrs)} attributes exceed {limits.attrs_per_node_max}")
    for value in attrs.values():
        if isinstance(value, str):
            check_name(value, limits)
        if isinstance(value, bytes) and len(value) > limits.inline_const_bytes_max:
            raise LimitExceeded(f"an inline constant has at most {size_text(limits.inline_const_bytes_max)}")


def _are_indices(values: Sequence[Any], bound: int) -> bool:
    return type(values) is tuple and all(type(value) is int and 0 <= value < bound for value in values)


def _check_distinct(names: Sequence[Any], what: str, limits: Limits) -> None:
    for name in names:
        check_name(name, limits)
    if len(set(names)) != len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise GraphError(f"two {what} are named {twice!r}")
