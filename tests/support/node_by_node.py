"""A whole graph judged node by node: each result against the cpu engine's, computed from the engine's own operands.

So rounding is never amplified: graphs may do anything to NaN, infinities and cancellation, and still every op in them
must keep to its row's tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from wire.ir.graph import GraphBuilder, WireGraph, const_value
from wire.ir.ops import LEAVES
from worker.cpu import evaluate
from worker.engine.protocol import Engine

from .cases.op_cases import Case
from .compare import assert_close, magnitude_of

Tensors = Mapping[str, NDArray[Any]]


def judge(engine: Engine, graph: WireGraph, given: Tensors) -> None:
    """AssertionError naming the first node that the engine computes wrongly; `given` has inputs and params by name."""
    whole = with_every_node_an_output(graph)
    arguments = [given[whole.nodes[index].attrs["name"]] for index in (*whole.inputs, *whole.params)]
    results = engine.run(engine.compile(whole), arguments)
    values = dict(zip(whole.outputs, results, strict=True)) | dict(_leaf_values(whole, given))
    for index in whole.outputs:
        case = alone(whole, index, values)
        (expected,), (magnitude,) = evaluate(case.graph, case.inputs), magnitude_of(case)
        assert_close(values[index], expected, case.op, whole.types[index].dtype, magnitude)


def with_every_node_an_output(graph: WireGraph) -> WireGraph:
    builder, placed = GraphBuilder(), []
    builder.blobs.update(graph.blobs)
    for node in graph.nodes:
        placed.append(builder.add(node.op, *(placed[source] for source in node.inputs), **node.attrs))
    computed = [index for index, node in zip(placed, graph.nodes, strict=True) if node.op not in LEAVES]
    return builder.build(computed, name=graph.name)


def alone(graph: WireGraph, index: int, values: Mapping[int, NDArray[Any]]) -> Case:
    """One node of a graph as a graph, its operands the inputs."""
    node, builder = graph.nodes[index], GraphBuilder()
    sources = {source: builder.input(f"x{source}", *graph.types[source]) for source in node.inputs}
    built = builder.build([builder.add(node.op, *(sources[source] for source in node.inputs), **node.attrs)])
    dtype = graph.types[node.inputs[0] if node.inputs else index].dtype
    return Case(f"{graph.name}/{index}", node.op, dtype, built, {f"x{source}": values[source] for source in sources})


def _leaf_values(graph: WireGraph, given: Tensors) -> Iterator[tuple[int, NDArray[Any]]]:
    for index, node in enumerate(graph.nodes):
        if node.op == "const":
            yield index, const_value(node, graph.blobs)
        elif node.op in LEAVES:
            yield index, given[node.attrs["name"]]
