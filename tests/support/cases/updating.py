"""Steps that update tensors which they carry: random programs, with branches that do so, too."""

from __future__ import annotations

from typing import Any

import numpy as np

import mesh.numpy as mnp
from mesh.core.array import apply
from wire.ir.dtypes import F32, I32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType

from .control_cases import graph_of, siblings

ROWS_COUNT, WIDTH = 96, 64
KIND, ROW, SCALAR = TensorType((ROWS_COUNT, WIDTH), F32), TensorType((1, WIDTH), F32), TensorType((), I32)


def written(old: Any, new: Any, positions: Any, meant: Any) -> Any:
    """`old` (texts, heads, length, size) with `new` (texts, heads, n, size) at its positions, where it is meant: as a
    cache of keys is updated."""
    texts, heads, length, size = old.shape
    rows = texts * heads
    first = mnp.reshape(mnp.astype(mnp.arange(rows), mnp.int32) * length, (texts, heads, 1))
    fits = (meant & (positions < length))[:, None]
    places = mnp.where(fits, first + positions[:, None], rows * length)  # beyond the end: dropped
    flat, updates = mnp.reshape(old, (rows * length, size)), mnp.reshape(new, (-1, size))
    return mnp.reshape(apply("scatter", flat, mnp.reshape(places, (-1,)), updates, axis=0, mode="set"), old.shape)


def grown(builder: GraphBuilder, rng: np.random.Generator, values: list[int], at: int, row: int, depth: int) -> None:
    """More values of KIND: updates of one there is, views and sums of them, and branches with the same inside."""
    for _ in range(int(rng.integers(2, 7))):
        x, y = (values[int(index)] for index in rng.integers(0, len(values), 2))
        match rng.choice(["scatter", "scatter", "slice", "slice", "turned", "add", "branch", "part"]):
            case "scatter":
                flat = builder.add("reshape", x, shape=(2 * ROWS_COUNT, WIDTH // 2))
                place = builder.add("reshape", at, shape=(1,))
                half = builder.add("slice", row, start=(0, 0), stop=(1, WIDTH // 2), step=(1, 1))
                mode = str(rng.choice(["set", "add", "max"]))
                made = builder.add("scatter", flat, place, half, axis=0, mode=mode)
                values.append(builder.add("reshape", made, shape=KIND.shape))
            case "slice":
                starts = builder.add("concat", *[builder.add("reshape", at, shape=(1,))] * 2, axis=0)
                values.append(builder.add("dynamic_update_slice", x, row, starts))
            case "turned":
                values.append(builder.add("reverse", builder.add("reverse", x, axes=(0,)), axes=(0,)))
            case "add":
                values.append(builder.add("add", x, y))
            case "part":
                part = builder.add("slice", x, start=(3, 0), stop=(4, WIDTH), step=(1, 1))
                values.append(builder.add("dynamic_update_slice", y, part, builder.add("concat", *[
                    builder.add("reshape", at, shape=(1,))] * 2, axis=0)))  # fmt: skip
            case "branch" if depth:
                chosen = builder.add("gt", at, builder.const(np.int32(rng.integers(0, ROWS_COUNT))))
                inside = [branch(rng, depth) for _ in range(2)]
                values += siblings(builder, "cond", chosen, x, y, at, row, count=2, then=inside[0], otherwise=inside[1])


def branch(rng: np.random.Generator, depth: int) -> WireGraph:
    def make(builder: GraphBuilder, x: int, y: int, at: int, row: int) -> list[int]:
        values = [x, y]
        grown(builder, rng, values, at, row, depth - 1)
        return [values[int(index)] for index in rng.integers(0, len(values), 2)]

    return graph_of([KIND, KIND, SCALAR, ROW], make)


def stepping(seed: int) -> WireGraph:
    """Three states, a place and a row to the next states, and something that is told."""
    rng = np.random.default_rng(seed)

    def make(builder: GraphBuilder, *given: int) -> list[int]:
        values = list(given[:3])
        grown(builder, rng, values, given[3], given[4], 2)
        grown(builder, rng, values, given[3], given[4], 2)
        return [*(values[int(index)] for index in rng.integers(0, len(values), 3)), values[-1]]

    return graph_of([KIND, KIND, KIND, SCALAR, ROW], make)


def arguments(rng: np.random.Generator) -> list[Any]:
    return [np.array(rng.integers(-3, ROWS_COUNT + 3), np.int32), rng.standard_normal(ROW.shape).astype(np.float32)]
