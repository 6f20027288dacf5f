"""A graph of four times the nodes takes four times the work to cut into kernels, counted in calls of functions."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import trace, value_and_grad
from wire.ir.graph import WireGraph
from worker.compiler.fuse import fuse
from worker.native.outline import outlined
from worker.wgsl.profile import Profile

X = np.full((32, 32), 0.01, np.float32)
HALF = np.full((32, 32), 0.01, np.float16)


def products(x: Any, count: int) -> Any:
    for _ in range(count):
        x = mnp.tanh(x @ x) * 0.5
    return x


def unpacked(x: Any, count: int) -> Any:
    for _ in range(count):
        x = mnp.tanh(x @ mnp.astype(mnp.astype(x, np.float16) * HALF, np.float32))
    return x


def derivative(x: Any, count: int) -> Any:
    return value_and_grad(lambda x: mnp.sum(products(x, count)))(x)


def calls_of(function: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(function)
    return sum(row.callcount for row in profile.getstats())


def fused(graph: WireGraph) -> object:
    return fuse(graph, Profile().target)


@pytest.mark.parametrize("cut", [outlined, fused], ids=["native", "wgsl"])
@pytest.mark.parametrize("make", [products, unpacked, derivative])
def test_kernels_are_found_in_time_that_grows_with_the_nodes(
    make: Callable[[Any, int], Any], cut: Callable[[WireGraph], object]
) -> None:
    short, long = (trace(lambda x, count=count: make(x, count), X) for count in (60, 240))
    cut(short)  # what is imported and cached once
    calls, more = calls_of(lambda: cut(short)), calls_of(lambda: cut(long))
    assert more <= 5 * calls, f"{len(short)} nodes take {calls} calls, {len(long)} nodes {more}"
