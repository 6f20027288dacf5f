"""Batch shares: how a batch is shared out among ranks, whatever it is of.  It knows no rows and no workers.

A number n means even portions for n ranks.  A tuple says by rank how many units it has of as many as they are in all,
most first, so that those that differ only in who is who are the same program.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Portions = int | tuple[int, ...]
UNITS = 8  # of an even share: as fine as that are shares by speed, so that there are few programs
SPEED_RATIO_MIN = 1.25  # of the fastest to the slowest: below it, shares by speed are not even thought of


def ranks_of(portions: Portions) -> int:
    """The number of ranks."""
    return len(portions) if isinstance(portions, tuple) else portions


def ends_of(units: tuple[int, ...], pieces: int) -> list[int]:
    """The end of each rank's share of `pieces` pieces: as near to its units as whole pieces go."""
    return [pieces * sum(units[: rank + 1]) // sum(units) for rank in range(len(units))]


def handed_out(begin_s: Sequence[float], each_s: Sequence[float], units: int, first: int = 0) -> tuple[int, ...]:
    """One unit after the other to the worker that would be done with it first, after `first` for each; by worker."""
    shares = [first] * len(each_s)
    ends = [(begin + (first + 1) * row_s, who) for who, (begin, row_s) in enumerate(zip(begin_s, each_s, strict=True))]
    heapq.heapify(ends)
    for _ in range(units - sum(shares)):
        who = ends[0][1]
        shares[who] += 1
        heapq.heapreplace(ends, (begin_s[who] + (shares[who] + 1) * each_s[who], who))
    return tuple(shares)


def uneven(figures: Sequence[float]) -> bool:
    """Whether speeds, or times for the same share, differ so much that shares by speed may pay."""
    return max(figures) > SPEED_RATIO_MIN * min(figures)


def by_speed(even_s: Sequence[float], pieces: int) -> Portions:
    """The shares of a batch of `pieces` for ranks that take `even_s` seconds for an even share.  Every rank gets some;
    the shares are even where the times are alike, or the pieces too few."""
    ranks = len(even_s)
    units = min(pieces, UNITS * ranks)
    if units < ranks or min(even_s) <= 0 or not uneven(even_s):
        return ranks
    return tuple(sorted(handed_out([0.0] * ranks, even_s, units, 1), reverse=True))


__all__ = ["UNITS", "Portions", "by_speed", "ends_of", "handed_out", "ranks_of", "uneven"]
