"""Replica router: which of several running batches goes on with a text.  Pure.

All that a batch has to do, and what it would have to read of this text, is counted in tokens.  So a text goes where its
beginning is known, unless that batch has so much more to do that another one has read the beginning sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch has to do.

    Parameters
    ----------
    texts : int, optional
        The texts that go on or wait there.
    slots : int, optional
        How many of them go on at a time.
    tokens : int, optional
        The tokens that all of them take.
    found : int, optional
        The tokens of the text that comes which need no reading there.
    tokens_max : int, optional
        The tokens of the longest text that it has memory for.
    full : bool, optional
        Whether it takes no more texts.

    Examples
    --------
    >>> from mesh.inference.replica_router import Load, chosen
    >>> chosen([Load(texts=1, slots=4, tokens=400, found=64), Load(texts=1, slots=4, tokens=100)], tokens=80)
    1
    """

    texts: int = 0
    slots: int = 1
    tokens: int = 0
    found: int = 0
    tokens_max: int = 1 << 62
    full: bool = False


def chosen(loads: Sequence[Load], tokens: int) -> int | None:
    """The place of the batch that goes on with a text of so many tokens, the first of those that are alike; None if
    none has the memory."""
    able = [place for place, load in enumerate(loads) if load.tokens_max >= tokens]
    return min(able, key=lambda place: _cost(loads[place]), default=None)


def _cost(load: Load) -> tuple[bool, bool, int]:
    """What a text waits for: a place in the queue, a slot, and the tokens that are computed beside it."""
    return load.full, load.texts >= load.slots, load.tokens - load.found
