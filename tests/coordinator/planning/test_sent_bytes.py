"""What of a result travels to another machine: what lies in front of zeros that are known of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from coordinator.planning.model.sent_bytes import fronts, sent_bytes
from wire.passes.simplify import simplify
from wire.transfer.zeros import BLOCK

ROWS, WIDTH = 64, BLOCK // 4  # a row is a block of zeros that need not travel
X = np.ones((ROWS, WIDTH), np.float32)


def beginning(x: Any, count: Any) -> Any:
    return mnp.where(mnp.arange(ROWS)[:, None] < count, x, mnp.zeros((), dtype=x.dtype))


def branched(x: Any, count: Any) -> Any:
    x = beginning(x, count)
    few = lambda: mnp.pad(mnp.exp(x[:3]), ((0, ROWS - 3), (0, 0)))  # noqa: E731
    some = lambda: mnp.pad(mnp.exp(x[:9]), ((0, ROWS - 9), (0, 0)))  # noqa: E731
    return mesh.cond(count <= 3, few, lambda: mesh.cond(count <= 9, some, lambda: mnp.exp(x)))


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (beginning, 1),  # of nothing one block is sent
        (branched, 3),
        (lambda x, count: branched(branched(x, count), count), 3),
        (lambda x, count: mnp.reshape(branched(x, count), (-1, 2 * WIDTH)), 3),
        (lambda x, count: mnp.pad(x[:5], ((0, 4), (0, 0))), 5),
        (lambda x, count: mnp.pad(x[:5], ((1, 3), (0, 0))), 9),
        (lambda x, count: mnp.pad(x[:5], ((0, 4), (0, 0)), constant_values=1), 9),
        (lambda x, count: mnp.where(mnp.arange(ROWS)[:, None] < count, x, mnp.ones((), dtype=x.dtype)), ROWS),
        (lambda x, count: mnp.where(x < 0, x, mnp.zeros((), dtype=x.dtype)), ROWS),
        (lambda x, count: mnp.exp(branched(x, count)), ROWS),
    ],
)
def test_what_lies_in_front_of_zeros_is_sent(function: Callable[..., Any], rows: int) -> None:
    graph = simplify(mesh.trace(function, X, np.int32(3)))
    (output,) = graph.outputs
    assert sent_bytes(graph.types[output], fronts(graph).get(output)) == rows * BLOCK
