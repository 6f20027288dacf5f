"""Least seconds: a bound of what an assignment is predicted to take, which costs a hundredth of the prediction.

A call takes no less than its busiest device computes, no less than all devices would if they shared the work evenly,
and no less than one chain of units takes, each of which reads the one before: computing them where they are, and
sending what crosses from worker to worker.  The chain is the longest by what units take where they are fastest; there
are units that have no worker yet.  Where all workers are on the client's machine, a chain that begins with an input
waits for all inputs, which the client copies one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..model.cost_model import Assignment, CostModel

ROUNDING = 1e-9  # sums are made in another order than those of the prediction


class LeastSeconds:
    """The bound for assignments of one graph to the workers of a cost model."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._kind_of = np.array(model.kind_of, np.int64)
        first_of = {kind: unit for unit, kind in reversed([*enumerate(model.kind_of)])}
        kinds, first = len(first_of), [first_of[kind] for kind in range(len(first_of))]
        self._seconds = np.array([[row[unit] for unit in first] for row in model.seconds]).reshape(-1, kinds)
        self._sites = np.array([[row[unit] for unit in first] for row in model.site], np.int64).reshape(-1, kinds)
        self._least_s = self._seconds.min(axis=0)[self._kind_of]
        self._chain = self._longest_chain()
        self._chain_bytes = np.array(self._bytes_along(self._chain.tolist()), np.float64)
        self._left_s = _sums_from(self._least_s)
        self._chain_left_s = _sums_from(self._least_s[self._chain])
        self._fed_s = self._feeding_s()

    def of(self, assignment: Assignment) -> float:
        """No more than `CostModel.predict` says for all units, the first of them assigned so."""
        workers, count = np.array(assignment, np.int64), len(assignment)
        kinds, placed = self._kind_of[:count], int(np.searchsorted(self._chain, count))
        busy_s = np.bincount(self._sites[workers, kinds], self._seconds[workers, kinds])
        evenly_s = (busy_s.sum() + self._left_s[count]) / len(self._model.sites)
        chain_s = self._fed_s + self._chain_s(workers[self._chain[:placed]]) + self._chain_left_s[placed]
        return max(float(busy_s.max()), float(evenly_s), float(chain_s)) * (1 - ROUNDING)

    def _chain_s(self, workers: NDArray[np.int64]) -> float:
        """What the chain takes as far as its units are on these workers."""
        (before,) = np.nonzero(workers[1:] != workers[:-1])
        count = len(self._model.profiles.workers)
        pairs, way = np.unique(workers[before] * count + workers[before + 1], return_inverse=True)
        links = [self._model.link(*divmod(pair, count)) for pair in pairs.tolist()]
        latency_s = np.array([link.latency_s for link in links])
        per_byte_s = np.array([1.0 / link.bytes_per_s for link in links])
        sending_s = latency_s[way] + self._chain_bytes[before] * per_byte_s[way]
        return float(self._seconds[workers, self._kind_of[self._chain[: len(workers)]]].sum() + sending_s.sum())

    def _feeding_s(self) -> float:
        """What passes before the chain may begin."""
        index, profiles = self._model.index, self._model.profiles
        near = all(worker.node_id in profiles.near for worker in profiles.workers)
        if not near or not any(leaf in index.inputs for leaf in index.leaves[self._chain[0]]):
            return 0.0
        read = {leaf for leaves in index.leaves for leaf in leaves if leaf in index.inputs}
        size = sum(index.leaf_bytes[leaf] for leaf in read)
        return min(link.seconds(size) for link in self._model.to_worker)

    def _bytes_along(self, chain: Sequence[int]) -> list[int]:
        """What each unit of a chain is sent, at least, if the one before is on another worker."""
        index = self._model.index
        sent = {**index.read_bytes, **index.sent_bytes}
        return [
            sum(sent[node] for operand, node in index.reads[unit] if operand == before)
            for before, unit in pairwise(chain)
        ]

    def _longest_chain(self) -> NDArray[np.int64]:
        least_s = self._least_s.tolist()
        until_s, came_from = list[float](), list[int]()
        for unit, operands in enumerate(self._model.index.operands):
            last = max(operands, key=until_s.__getitem__, default=-1)
            until_s.append(least_s[unit] + (until_s[last] if operands else 0.0))
            came_from.append(last)
        unit = max(range(len(until_s)), key=until_s.__getitem__)
        chain = []
        while unit >= 0:
            chain.append(unit)
            unit = came_from[unit]
        return np.array(chain[::-1], np.int64)


def _sums_from(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum up, by position, what is there and behind it; 0 is behind the last."""
    return np.append(np.cumsum(seconds[::-1])[::-1], 0.0)
