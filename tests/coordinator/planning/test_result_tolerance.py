"""How far two honest engines may differ in the results of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.call_count import calls_of
from support.cases.control_cases import siblings

import mesh
import mesh.numpy as mnp
from coordinator.planning.audit.result_tolerance import Likeness, outputs_likeness
from mesh import nn
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder

X, WHOLE = np.ones((4, 4), np.float32), np.ones((4, 4), np.int32)
SAME, CLOSE, ANY = Likeness
CASES: list[tuple[Callable[..., Any], Any, Likeness]] = [
    (lambda x: x.T[1:], X, SAME),
    (lambda x: mnp.argmax(x, 1), X, SAME),
    (lambda x: mnp.where(x > 0, x, 0), X, SAME),
    (lambda x: mnp.sort(x), X, SAME),
    (lambda x: x @ x, WHOLE, SAME),
    (lambda x: x @ x, X, CLOSE),
    (lambda x: nn.relu(x @ x), X, CLOSE),
    (lambda x: nn.silu(nn.elu(nn.softplus(nn.leaky_relu(x @ x)))), X, CLOSE),
    (lambda x: nn.hard_swish(nn.relu6(nn.leaky_relu(x @ x, x[0]))), X, CLOSE),
    (lambda x: nn.softmax(nn.gelu(x @ x)), X, CLOSE),
    (lambda x: nn.scaled_dot_product_attention(x, x, x, x > 0), X, CLOSE),
    (lambda x: mnp.argmax(x @ x, 1), X, ANY),
    (lambda x: mnp.floor(x @ x), X, ANY),
    (lambda x: mnp.astype(x @ x, "int32"), X, ANY),
    (lambda x: mnp.where(x @ x > 1, 1.0, 0.0), X, ANY),
    (lambda x: mnp.where(x @ x > x, x @ x, 0.0), X, ANY),
    (lambda x: nn.relu(mnp.where(x @ x > 1, x @ x, x)), X, ANY),
    (lambda x: mnp.take(x, mnp.argmax(x @ x, 1), axis=0) * 2, X, ANY),
    (lambda x: mnp.linalg.solve(x, x), X, ANY),
    (lambda x: mnp.linalg.eigh(x).eigenvectors, X, ANY),
    (lambda x: mesh.cond(x[0, 0] > 0, lambda: x + 1, lambda: x), X, CLOSE),
    (lambda x: mesh.cond(x.sum() > 0, lambda: x, lambda: x.T), X, ANY),
    (lambda x: mesh.fori_loop(0, 3, lambda i, v: v + i, x), WHOLE, SAME),
    (lambda x: mesh.fori_loop(0, 3, lambda i, v: v @ x, x), X, ANY),
    (lambda x: mesh.scan(lambda c, row: (c, row[::-1]), x[0], x)[1], X, SAME),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_likeness_follows_roundings_and_jumps(number: int) -> None:
    function, example, expected = CASES[number]
    graph = mesh.trace(function, example)
    assert outputs_likeness(graph, [SAME] * len(graph.inputs)) == [expected]


def test_what_is_read_on_many_ways_is_looked_at_once() -> None:
    """x to the power of 2 ** 24, by squaring."""
    builder = GraphBuilder()
    power = first = builder.add("sin", builder.input("x", (4,), F32))
    for _ in range(24):
        power = builder.add("mul", power, power)
    graph = builder.build([builder.add("select", builder.add("gt", first, power), first, power)])
    assert calls_of(lambda: outputs_likeness(graph, [SAME])) < 20_000


def test_results_of_one_loop_are_looked_at_together() -> None:
    calls = []
    for count in (10, 40):
        body = GraphBuilder()
        carried = [body.input(str(number), (4,), F32) for number in range(count)]
        made = body.build([body.add("max", each, carried[0]) for each in carried])
        builder = GraphBuilder()
        given = [builder.input(f"x{number}", (4,), F32) for number in range(count)]
        attrs = {"body": made, "length": 3, "carry": count, "consts": 0, "reverse": 0}
        graph = builder.build(list(siblings(builder, "scan", *given, count=count, **attrs)))
        assert outputs_likeness(graph, [SAME] * count) == [SAME] * count
        calls.append(calls_of(lambda graph=graph: outputs_likeness(graph, [SAME] * len(graph.inputs))))
    assert calls[1] <= 5 * calls[0]
