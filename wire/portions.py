"""Portions: how a batch is shared out among ranks, whatever it is of.  It knows no rows, no workers and no speeds.

A number is even portions for so many ranks.  A tuple says by rank how many units it has of as many as they are in all,
most first, so that those that differ only in who is who are the same program.
"""

from __future__ import annotations

Portions = int | tuple[int, ...]


def ranks_of(portions: Portions) -> int:
    """For how many ranks they are."""
    return len(portions) if isinstance(portions, tuple) else portions


def ends_of(units: tuple[int, ...], pieces: int) -> list[int]:
    """Where the share of each rank ends, of so many pieces: as near to its units as whole pieces go."""
    return [pieces * sum(units[: rank + 1]) // sum(units) for rank in range(len(units))]


__all__ = ["Portions", "ends_of", "ranks_of"]
