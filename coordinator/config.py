"""What can be chosen about a coordinator, as data."""

from __future__ import annotations

from dataclasses import dataclass

from wire.limits import MIB
from wire.policy.strategies import text_of
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from .workers.failure_detector import HealthConfig

PLAN_AHEAD_MIN = 500  # below, planning takes less than some 50 ms


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """How a coordinator behaves; `identity` fields that matter are the mesh and the name."""

    mesh: str
    name: str
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    follow_pace: bool = True  # plans go by what parts took of late; without it only by what was measured
    audit: float = 0.0  # which fraction of the parts is computed again on other workers and compared
    audit_untrusted: float = 0.02  # the same of parts on workers of other people, where that is more
    reproducible: bool = False  # only plans of which all have the same bits (planning/model/reproducible.py)
    plan_ahead: bool = True  # plans for the death of each worker are made before it dies
    plan_ahead_min: int = PLAN_AHEAD_MIN  # for graphs with at least this product of nodes and workers
    direct_calls: bool = False  # threads of this process call this machine's engine hosts (runtime/direct_calls.py)
    rehearsed_bytes_max: int = 256 * MIB  # of weights that a rehearsal may move; a recovery of more takes its time

    @property
    def health(self) -> HealthConfig:
        """The times of the failure detector."""
        return HealthConfig(self.timeouts.node_timeout_s)

    def strategy_of(self, text: str) -> str:
        """What a client's strategy means here; InputError for one that is not known, or not reproducible."""
        return text_of(text, self.reproducible)
