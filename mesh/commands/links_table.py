"""The table of pairs: who reaches whom, by which path, how fast, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..util.byte_sizes import time_text
from .tables import print_table

if TYPE_CHECKING:
    from wire.protocol.messages import PairReport

    from .diagnosis import Pair


def print_pairs(pairs: Sequence[PairReport | Pair]) -> None:
    """Print a row for every pair."""
    rows = [
        (
            pair.source,
            pair.target,
            pair.path,
            f"{time_text(pair.rtt_s)}" if pair.rtt_s else "",
            f"{pair.bytes_per_s * 8 / 1e6:.0f}" if pair.bytes_per_s else "",
            pair.address,
            pair.cause,
        )
        for pair in pairs
    ]
    print_table(("from", "to", "path", "RTT", "Mbit/s", "dialled", "why not"), rows)
