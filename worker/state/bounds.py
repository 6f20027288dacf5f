"""Bounds: how much a worker holds on behalf of others."""

from __future__ import annotations

from dataclasses import dataclass

from wire.bounds import EARLY_COUNT, EARLY_OF_ONE, EARLY_TENSORS, FETCHES, GRAPHS
from wire.timeouts import DEFAULT_TIMEOUTS

EARLY_SHARE = 8  # part of a worker's memory for early tensors, where that is more than their bounds
BEGAN_S = 0.005  # far below any time after which a worker counts as silent or stuck


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a worker holds on behalf of others.  Sizes are in bytes and times in seconds."""

    early_bytes_max: int = EARLY_TENSORS.most  # tensors that came before their Run: one step's activations, generously
    early_bytes_of_one_max: int = EARLY_OF_ONE.most
    early_tensors_max: int = EARLY_COUNT.most
    graphs_bytes_max: int = GRAPHS.most  # graph encodings kept so that a new plan need not send them again
    fetches_max: int = FETCHES.most  # enough to hide a LAN's round trips
    keep_orphans_s: float = DEFAULT_TIMEOUTS.keep_orphans_s
    report_begun_after_s: float = BEGAN_S  # the answer of a step that is done sooner says it
    lost_link_grace_s: float = DEFAULT_TIMEOUTS.lost_link_grace_s
    served_epoch: int = 0  # of the coordinator with a standby that it served last, before this process
    memory_bytes: int = 0  # the budget for computing and for what is kept for other workers; 0: no limit
