"""Graphs that ranks compute together, as cases of `spmd` and of the collectives, which engines are tested with.

Every collective runs over one axis and over several of grids of 2x2, 3 and 4 ranks.  To add one: a function of a dtype
that yields graphs, in a row of CASES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from wire.ir.collective_rules import REDUCTIONS
from wire.ir.dtypes import BOOL, BY_NAME, F16, F32, F64, I32, U32, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.grids import spec_of, whole_shape
from wire.ir.types import TensorType

from .control_cases import Found, counted, graph_of, siblings
from .values import ordinary

DTYPES = (F32, F16, BY_NAME["bf16"], F64, I32, U32, BY_NAME["u8"], BY_NAME["i64"], BOOL)
GRIDS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "2x2": (("dp", "tp"), (2, 2)),
    "3": (("dp",), (3,)),
    "4": (("dp",), (4,)),
}
GROUPS = (  # a grid, and the axes of a group in it
    ("2x2", ("dp",)),
    ("2x2", ("tp",)),
    ("2x2", ("dp", "tp")),
    ("2x2", ("tp", "dp")),
    ("3", ("dp",)),
    ("4", ("dp",)),
)
Body = Callable[..., list[int]]


def on_grid(grid: str, kinds: list[TensorType], specs: tuple[str, ...], out_specs: tuple[str, ...], make: Body,
            ) -> WireGraph:  # fmt: skip
    """A graph of one spmd node's results: `make(builder, *inputs)` on blocks of `kinds`."""
    axes, sizes = GRIDS[grid]
    body = graph_of(kinds, make)
    wholes = [
        TensorType(whole_shape(kind.shape, spec_of(spec), axes, sizes), kind.dtype)
        for kind, spec in zip(kinds, specs, strict=True)
    ]
    attrs: dict[str, Any] = {"body": body, "axes": axes, "sizes": sizes, "in_specs": specs, "out_specs": out_specs}
    return graph_of(wholes, lambda b, *all: siblings(b, "spmd", *all, count=len(body.outputs), **attrs))


def inputs_of(graph: WireGraph, dtype: DType) -> dict[str, Any]:
    return {
        name: ordinary(dtype if kind.dtype is dtype else kind.dtype, *kind.shape, seed=place)
        for place, (name, kind) in enumerate(graph.input_types.items())
    }


def group_attrs(grid: str, over: tuple[str, ...]) -> dict[str, Any]:
    axes, sizes = GRIDS[grid]
    return {"axes": over, "sizes": tuple(sizes[axes.index(axis)] for axis in over)}


def _of(op: str, shape: tuple[int, ...], ways: Callable[[int], list[dict[str, Any]]]) -> Any:
    """Cases of one collective on blocks of `shape`, of which each has it in all `ways` of a group's size at once."""

    def make(dtype: DType) -> Iterator[Found]:
        for grid, over in GROUPS if dtype is F32 else GROUPS[2:4]:
            group, kind = group_attrs(grid, over), TensorType(shape, dtype)
            every = [way for way in ways(math.prod(group["sizes"])) if dtype.kind in _kinds(way)]
            spec = "+".join(GRIDS[grid][0]) + " -" * (len(shape) - 1)

            def body(b: GraphBuilder, x: int, every: Any = every, group: Any = group) -> list[int]:
                return [b.add(op, x, **group, **way) for way in every]

            graph = on_grid(grid, [kind], (spec,), (spec,) * len(every), body)
            if every:
                yield f"{grid}-{'.'.join(over)}", graph, inputs_of(graph, dtype)

    return make


def _kinds(way: dict[str, Any]) -> str:
    return REDUCTIONS[way["reduction"]] if "reduction" in way else "biuf"


def _reductions(**more: Any) -> Any:
    return lambda ranks: [{"reduction": name, **more} for name in REDUCTIONS]


def _exchanges(ranks: int) -> list[dict[str, Any]]:
    return [{"split_axis": split, "concat_axis": 1} for split in (0, 1)]


def _pairs(ranks: int) -> list[dict[str, Any]]:
    ring = [rank for at in range(ranks) for rank in (at, (at + 1) % ranks)]
    return [{"pairs": pairs} for pairs in (tuple(ring), (ranks - 1, 0), ())]


def _axis_index(dtype: DType) -> Iterator[Found]:
    for grid, over in GROUPS if dtype is I32 else ():
        spec = "+".join(GRIDS[grid][0])

        def make(b: GraphBuilder, x: int, grid: str = grid, over: tuple[str, ...] = over) -> list[int]:
            return [b.add("add", x, b.add("axis_index", **group_attrs(grid, over)))]

        graph = on_grid(grid, [TensorType((2,), I32)], (spec,), (spec,), make)
        yield f"{grid}-{'.'.join(over)}", graph, inputs_of(graph, I32)


# -- programs ---------------------------------------------------------------------------------------------


def _spmd(dtype: DType) -> Iterator[Found]:
    kind = TensorType((2, 3), dtype)
    specs = ("dp tp", "- -", "tp+dp -", "- dp+tp")
    graph = on_grid("2x2", [kind] * 4, specs, (*specs[:1], "- tp", "- dp+tp", "tp+dp -"), lambda b, *all: list(all))
    yield "specs", graph, inputs_of(graph, dtype)
    if dtype is BOOL:
        return
    graph = on_grid("2x2", [kind, kind, TensorType((), dtype)], ("dp tp", "dp -", ""), ("dp -", ""), _mixed)
    yield "mixed", graph, inputs_of(graph, dtype)
    if dtype.itemsize < 4:
        return  # whose roundings and wraps a loop would carry on
    kinds = [TensorType((3,), dtype), TensorType((4, 3), dtype)]
    graph = on_grid("2x2", kinds, ("dp", "- dp"), ("dp+tp", "- dp+tp"), _looped)
    yield "collectives-in-a-scan", graph, inputs_of(graph, dtype)
    graph = on_grid("3", [TensorType((2,), dtype)], ("dp",), ("dp", ""), _until)
    yield "collectives-in-a-while", graph, inputs_of(graph, dtype)
    graph = on_grid("2x2", [TensorType((2,), dtype)], ("dp+tp",), ("dp+tp",), _asked)
    yield "collectives-in-a-cond", graph, inputs_of(graph, dtype)
    yield "in-a-scan", *_in_scan(dtype)


def _mixed(b: GraphBuilder, x: int, y: int, scale: int) -> list[int]:
    total = b.add("all_reduce", b.add("mul", x, scale), axes=("tp",), sizes=(2,), reduction="sum")
    most = b.add("reduce_max", b.add("max", total, y), axes=(0, 1))
    return [b.add("max", total, y), b.add("all_reduce", most, axes=("dp", "tp"), sizes=(2, 2), reduction="max")]


def _looped(b: GraphBuilder, start: int, rows: int) -> list[int]:
    """What a rank carries goes round, and every turn takes the largest of a row of the grid."""

    def turn(inner: GraphBuilder, carry: int, x: int) -> list[int]:
        most = inner.add("all_reduce", inner.add("max", carry, x), axes=("dp",), sizes=(2,), reduction="max")
        return [inner.add("permute", most, axes=("tp",), sizes=(2,), pairs=(0, 1)), most]

    body = graph_of([b.types[start], b.types[start]], turn)
    attrs = {"body": body, "carry": 1, "consts": 0, "length": 4, "reverse": 0}
    return siblings(b, "scan", start, rows, count=2, **attrs)


def _until(b: GraphBuilder, x: int) -> list[int]:
    """Turns for as long as the sum of all ranks' counters is small."""
    kind = b.types[x]
    group = {"axes": ("dp",), "sizes": (3,)}

    def ask(inner: GraphBuilder, at: int, value: int) -> list[int]:
        total = inner.add("all_reduce", at, **group, reduction="sum")
        return [inner.add("lt", total, inner.const(np.int32(12)))]

    def turn(inner: GraphBuilder, at: int, value: int) -> list[int]:
        return [
            inner.add("add", at, inner.add("axis_index", **group)),
            inner.add("permute", value, **group, pairs=(0, 1, 1, 2, 2, 0)),
        ]

    types = [TensorType((), I32), kind]
    attrs = {"test": graph_of(types, ask), "body": graph_of(types, turn)}
    at, value = siblings(b, "while", b.const(np.int32(0)), x, count=2, **attrs)
    return [value, b.add("all_reduce", at, **group, reduction="max")]


def _asked(b: GraphBuilder, x: int) -> list[int]:
    """Rows of the grid take different branches, each of which has its own collective."""
    over = {"axes": ("tp",), "sizes": (2,)}
    kind = b.types[x]
    asked = b.add("eq", b.add("axis_index", axes=("dp",), sizes=(2,)), b.const(np.int32(0)))
    then = graph_of([kind], lambda inner, y: [inner.add("all_reduce", y, **over, reduction="sum")])
    otherwise = graph_of([kind], lambda inner, y: [inner.add("permute", y, **over, pairs=(1, 0))])
    return [b.add("cond", asked, x, then=then, otherwise=otherwise, output=0)]


def _in_scan(dtype: DType) -> tuple[WireGraph, dict[str, Any]]:
    """A loop around the ranks."""
    kind = TensorType((4,), dtype)
    group = {"axes": ("dp",), "sizes": (4,)}
    inner = graph_of([TensorType((1,), dtype)], lambda b, x: [b.add("permute", x, **group, pairs=(0, 1, 1, 2, 2, 3))])
    attrs: dict[str, Any] = {"body": inner, **group, "in_specs": ("dp",), "out_specs": ("dp",)}
    step = graph_of([kind, kind], lambda b, x, y: [b.add("max", b.add("spmd", x, **attrs, output=0), y)])
    graph = graph_of([kind, kind], lambda b, x, y: counted(b, 3, x, y, step))
    return graph, inputs_of(graph, dtype)


CASES: dict[str, Callable[[DType], Iterator[Found]]] = {
    "spmd": _spmd,
    "all_reduce": _of("all_reduce", (2, 3), _reductions()),
    "all_gather": _of("all_gather", (2, 3), lambda ranks: [{"axis": axis} for axis in (0, 1)]),
    "reduce_scatter": _of("reduce_scatter", (12, 2), _reductions(axis=0)),
    "all_to_all": _of("all_to_all", (12, 12), _exchanges),
    "permute": _of("permute", (2, 3), _pairs),
    "broadcast_from": _of("broadcast_from", (2,), lambda ranks: [{"root": root} for root in range(ranks)]),
    "axis_index": _axis_index,
}
