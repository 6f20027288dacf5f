"""Lane: one device as the worker's machine sees it: what waits for it, what runs, whether its host serves.  Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from wire.messages import PlanKey

from .events import Use
from .repair import Repair


@dataclass(slots=True)
class Lane:
    """`queue` has (plan, step, part), ready to run in this order."""

    queue: deque[tuple[PlanKey, int, int]] = field(default_factory=deque)
    running: int | None = None  # the run's number
    inputs: tuple[Use, ...] = ()  # of what runs
    since_s: float = 0.0  # when it began
    preparing: set[int] = field(default_factory=set)  # parts of deployed plans that a new host does not have yet
    repair: Repair = field(default_factory=Repair)

    @property
    def idle(self) -> bool:
        """Whether it may be given a part to run."""
        return self.running is None and self.repair.up and not self.preparing

    def validate(self) -> None:
        """AssertionError if it contradicts itself."""
        assert not self.idle or not self.queue, "a device idles while parts are ready"
        assert self.running is None or self.repair.up, "a part runs on a device that is down"

    def end(self, run: int) -> None:
        """The run is over, if it is this lane's."""
        if self.running == run:
            self.running, self.inputs = None, ()

    def forget(self, plan: PlanKey, step: int) -> None:
        """Nothing of a step that is over waits any more."""
        self.queue = deque(entry for entry in self.queue if entry[:2] != (plan, step))
