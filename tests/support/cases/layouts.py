"""Every way to split a tensor over a grid."""

from __future__ import annotations

from itertools import permutations, product

from wire.sharding.layout import Axes, Dims

PAIR = Axes(("tp",), (2,))
FOUR = Axes(("tp",), (4,))
THREE = Axes(("tp",), (3,))
SQUARE = Axes(("dp", "tp"), (2, 2))
GRIDS = {"2": PAIR, "4": FOUR, "2x2": SQUARE, "3": THREE}


def layouts(rank: int, axes: Axes) -> list[Dims]:
    """All specs of tensors with so many dimensions: each axis splits one of them or none, in any order."""
    found: dict[Dims, None] = {}
    for places in product(range(-1, rank), repeat=len(axes.names)):
        for order in permutations(range(len(axes.names))):
            dims: list[tuple[str, ...]] = [()] * rank
            for at in order:
                if places[at] >= 0:
                    dims[places[at]] = (*dims[places[at]], axes.names[at])
            found[tuple(dims)] = None
    return list(found)
