"""Programs of ranks that branch by who they are: shares of a batch that are not even, and random ones, by seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import mesh
import mesh.numpy as mnp
from mesh import Grid, PartitionSpec, collectives, shard_map
from wire.ir.graph import WireGraph
from wire.passes.simplify import simplify

Body = Callable[..., Any]
X, Y = (np.random.default_rng(seed).integers(-9, 9, (12, 4)).astype(np.float32) for seed in (7, 8))


def program(local: Body, ranks: int = 3, **more: Any) -> WireGraph:
    """Of ranks that each have some rows of x and y."""
    grid = more.get("grid", Grid((ranks,), ("dp",)))
    spec = PartitionSpec("dp") if len(grid.names) == 1 else PartitionSpec(tuple(grid.names))
    return simplify(mesh.trace(shard_map(local, grid, spec, more.get("out", spec), check=False), X, Y))


def shared(counts: tuple[int, ...]) -> Body:
    """A loss and its gradient, summed over ranks that take so many of their rows."""

    def local(x: Any, y: Any) -> Any:
        rank = collectives.axis_index("dp")

        def of(number: int) -> Any:
            def branch() -> Any:
                rows = x[: counts[number]]
                return mesh.value_and_grad(lambda w: mnp.sum((rows * w) ** 2))(y[0])

            if number == len(counts) - 1:
                return branch()
            return mesh.cond(rank == number, branch, lambda: of(number + 1))

        loss, gradient = of(0)
        return collectives.all_reduce(loss, "dp")[None], collectives.all_reduce(gradient, "dp")

    return local


def drawn(seed: int, ranks: int) -> Body:
    """Branches by the rank, in each other and behind each other, between all kinds of meetings; values stay small whole
    numbers."""

    def local(x: Any, y: Any) -> Any:
        chance = random.Random(seed)
        rank = collectives.axis_index("dp")
        values = [x, y]

        def small(value: Any) -> Any:
            return mnp.remainder(value, 64.0)

        def made(known: list[Any], depth: int) -> Any:
            one, other = chance.choice(known), chance.choice(known)
            kind = chance.choice(("add", "max", "loop", "branch") if depth < 2 else ("add", "max"))
            if kind == "branch":
                return branched(known, depth + 1)
            if kind == "loop":
                return small(mesh.fori_loop(0, 2, lambda at, carry: small(carry + one), other))
            return small(one + other) if kind == "add" else mnp.maximum(one, other)

        def branched(known: list[Any], depth: int) -> Any:
            number = chance.randrange(ranks)
            state = [chance.getrandbits(32) for _ in range(2)]

            def branch(which: int) -> Any:
                nonlocal chance
                outer, chance = chance, random.Random(state[which])
                found = made(known, depth)
                chance = outer
                return found

            return mesh.cond(rank <= number, lambda: branch(0), lambda: branch(1))

        def met() -> Any:
            value = chance.choice(values)
            ways: tuple[Body, ...] = (
                lambda value: collectives.all_reduce(value, "dp", "max"),
                lambda value: small(collectives.all_reduce(value, "dp")),
                lambda value: collectives.shift(value, "dp"),
            )
            return chance.choice(ways)(value)

        for _ in range(chance.randint(4, 9)):
            step = chance.random()
            values.append(met() if step < 0.45 else branched(values, 0) if step < 0.85 else made(values, 2))
        return tuple(chance.sample(values, 3))

    return local
