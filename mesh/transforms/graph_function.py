"""Graph function: a WireGraph as a function that can be traced again, differentiated and batched.

    f = graph_function(graph)               # f(*arrays), in the order of the graph's inputs and params
    f = graph_function(graph, rows=["x"])   # the same for any number of rows of x

A graph has fixed shapes.  For another number of rows it is computed in blocks of as many as it was traced for, the last
of which is filled up; a graph of one row, without an axis for rows, is computed for each of them.  Its rows must not
depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from wire.errors import InputError, ShapeError
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType

from .. import numpy as mnp
from ..core.array import Array
from ..numpy.promotion import asarray
from .step_list import call_graph
from .vmap import vmap


def graph_function(graph: WireGraph, rows: Collection[str] = ()) -> Callable[..., list[Array]]:
    """The outputs of a graph for arrays in the order of its inputs and params; `rows` names those that have rows.

    InputError naming the array whose dtype does not fit, ShapeError one whose shape does not.
    """
    plain = without_params(graph)
    types = plain.input_types
    sized = _rows_of(plain, rows)

    def whole(*arrays: Any) -> list[Array]:
        return call_graph(plain, *arrays)

    def function(*arrays: Any) -> list[Array]:
        values = dict(zip(types, map(asarray, arrays), strict=True))
        deeper, count = _seen(values, types, rows, sized)
        in_axes = tuple([0 if name in rows else None for name in types])
        if not deeper and count in (sized, 0):
            return whole(*values.values())
        if deeper:
            by_row: list[Array] = vmap(whole, in_axes=in_axes)(*values.values())
            return by_row
        blocks = -(-count // sized)
        cut = [_in_blocks(value, blocks, sized) if name in rows else value for name, value in values.items()]
        by_block: list[Array] = vmap(whole, in_axes=in_axes)(*cut)
        return [mnp.reshape(block, (blocks * sized, *block.shape[2:]))[:count] for block in by_block]

    return function


def without_params(graph: WireGraph) -> WireGraph:
    """The same graph, its params made inputs."""
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: list[int] = []
    for node in graph.nodes:
        node = node._replace(op="input") if node.op == "param" else node
        placed.append(builder.copy(node, [placed[source] for source in node.inputs]))
    return builder.build([placed[index] for index in graph.outputs], graph.output_names, graph.name)


def _rows_of(graph: WireGraph, rows: Collection[str]) -> int:
    """How many rows a graph was traced for: those that all of `rows` and all outputs have first; 0 if they differ."""
    shapes = [graph.input_types[name].shape for name in rows] + [graph.types[index].shape for index in graph.outputs]
    counts = {shape[0] if shape else 0 for shape in shapes}
    return counts.pop() if rows and len(counts) == 1 else 0


def _seen(
    arrays: Mapping[str, Array], types: Mapping[str, TensorType], rows: Collection[str], sized: int
) -> tuple[bool, int]:
    """Whether arrays have an axis for rows that the graph has not, and how many rows they have (0: as in the graph)."""
    counts: dict[tuple[bool, int], str] = {}
    for name, array in arrays.items():
        wanted, shape = types[name], array.shape
        if array.dtype != wanted.dtype.numpy:
            raise InputError(
                f"the graph takes {wanted} for {name!r}, got {array.type}",
                next_step=f"Convert it: astype({wanted.dtype.numpy.name!r})",
            )
        if name in rows and shape[1:] == wanted.shape:
            counts[True, shape[0]] = name
        elif name in rows and sized and shape and shape[1:] == wanted.shape[1:]:
            counts[False, shape[0]] = name
        elif shape != wanted.shape:
            raise ShapeError(
                f"the graph takes {wanted} for {name!r}, got {array.type}",
                next_step="Give the function in place of its graph: it is traced for every shape",
            )
        elif name in rows:
            counts[False, 0] = name
    if len(counts) > 1:
        found = " and ".join(f"{name!r} is {arrays[name].type}" for name in counts.values())
        raise ShapeError(f"the inputs of the graph do not have the same rows: {found}")
    return next(iter(counts), (False, 0))


def _in_blocks(array: Array, blocks: int, size: int) -> Array:
    """Rows in blocks of `size`, the last one filled up with copies of the first row."""
    missing = blocks * size - array.shape[0]
    filled: Sequence[Array] = [array, mnp.repeat(array[:1], missing, axis=0)] if missing else [array]
    return mnp.reshape(mnp.concat(filled), (blocks, size, *array.shape[1:]))


__all__ = ["graph_function", "without_params"]
