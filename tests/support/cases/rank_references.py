"""What ranks compute together, written a second time: every rank in a thread of its own, meeting at the collectives.

Nothing here uses what wire/passes/unroll_spmd.py uses: a rank is a walk over the body with its own values, and a
collective is a rendezvous at which all ranks of the group put down what they have.  So branches and loops need no rule:
each rank takes its own, and what does not meet is an error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import dtype_of
from wire.ir.types import Attrs

Array = NDArray[Any]
Inside = Callable[..., list[Array]]
MEETING_S = 60.0  # after which ranks that never meet are an error


class Rank:
    """One rank of a grid, which meets others."""

    def __init__(self, axes: tuple[str, ...], sizes: tuple[int, ...], at: tuple[int, ...], table: Table) -> None:
        self.at = dict(zip(axes, at, strict=True))
        self.sizes = dict(zip(axes, sizes, strict=True))
        self._axes, self._table = axes, table

    def number(self, axes: tuple[str, ...]) -> int:
        found = 0
        for axis in axes:
            found = found * self.sizes[axis] + self.at[axis]
        return found

    def meet(self, axes: tuple[str, ...], value: Array) -> list[Array]:
        """What all ranks of the group put down, by their numbers."""
        others = tuple(self.at[axis] for axis in self._axes if axis not in axes)
        count = int(np.prod([self.sizes[axis] for axis in axes]))
        return self._table.meet((axes, others), self.number(axes), value, count)


class Table:
    """Where ranks put down what they have."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lying: dict[Any, dict[int, Array]] = {}
        self._turns: Counter[Any] = Counter()

    def meet(self, group: Any, number: int, value: Array, count: int) -> list[Array]:
        with self._changed:
            self._turns[group, number] += 1
            lying = self._lying.setdefault((group, self._turns[group, number]), {})
            lying[number] = value
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(lying) == count, MEETING_S), "ranks did not meet"
            return [lying[each] for each in range(count)]


def spmd(attrs: Attrs, operands: list[Array], inside: Inside) -> list[Array]:
    """The results of an spmd node; `inside(graph, operands, rank)` evaluates its body."""
    axes, sizes = attrs["axes"], attrs["sizes"]
    table, found, failed = Table(), {}, []

    def one(at: tuple[int, ...]) -> None:
        specs = zip(operands, attrs["in_specs"], strict=True)
        blocks = [array[_window(array.shape, spec, axes, sizes, at)] for array, spec in specs]
        try:
            found[at] = inside(attrs["body"], blocks, Rank(axes, sizes, at, table))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(at,), daemon=True) for at in product(*map(range, sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        raise error
    results = []
    for place, spec in enumerate(attrs["out_specs"]):
        first = found[(0,) * len(sizes)][place]
        times = [int(np.prod([sizes[axes.index(axis)] for axis in names] or [1])) for names in _names(spec)]
        whole = np.zeros([dim * count for dim, count in zip(first.shape, times, strict=True)], first.dtype)
        for at in sorted(found, reverse=True):  # so that the first rank's copy stays
            whole[_window(whole.shape, spec, axes, sizes, at)] = found[at][place]
        results.append(whole)
    return results


def _names(spec: str) -> list[list[str]]:
    return [[] if dim == "-" else dim.split("+") for dim in spec.split()]


def _window(shape: Any, spec: str, axes: Any, sizes: Any, at: Any) -> tuple[slice, ...]:
    window = []
    for dim, names in zip(shape, _names(spec), strict=True):
        low, high = 0, dim
        for name in names:
            step = (high - low) // sizes[axes.index(name)]
            low += at[axes.index(name)] * step
            high = low + step
        window.append(slice(low, high))
    return tuple(window)


def collective(op: str, attrs: Attrs, operands: list[Array], rank: Rank) -> Array:
    """One rank's result, in long double or Python integers where it is rounded or wrapped afterwards."""
    axes = attrs["axes"]
    number = rank.number(axes)
    if op == "axis_index":
        return np.array(number, np.int32)
    met = rank.meet(axes, operands[0])
    if op == "all_reduce":
        return _reduced(met, attrs["reduction"])
    if op == "all_gather":
        return np.concatenate(met, attrs["axis"])
    if op == "reduce_scatter":
        whole = _reduced(met, attrs["reduction"])
        return np.split(whole, len(met), attrs["axis"])[number]
    if op == "all_to_all":
        mine = [np.split(each, len(met), attrs["split_axis"])[number] for each in met]
        return np.concatenate(mine, attrs["concat_axis"])
    if op == "broadcast_from":
        return met[attrs["root"]]
    assert op == "permute"
    pairs = list(attrs["pairs"])
    came = [source for source, target in zip(pairs[::2], pairs[1::2], strict=True) if target == number]
    return met[came[0]] if came else np.zeros_like(met[0])


def _reduced(met: list[Array], reduction: str) -> Array:
    if reduction in ("and", "or"):
        return np.bitwise_and.reduce(met) if reduction == "and" else np.bitwise_or.reduce(met)
    whole = dtype_of(met[0]).kind in "iub"
    stacked = np.stack([each.astype(object if whole else np.longdouble) for each in met])
    found = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[reduction](stacked, axis=0)
    return np.asarray(found, stacked.dtype)
