"""Bounds: how much a worker holds on behalf of others."""

from __future__ import annotations

from dataclasses import dataclass

from wire.limits import MIB
from wire.timeouts import DEFAULT_TIMEOUTS


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a worker holds on behalf of others.  Sizes are in bytes and times in seconds."""

    early_bytes_max: int = 1024 * MIB  # tensors that came before their Run: one step's activations, generously
    early_tensors_max: int = 65_536
    graphs_bytes_max: int = 64 * MIB  # graph encodings kept so that a new plan need not send them again
    fetches_max: int = 8  # enough to hide a LAN's round trips
    keep_orphans_s: float = DEFAULT_TIMEOUTS.keep_orphans_s
    lost_link_grace_s: float = DEFAULT_TIMEOUTS.lost_link_grace_s
    served_epoch: int = 0  # of the coordinator with a standby that it served last, before this process
    memory_bytes: int = 0  # the budget for computing and for what is kept for other workers; 0: no limit
