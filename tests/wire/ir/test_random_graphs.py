"""The random graphs of the suites: a seed fixes one, the cpu engine runs them, and together they cover the op table."""

from __future__ import annotations

import numpy as np
from support.cases.random_graphs import big_graph, random_graph

from wire.ir.codec import decode_graph
from wire.ir.dtypes import BY_NAME
from wire.ir.graph import GraphBuilder
from wire.ir.ops import COLLECTIVES, OPS
from worker.cpu import evaluate


def test_a_seed_fixes_graph_and_values() -> None:
    once, again = random_graph(7), random_graph(7)
    assert once.graph == again.graph != random_graph(8).graph
    for name, array in once.inputs.items():
        np.testing.assert_array_equal(array, again.inputs[name], strict=True)


def test_two_hundred_run_on_cpu_and_use_every_op_dtype_and_rank() -> None:
    ops, dtypes, ranks = set(), set(), set()
    for seed in range(200):
        case = random_graph(seed)
        results = evaluate(case.graph, case.inputs, case.params)
        kinds = case.graph.output_types.values()
        assert [(array.shape, array.dtype) for array in results] == [(k.shape, k.dtype.numpy) for k in kinds], seed
        assert decode_graph(case.graph.encoded).types == case.graph.types, seed
        ops |= {node.op for node in case.graph}
        dtypes |= {kind.dtype.name for kind in case.graph.types}
        ranks |= {len(kind.shape) for kind in case.graph.types}
    assert ops == OPS.keys() - COLLECTIVES - {"spmd"}
    assert dtypes == BY_NAME.keys()
    assert ranks >= {0, 1, 2, 3, 4}


def test_a_graph_of_copied_nodes_is_the_same_whether_types_are_given_or_inferred() -> None:
    for seed in range(40):
        graph = random_graph(seed).graph
        for given in (False, True):
            builder, placed = GraphBuilder(), list[int]()
            builder.blobs.update(graph.blobs)
            for node, kind in zip(graph.nodes, graph.types, strict=True):
                placed.append(builder.copy(node, [placed[source] for source in node.inputs], kind if given else None))
            copied = builder.build([placed[index] for index in graph.outputs], graph.output_names, graph.name)
            assert copied == graph and copied.types == graph.types, seed


def test_the_big_graph_has_about_the_nodes_asked_for() -> None:
    assert 9_900 < len(big_graph(10_000)) <= 10_000
