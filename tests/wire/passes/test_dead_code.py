"""Branches and loops without what nobody needs: fewer results, carries and operands, and the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases.control_cases import CASES
from support.cases.control_programs import Traced, program
from support.cases.op_cases import cases

import mesh
import mesh.numpy as mnp
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.verify import verify
from wire.passes.dead_code import prune
from wire.passes.simplify import simplify
from worker.cpu import evaluate

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def only(graph: WireGraph, places: list[int]) -> WireGraph:
    """The graph with these outputs."""
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: list[int] = []
    for node in graph.nodes:
        placed.append(builder.add(node.op, *[placed[source] for source in node.inputs], **node.attrs))
    return builder.build([placed[graph.outputs[place]] for place in places])


def check_same(graph: WireGraph, inputs: dict[str, Any]) -> WireGraph:
    pruned = prune(graph)
    verify(pruned)
    assert pruned.input_types == graph.input_types
    for result, expected in zip(evaluate(pruned, inputs), evaluate(graph, inputs), strict=True):
        assert result.tobytes() == expected.tobytes()
    assert prune(pruned) is pruned
    return pruned


def loop_of(graph: WireGraph) -> Any:
    """The operands and attributes of its one loop."""
    (first,) = graph.siblings
    return graph.nodes[first]


@pytest.mark.parametrize("op", CASES)
def test_any_of_the_results_of_a_case_alone(op: str) -> None:
    for case in cases(op):
        count = len(case.graph.outputs)
        for places in [[place] for place in range(count)] + [list(range(count))]:
            check_same(only(case.graph, places), dict(case.inputs))


def test_any_of_the_results_of_random_programs_alone() -> None:
    less = 0
    for seed in range(30):
        arrays = [np.random.default_rng([seed, at]).uniform(-1, 1, (3, 3)) for at in range(3)]
        made = program(seed)
        whole = mesh.trace(lambda *state, made=made: made(Traced(), state), *arrays)
        inputs = {name: arrays[int(name.rpartition("/")[2])] for name in whole.input_types}
        for place in range(3):
            graph = only(whole, [place])
            less += prune(graph) is not graph
            check_same(graph, inputs)
            simple = simplify(graph)
            verify(simple)
            assert evaluate(simple, inputs)[0].tobytes() == evaluate(graph, inputs)[0].tobytes()
    assert less > 20


def test_what_is_all_needed_stays_as_it_is() -> None:
    graph = mesh.trace(lambda x: mesh.scan(lambda c, row: (c + row, c), mnp.zeros(3), x), X)
    assert prune(graph) is graph
    straight = mesh.trace(lambda x: x + 1, X)
    assert prune(straight) is straight


def test_rows_and_carries_that_nobody_reads_are_gone() -> None:
    def turn(carry: Any, row: Any) -> Any:
        a, b, c = carry
        return (a + row[0].sum(), b * 2 + c, mnp.sin(c)), (a * 2, row[1] * b)

    graph = mesh.trace(lambda x: mesh.scan(turn, (0.0, 1.0, 2.0), (x, x * 3))[0][0], X)
    loop = loop_of(check_same(graph, {"x": X}))
    assert (loop.attrs["carry"], len(loop.inputs), len(loop.attrs["body"].outputs)) == (1, 2, 1)
    graph = mesh.trace(lambda x: mesh.scan(turn, (0.0, 1.0, 2.0), (x, x * 3))[1][1], X)
    loop = loop_of(check_same(graph, {"x": X}))
    assert (loop.attrs["carry"], len(loop.inputs), len(loop.attrs["body"].outputs)) == (2, 3, 3)


def test_a_while_turns_as_often() -> None:
    def turn(carry: Any) -> Any:
        count, value, other = carry
        return count + 1, value * 2, other + value

    graph = mesh.trace(lambda x: mesh.while_loop(lambda c: c[0] < 5, turn, (0, x, x))[1], X)
    loop = loop_of(check_same(graph, {"x": X}))
    assert len(loop.attrs["body"].outputs) == 2, "what counts, and the value"


def test_a_loop_before_a_loop_computes_only_what_that_one_needs() -> None:
    def two(x: Any) -> Any:
        first, rows = mesh.scan(lambda c, row: (c + row, c * row), mnp.zeros(3), x)
        return mesh.scan(lambda c, row: ((c[0] + first, c[1] + row), ()), (first, first * 0), rows)[0][0]

    graph = mesh.trace(two, X)
    pruned = check_same(graph, {"x": X})
    assert [len(pruned.nodes[index].attrs["body"].outputs) for index in pruned.siblings] == [1, 1]


def test_operands_that_no_branch_reads_are_gone() -> None:
    def either(x: Any) -> Any:
        big = mnp.sin(x) @ x.T
        return mesh.cond(x[0, 0] > 0, lambda: (x, big), lambda: (x * 2, big + 1))[0]

    pruned = check_same(mesh.trace(either, X), {"x": X})
    assert "dot" not in [node.op for node in pruned]
