"""Sums over scores that equal shorter ones: rewritten before kernels are chosen.

The derivative of a softmax needs, for each query, the sum over all keys of weight times slope.  Where the slopes are
g v^T and the result of the attention is o = weights v, that sum is the one of o times g, over the elements of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.ir.graph import GraphBuilder, WireGraph
from wire.passes.provenance import Provenance

from .scores import axes_of

STEPS_MAX = 8  # of a product that is looked at


@dataclass(slots=True)
class _Factors:
    """What a summed product is made of: `tiles` vary along what is summed, and `over` are divisors that do not."""

    tiles: list[int] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    negative: bool = False


def shorter_sums(graph: WireGraph, provenance: Provenance | None = None) -> WireGraph:
    """The graph with such sums replaced; the same graph if there is none."""
    found = {index: made for index in range(len(graph.nodes)) if (made := _match(graph, index)) is not None}
    if not found:
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        first = len(builder.nodes)
        if index in found:
            placed[index] = _place(graph, builder, placed, index, *found[index])
        else:
            placed[index] = builder.copy(node, [placed[source] for source in node.inputs])
        if provenance is not None:
            provenance.note(index, {placed[index], *range(first, len(builder.nodes))})
    outputs = [placed[index] for index in graph.outputs]
    if provenance is not None:
        provenance.passed(builder.order(outputs))
    return builder.build(outputs, graph.output_names, graph.name)


def _place(
    graph: WireGraph,
    builder: GraphBuilder,
    placed: dict[int, int],
    root: int,
    result: int,
    slope: int,
    factors: _Factors,
) -> int:
    product = builder.add("mul", placed[result], placed[slope])
    total = builder.add("reduce_sum", product, axes=(len(graph.types[result].shape) - 1,))
    for divisor in factors.over:
        row = builder.add("reshape", placed[divisor], shape=graph.types[root].shape)
        total = builder.add("div", total, row)
    return builder.add("neg", total) if factors.negative else total


def _match(graph: WireGraph, root: int) -> tuple[int, int, _Factors] | None:
    """The result of the attention and what comes back to it, before `root`, and the rest of the product."""
    node, own = graph.nodes[root], graph.types[root]
    if node.op != "reduce_sum" or own.dtype.name != "f32":
        return None
    value = graph.types[node.inputs[0]].shape
    if node.attrs["axes"] != (len(value) - 1,):
        return None
    factors = _factors(graph, node.inputs[0], value)
    if len(factors.tiles) != 2:
        return None
    for weights, slopes in (factors.tiles, factors.tiles[::-1]):
        if graph.nodes[slopes].op != "dot" or graph.types[slopes].dtype.name != "f32":
            continue
        g, values = graph.nodes[slopes].inputs
        for index in range(root):
            other = graph.nodes[index]
            if other.op == "dot" and other.inputs == (weights, values) and _are_same(graph, index, slopes):
                return index, g, factors
    return None


def _factors(graph: WireGraph, top: int, shape: tuple[int, ...]) -> _Factors:
    """The product that `top` is; one that is long, or of other shapes, has no tiles."""
    found, pending, row = _Factors(), [top], (*shape[:-1], 1)
    for _ in range(STEPS_MAX):
        if not pending:
            return found
        index = pending.pop()
        node = graph.nodes[index]
        if graph.types[index].shape != shape:
            break
        if node.op == "neg":
            found.negative = not found.negative
            pending += node.inputs
        elif node.op == "mul":
            pending += node.inputs
        elif node.op == "div" and graph.types[node.inputs[1]].shape == row and graph.nodes[node.inputs[0]].op == "dot":
            found.over.append(node.inputs[1])
            pending.append(node.inputs[0])
        else:
            found.tiles.append(index)
    return _Factors()


def _are_same(graph: WireGraph, result: int, slopes: int) -> bool:
    """Whether the result is summed over what `slopes` has as columns, and the other way about."""
    (_, _, left), right = axes_of(graph, result, 0), axes_of(graph, result, 1)
    of_g, of_values = axes_of(graph, slopes, 0), axes_of(graph, slopes, 1)
    rank = len(graph.types[result].shape)
    g = graph.nodes[slopes].inputs[0]
    scores = len(graph.types[graph.nodes[result].inputs[0]].shape)
    return (
        graph.types[g] == graph.types[result]
        and left == (scores - 1,)
        and (of_g[0], of_g[2]) == (tuple(range(len(of_g[0]))), (rank - 1,))
        and (right[0], right[1], right[2]) == (of_values[0], of_values[2], of_values[1])
        and axes_of(graph, result, 0)[0] == of_g[0]
    )
