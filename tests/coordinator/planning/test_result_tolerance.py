"""How far two honest engines may differ in the results of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from coordinator.planning.audit.result_tolerance import Likeness, outputs_likeness
from mesh import nn

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
