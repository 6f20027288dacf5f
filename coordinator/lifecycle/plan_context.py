"""Plan context: what calls and sessions alike need of their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wire.link.link import Link
from wire.protocol.messages import NodeReport, PlanKey
from wire.system.shared_memory import SharedDir
from wire.system.tasks import Tasks

from ..delivery.deployer import Deployer
from ..delivery.tensor_store import TensorStore
from ..plan_service.plan_service import PlanService
from ..workers.event_feed import EventFeed
from ..workers.link_prober import LinkProber
from ..workers.records import Member


@dataclass(frozen=True, kw_only=True)
class PlanContext:
    """What calls and sessions alike need of their coordinator."""

    epoch: Callable[[], int]
    members: Mapping[str, Member]
    known: Mapping[str, NodeReport]  # also workers that are gone
    deployer: Deployer
    planning: PlanService
    prober: LinkProber
    events: EventFeed
    held: TensorStore
    shared: SharedDir | None
    tasks: Tasks
    refuse: Callable[[Link, str], None]  # count something against the node at the other end of a link
    earlier: dict[int, int] = field(default_factory=dict)  # epochs of plans that an earlier process made, by generation

    def key(self, generation: int) -> PlanKey:
        """What workers know a plan by."""
        return PlanKey(self.earlier.get(generation, self.epoch()), generation)
