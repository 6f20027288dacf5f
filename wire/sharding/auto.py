"""Auto: which layouts of a program's inputs and params make it quickest on a grid.

Every choice is partitioned and its cost counted (`cost.py`), so what is compared is what would run.  Where there are
few choices all of them are tried, and the best is proven to be so: among layouts that leave no rank without elements,
under these rates and this partitioner.  Else choices are made one group of leaves at a time, the largest first, until
none gets better; leaves whose names differ in numbers only (the same weight of several layers) and that have one shape
are one group.  That is a local search, as the cost says nothing of what was not tried.

The objective is that of Alpa's intra-operator pass (Zheng et al., 2022, arXiv 2201.12023, section 4): communication and
resharding of all operators, under a limit of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod

from ..errors import PlacementError
from ..ir.graph import WireGraph
from ..units import need_text, room_text, time_text
from .cost import Cost, cost_of
from .layout import Axes, Dims
from .op_cost import Rates
from .partition import partition

TRIES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Choice:
    """The layouts that were found, by name, and the program with them.

    `seconds` and `cost` are a rank's; `alone_s` is one device's with the program as it is.  `proven` says that every
    other choice was tried, and `tried` how many were.
    """

    specs: Mapping[str, Dims]
    graph: WireGraph
    cost: Cost
    seconds: float
    alone_s: float
    tried: int
    proven: bool

    def __str__(self) -> str:
        how = f"the best of all {self.tried}" if self.proven else f"by heuristic, {self.tried} tried"
        return f"{time_text(self.seconds)} per rank, {time_text(self.alone_s)} on one device ({how})"


def choose(
    graph: WireGraph, axes: Axes, rates: Rates | None = None, fixed: Mapping[str, Dims] | None = None,
    memory_bytes: int | None = None, tries_max: int = TRIES_MAX,
) -> Choice:  # fmt: skip
    """Layouts for the inputs and params that `fixed` says nothing of.

    `memory_bytes` is what a rank may hold of them; PlacementError with need and have if no choice that was tried fits.
    """
    search = _Search(graph, axes, rates or Rates(), dict(fixed or {}), memory_bytes)
    kinds = graph.input_types | graph.param_types
    leaves = {name: _layouts(kind.shape, axes) for name, kind in kinds.items() if name not in search.fixed}
    proven = prod(map(len, leaves.values())) <= tries_max
    if proven:
        for chosen in product(*leaves.values()):
            search.attempt(dict(zip(leaves, chosen, strict=True)))
    else:
        _descend(search, graph, leaves, tries_max)
    return search.found(proven)


class _Search:
    """What was tried, and the best of it."""

    def __init__(
        self, graph: WireGraph, axes: Axes, rates: Rates, fixed: dict[str, Dims], memory_bytes: int | None
    ) -> None:
        self.fixed = fixed
        self._graph, self._axes, self._rates, self._memory_bytes = graph, axes, rates, memory_bytes
        self._seen: dict[tuple[tuple[str, Dims], ...], tuple[float, float]] = {}
        self._best: tuple[tuple[float, float], dict[str, Dims], WireGraph, Cost] | None = None

    @property
    def tried(self) -> int:
        return len(self._seen)

    def attempt(self, specs: Mapping[str, Dims]) -> tuple[float, float]:
        """What a choice costs: bytes that do not fit, then seconds."""
        key = tuple(sorted(specs.items()))
        if key not in self._seen:
            sharded = partition(self._graph, self._axes, {**specs, **self.fixed}, self._rates)
            cost = cost_of(sharded)
            over = 0 if self._memory_bytes is None else max(0, cost.held_bytes - self._memory_bytes)
            self._seen[key] = (float(over), cost.seconds(self._rates))
            if self._best is None or self._seen[key] < self._best[0]:
                self._best = (self._seen[key], {**specs, **self.fixed}, sharded, cost)
        return self._seen[key]

    def found(self, proven: bool) -> Choice:
        assert self._best is not None, "a graph has one choice at least"
        (over, seconds), specs, graph, cost = self._best
        if over:
            raise PlacementError(
                f"a rank would hold {need_text(cost.held_bytes)} of inputs and params, and may hold "
                f"{room_text(self._memory_bytes or 0)}",
                next_step="Make the grid larger",
            )
        alone_s = self._graph.flops / self._rates.flops_per_s
        return Choice(specs, graph, cost, seconds, alone_s, self.tried, proven)


def _descend(search: _Search, graph: WireGraph, leaves: Mapping[str, Sequence[Dims]], tries_max: int) -> None:
    """One group after the other, the largest first, from several beginnings."""
    kinds = graph.input_types | graph.param_types
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name in leaves:
        groups.setdefault((re.sub(r"\d+", "#", name), kinds[name].shape), []).append(name)
    order = sorted(groups.values(), key=lambda names: -sum(kinds[name].size_bytes for name in names))
    for beginning in _beginnings(graph, leaves):
        current = dict(beginning)
        cost = search.attempt(current)
        improved = True
        while improved and search.tried < tries_max:
            improved = False
            for names in order:
                for dims in leaves[names[0]]:
                    changed = {**current, **dict.fromkeys(names, dims)}
                    if search.tried < tries_max and (attempt := search.attempt(changed)) < cost:
                        current, cost, improved = changed, attempt, True


def _beginnings(graph: WireGraph, leaves: Mapping[str, Sequence[Dims]]) -> Iterator[dict[str, Dims]]:
    """Everything whole; every input by rows; everything by rows."""
    unsplit = {name: layouts[0] for name, layouts in leaves.items()}
    yield unsplit
    rows = {name: next(filter(_by_rows, reversed(layouts)), layouts[0]) for name, layouts in leaves.items()}
    yield {name: rows[name] if name in graph.input_types else unsplit[name] for name in leaves}
    yield rows


def _by_rows(dims: Dims) -> bool:
    return bool(dims) and not any(dims[1:])


def _layouts(shape: Sequence[int], axes: Axes) -> list[Dims]:
    """Ways to split a tensor that leave no rank without elements; whole first."""
    layouts: dict[Dims, None] = {}
    for places in product(range(-1, len(shape)), repeat=len(axes.names)):
        for order in _orders(places):
            dims: list[tuple[str, ...]] = [()] * len(shape)
            for at in order:
                if places[at] >= 0:
                    dims[places[at]] = (*dims[places[at]], axes.names[at])
            if all(not split or axes.size(split) <= dim for dim, split in zip(shape, dims, strict=True)):
                layouts[tuple(dims)] = None
    return list(layouts)


def _orders(places: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """The orders in which axes may split what they share."""
    shared = len([place for place in places if place >= 0]) > len({place for place in places if place >= 0})
    every = tuple(range(len(places)))
    return permutations(every) if shared else (every,)
