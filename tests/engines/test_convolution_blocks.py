"""Convolutions too large for one block of windows, by JAX's answers; and what they need besides their operands."""

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.traced_memory import peak_bytes_of

from coordinator.planning.model.liveness import working_set
from mesh import nn, trace_full, vjp
from wire.ir.dtypes import F16, F32, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.workspace import BLOCK_BYTES, scratch_bytes
from worker.cpu.engine import compile_graph, evaluate, run

jax = pytest.importorskip("jax", reason="JAX is not installed (the extra `jax`)")


class Conv(NamedTuple):
    """What is split into blocks, the shapes, and what differs from a plain conv."""

    split: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    more: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    groups: int = 1

    @property
    def attrs(self) -> dict[str, tuple[int, ...]]:
        none, once = (0,) * (len(self.x) - 2), (1,) * (len(self.x) - 2)
        return {"stride": once, "low": none, "high": none, "lhs_dilation": once, "rhs_dilation": once, **self.more}

    def graph(self, dtype: DType = F32) -> WireGraph:
        builder = GraphBuilder()
        x, w = builder.input("x", self.x, dtype), builder.input("w", self.w, dtype)
        return builder.build([builder.add("conv", x, w, groups=self.groups, **self.attrs)])

    def expected(self, x: Any, w: Any) -> Any:
        attrs = self.attrs
        return jax.lax.conv_general_dilated(
            x, w, attrs["stride"], list(zip(attrs["low"], attrs["high"], strict=True)), attrs["lhs_dilation"],
            attrs["rhs_dilation"], feature_group_count=self.groups,
        )  # fmt: skip


AROUND = {"low": (1, 2), "high": (2, 1)}
CONVS = (
    Conv("samples", (300, 64, 5, 6), (7, 64, 3, 3), AROUND),
    Conv("samples whose kernels are images", (300, 20, 12, 12), (7, 20, 11, 10), AROUND),
    Conv("groups", (1, 700, 40, 40), (700, 1, 3, 3), AROUND, 700),
    Conv("groups of kernels like images", (1, 700, 40, 40), (1400, 1, 39, 38), AROUND, 700),
    Conv("lines", (2, 24, 70, 70), (5, 24, 5, 5), {**AROUND, "stride": (1, 2)}),
    Conv("a line", (1, 2, 9000), (3, 2, 300), {"low": (7,)}),
    Conv("a plane", (1, 8, 3, 60, 70), (2, 8, 2, 9, 9), {"high": (1, 2, 0)}),
    Conv("channels", (2, 600, 9, 9), (3, 600, 3, 3), AROUND),
    Conv("taps of one channel", (3, 3, 90, 90), (4, 3, 81, 80), {**AROUND, "rhs_dilation": (1, 1)}),
    Conv("taps that lie apart", (2, 2, 171, 172), (3, 2, 84, 83), {**AROUND, "rhs_dilation": (2, 2)}),
    Conv("phases", (2, 40, 33, 35), (6, 40, 5, 4), {**AROUND, "lhs_dilation": (3, 2)}),
    Conv("phases a stride apart", (2, 40, 61, 60), (6, 40, 3, 4), {**AROUND, "lhs_dilation": (3, 2), "stride": (2, 2)}),
    Conv("phases of kernels like images", (20, 2, 60, 60), (3, 2, 100, 99), {**AROUND, "lhs_dilation": (2, 2)}),
    Conv("phases of some taps", (2, 40, 50, 50), (6, 40, 4, 5), {"lhs_dilation": (4, 3), "rhs_dilation": (2, 3)}),
)
by_split = pytest.mark.parametrize("conv", CONVS, ids=lambda conv: conv.split)


def whole(shape: tuple[int, ...], seed: int, dtype: DType = F32) -> Any:
    """Small whole numbers: every sum of products is exact, in whatever order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype.numpy)


@by_split
def test_blocks_are_put_together(conv: Conv) -> None:
    x, w = whole(conv.x, 0), whole(conv.w, 1)
    (actual,) = evaluate(conv.graph(), {"x": x, "w": w})
    assert 4 * actual[0, 0].size * actual.shape[0] * math.prod(conv.w[1:]) * conv.groups > BLOCK_BYTES
    assert np.array_equal(actual, conv.expected(x, w))


@pytest.mark.parametrize("dtype", [F16, F32], ids=lambda dtype: dtype.name)
@by_split
def test_no_more_memory_is_taken_than_was_said(conv: Conv, dtype: DType) -> None:
    graph = conv.graph(dtype)
    executable, given = compile_graph(graph), [whole(conv.x, 0, dtype), whole(conv.w, 1, dtype)]
    peak_bytes = peak_bytes_of(lambda: run(executable, given))
    small_bytes = 1 << 16  # objects that are no arrays
    assert peak_bytes <= executable.memory_bytes + small_bytes
    (output,) = graph.outputs
    assert executable.memory_bytes == graph.types[output].size_bytes + scratch_bytes(graph, output)
    assert working_set(graph) == executable.memory_bytes, "plans count the same"


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((1, 8), (4, 8, 3, 3), {"padding": 1}),
        ((1, 8), (8, 1, 3, 3), {"padding": 1, "groups": 8}),
        ((1, 8), (4, 8, 4, 4), {"stride": 4}),
    ],
    ids=["one sample", "depthwise", "patches"],
)
def test_a_larger_image_takes_no_more_calls_with_its_derivatives(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, int]
) -> None:
    def work(x: Any, w: Any) -> Any:
        actual, pull = vjp(lambda x, w: nn.conv(x, w, **options), x, w)
        return actual, pull(actual)

    counted = []
    for side in (16, 64):
        arrays = [whole((*x, side, side), 0), whole(w, 1)]
        executable = compile_graph(trace_full(work, *arrays).graph)
        run(executable, arrays)  # which may remember something
        counted.append(calls(partial(run, executable, arrays)))
    assert counted[1] <= 1.5 * counted[0]


def calls(work: Callable[[], object]) -> int:
    """How many functions are called: what a loop over positions shows in, however quick the machine is."""
    seen = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_no_numbers_meet_the_zeros_of_a_dilated_array(value: float) -> None:
    conv = Conv("", (1, 2, 7, 5), (3, 2, 3, 3), {**AROUND, "lhs_dilation": (2, 3)})
    x, w = whole(conv.x, 0), whole(conv.w, 1)
    w[1, 0, 2, 0] = value
    (actual,) = evaluate(conv.graph(), {"x": x, "w": w})
    expected = evaluate(Conv("", (1, 2, 13, 13), conv.w, AROUND).graph(), {"x": _spread(x), "w": w})
    assert np.array_equal(actual, expected[0], equal_nan=True) and np.isnan(actual).any() and not np.isnan(actual).all()


def _spread(x: Any) -> Any:
    wide = np.zeros((1, 2, 13, 13), np.float32)
    wide[:, :, ::2, ::3] = x
    return wide
