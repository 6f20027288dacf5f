"""A graph cut in two: the nodes before a place run as one graph, and the others as another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu import evaluate

Tensors = Mapping[str, NDArray[Any]]
Evaluate = Callable[[WireGraph, Tensors], list[NDArray[Any]]]


def cut_in_two(graph: WireGraph, position: int, inputs: Tensors, evaluated: Evaluate = evaluate) -> list[NDArray[Any]]:
    """The outputs, with the nodes before `position` run as one graph and the others as another."""
    ahead = _part(graph, range(position), {})
    needed = {source for node in graph.nodes[position:] for source in node.inputs if source < position}
    crossing = sorted(needed | {index for index in graph.outputs if index < position})
    first = _run(ahead, crossing, inputs, evaluated)
    behind = _part(graph, range(position, len(graph)), {index: f"crossing{index}" for index in crossing})
    given = {f"crossing{index}": travelled(array) for index, array in zip(crossing, first, strict=True)}
    return _run(behind, graph.outputs, {**inputs, **given}, evaluated)


def _part(graph: WireGraph, places: range, received: Mapping[int, str]) -> tuple[GraphBuilder, dict[int, int]]:
    builder, placed = GraphBuilder(), {}
    builder.blobs.update(graph.blobs)
    for index, name in received.items():
        placed[index] = builder.input(name, *graph.types[index])
    for index in places:
        node = graph.nodes[index]
        placed[index] = builder.add(node.op, *(placed[source] for source in node.inputs), **node.attrs)
    return builder, placed


def _run(
    part: tuple[GraphBuilder, dict[int, int]], wanted: Any, given: Tensors, evaluated: Evaluate
) -> list[NDArray[Any]]:
    builder, placed = part
    distinct = list(dict.fromkeys(placed[index] for index in wanted))
    built = builder.build(distinct)
    actual = dict(zip(distinct, evaluated(built, given), strict=True))
    return [actual[placed[index]] for index in wanted]


def travelled(array: NDArray[Any]) -> NDArray[Any]:
    """The array as it arrives at another worker: read-only, in C order, in memory of its own."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def same_bits(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> bool:
    return [a.tobytes() for a in found] == [b.tobytes() for b in expected]
