"""Session context: what sessions need of their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from wire.protocol.messages import PlanKey, Ran
from wire.system.shared_memory import SharedDir
from wire.system.tasks import Tasks
from wire.timeouts import Timeouts
from wire.transfer.content_exchange import BlobExchange

from ..delivery.deployer import Deployer
from ..delivery.tensor_store import TensorStore
from ..plan_service.plan_service import PlanService
from ..planning.model.plan import Plan
from ..planning.model.profiles import Profiles
from ..planning.model.program import Program
from ..workers.records import Member
from ..workers.straggler_detector import StragglerDetector


@dataclass(frozen=True)
class SessionContext:
    """What sessions need of their coordinator."""

    epoch: Callable[[], int]
    earlier: dict[int, int]  # the epochs of plans that another process of this coordinator made, by generation
    members: Mapping[str, Member]
    deployer: Deployer
    planning: PlanService
    usable: Callable[[], frozenset[str]]
    held: TensorStore
    blobs: BlobExchange
    shared: SharedDir | None
    generation: Callable[[], int]
    tasks: Tasks
    publish: Callable[[str, str, str, int], None]
    timeouts: Timeouts
    stragglers: StragglerDetector
    guarded: Callable[[Program, Plan], None]  # all workers of a plan have what it needs
    ran: Callable[[Hashable, str, Plan, Ran, float], int]  # as `Pacing.session_ran`

    def profiles(self, nodes: Iterable[str]) -> Profiles:
        return self.planning.profiles(nodes)

    def key(self, generation: int) -> PlanKey:
        """What workers know a plan by."""
        return PlanKey(self.earlier.get(generation, self.epoch()), generation)
