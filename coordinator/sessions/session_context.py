"""Session context: what sessions need of their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from wire.protocol.messages import Ran
from wire.timeouts import Timeouts
from wire.transfer.content_exchange import BlobExchange

from ..lifecycle.plan_context import PlanContext
from ..planning.model.plan import Plan
from ..planning.model.program import Program
from ..workers.straggler_detector import StragglerDetector


@dataclass(frozen=True, kw_only=True)
class SessionContext:
    """What sessions need of their coordinator."""

    plans: PlanContext
    usable: Callable[[], frozenset[str]]
    blobs: BlobExchange
    generation: Callable[[], int]
    timeouts: Timeouts
    stragglers: StragglerDetector
    guarded: Callable[[Program, Plan], None]  # all workers of a plan have what it needs
    ran: Callable[[Hashable, str, Plan, Ran, float], int]  # as `Pacing.session_ran`
