"""Random programs of ranks: the unrolled form against ranks in threads that meet at the collectives.

Integers, so that whatever the order all agree to the bit; grids of one to three axes, any specs, any groups.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from support.cases.control_cases import graph_of, siblings
from support.cases.references import reference

from wire.ir.codec import decode_graph
from wire.ir.dtypes import I32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.grids import coordinates, spec_of, whole_shape
from wire.ir.ops import COLLECTIVES
from wire.ir.text import from_text, to_text
from wire.ir.types import TensorType
from wire.ir.verify import verify
from wire.passes.replication import varying
from wire.passes.simplify import simplify
from worker.cpu import evaluate

GRIDS = [(("a",), (3,)), (("a", "b"), (2, 2)), (("a", "b"), (1, 3)), (("a", "b", "c"), (2, 1, 2)), (("a",), (1,))]
SIDE = 12  # of every dimension of a block: all groups divide it


def random_spec(rng: Random, axes: tuple[str, ...], rank: int, named: frozenset[str] = frozenset()) -> tuple[Any, ...]:
    """Axes in any order on any dimensions, those in `named` for sure where there is a dimension."""
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in rng.sample(axes, len(axes)):
        if rank and (axis in named or rng.random() < 0.5):
            rng.choice(dims).append(axis)
    return tuple(map(tuple, dims))


def text(spec: tuple[Any, ...]) -> str:
    return " ".join("+".join(dim) or "-" for dim in spec)


def grow(rng: Random, b: GraphBuilder, values: list[int], grid: tuple[tuple[str, ...], tuple[int, ...]]) -> int:
    """One more value of some that are there, all of SIDE by SIDE."""
    x, y = rng.choice(values), rng.choice(values)
    over = tuple(rng.sample(grid[0], rng.randint(1, len(grid[0]))))
    group: dict[str, Any] = {"axes": over, "sizes": tuple(grid[1][grid[0].index(axis)] for axis in over)}
    ranks, axis = int(np.prod(group["sizes"])), rng.randrange(2)
    ways: list[Callable[[], int]] = [
        lambda: b.add(rng.choice(("add", "mul", "max", "xor")), x, y),
        lambda: b.add("all_reduce", x, **group, reduction=rng.choice(("sum", "prod", "min", "max", "and", "or"))),
        lambda: b.add("all_to_all", x, **group, split_axis=axis, concat_axis=axis),
        lambda: b.add("permute", x, **group, pairs=_pairs(rng, ranks)),
        lambda: b.add("broadcast_from", x, **group, root=rng.randrange(ranks)),
        lambda: b.add("add", x, b.add("axis_index", **group)),
        lambda: b.add(
            "all_gather", b.add("reduce_scatter", x, **group, axis=axis, reduction="sum"), **group, axis=axis
        ),
        lambda: b.add("scan", x, y, **_turns(b.types[x], group), output=0),
    ]
    return rng.choice(ways)()


def _pairs(rng: Random, ranks: int) -> tuple[int, ...]:
    sources, targets = (rng.sample(range(ranks), ranks) for _ in range(2))
    return tuple(rank for pair in list(zip(sources, targets, strict=True))[: rng.randint(0, ranks)] for rank in pair)


def _turns(kind: TensorType, group: dict[str, Any]) -> dict[str, Any]:
    """A scan over the rows of a block, with a reduction at every turn."""
    row = TensorType(kind.shape[1:], kind.dtype)
    body = graph_of(
        [kind, row],
        lambda b, carry, x: [b.add("add", carry, b.add("all_reduce", x, **group, reduction="max"))],
    )
    return {"body": body, "carry": 1, "consts": 0, "length": kind.shape[0], "reverse": 0}


def random_program(seed: int) -> WireGraph:
    rng = Random(seed)
    grid = rng.choice(GRIDS)
    kind = TensorType((SIDE, SIDE), I32)
    specs = [random_spec(rng, grid[0], 2) for _ in range(rng.randint(1, 3))]

    def make(b: GraphBuilder, *given: int) -> list[int]:
        values = list(given)
        for _ in range(rng.randint(1, 8)):
            values.append(grow(rng, b, values, grid))
        return rng.sample(values, min(len(values), 3))

    body = graph_of([kind] * len(specs), make)
    over = varying(body, [frozenset(axis for dim in spec for axis in dim) for spec in specs])
    attrs: dict[str, Any] = {
        "body": body,
        "axes": grid[0],
        "sizes": grid[1],
        "in_specs": tuple(map(text, specs)),
        "out_specs": tuple(text(random_spec(rng, grid[0], 2, output_type)) for output_type in over),
    }
    wholes = [TensorType(whole_shape(kind.shape, spec, *grid), I32) for spec in specs]
    return graph_of(wholes, lambda b, *given: siblings(b, "spmd", *given, count=len(body.outputs), **attrs))


def check(seed: int) -> None:
    graph = random_program(seed)
    verify(graph)
    rng = np.random.default_rng(seed)
    given = {name: rng.integers(-9, 9, kind.shape, np.int32) for name, kind in graph.input_types.items()}
    wanted = reference(graph, given)
    for other in (graph, decode_graph(graph.encoded), from_text(to_text(graph)), simplify(graph, evaluate)):
        for result, right in zip(evaluate(other, given), wanted, strict=True):
            np.testing.assert_array_equal(result, right)
    if len(graph.outputs) > 1:
        one = graph_of(list(graph.input_types.values()), lambda b, *given: [_again(b, graph, given)])
        (result,) = evaluate(simplify(one), dict(zip(one.input_types, given.values(), strict=True)))
        np.testing.assert_array_equal(result, wanted[-1])


def check_proof(seed: int) -> None:
    """What is said not to differ along an axis is the same on all ranks along it."""
    attrs = random_program(seed).nodes[-1].attrs
    body, axes = attrs["body"], attrs["axes"]
    over = varying(body, [frozenset(axis for dim in spec_of(text) for axis in dim) for text in attrs["in_specs"]])
    every = {**attrs, "out_specs": (f"{'+'.join(axes)} -",) * len(body.outputs)}
    del every["output"]
    kinds = list(random_program(seed).input_types.values())
    graph = graph_of(kinds, lambda b, *given: siblings(b, "spmd", *given, count=len(body.outputs), **every))
    rng = np.random.default_rng(seed)
    given = {name: rng.integers(-9, 9, kind.shape, np.int32) for name, kind in graph.input_types.items()}
    for result, differs in zip(evaluate(graph, given), over, strict=True):
        blocks = np.split(result, len(result) // SIDE)
        first: dict[Any, Any] = {}
        for at, block in zip(coordinates(attrs["sizes"]), blocks, strict=True):
            place = tuple(number for axis, number in zip(axes, at, strict=True) if axis in differs)
            np.testing.assert_array_equal(block, first.setdefault(place, block))


def _again(b: GraphBuilder, graph: WireGraph, given: tuple[int, ...]) -> int:
    """The last result alone."""
    return b.graph(graph, dict(zip(graph.input_types, given, strict=True)))[-1]


@pytest.mark.parametrize("seed", range(25))
def test_a_random_program_is_what_ranks_in_threads_compute(seed: int) -> None:
    check(seed)
    check_proof(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_more_random_programs_are_what_ranks_in_threads_compute(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
        check_proof(seed)


def test_the_programs_have_every_collective() -> None:
    used = {
        node.op
        for seed in range(60)
        for outer in random_program(seed)
        if outer.op == "spmd"
        for node in outer.attrs["body"]
    }
    assert used >= COLLECTIVES
