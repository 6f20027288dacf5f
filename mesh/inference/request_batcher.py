"""Request batcher: which requests are computed together, and when.  Pure.

Requests of one kind (their arguments are alike but for the number of rows) may share a batch of up to `rows_max` rows.
A batch is begun when it is full, when its oldest request has waited `wait_s`, or when more than `queue_max` wait beside
it; so long as `batches_max` are in flight none is, and requests gather.  Then more than `queue_max` are refused.  Times
come with the calls.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request: `kind` says with which others it may be computed."""

    number: int
    kind: Hashable
    rows: int
    since_s: float


@dataclass(slots=True)
class Batcher:
    """The pure machine of one model's requests."""

    rows_max: int
    wait_s: float
    queue_max: int
    batches_max: int
    waiting: dict[int, Waiting] = field(default_factory=dict)  # the oldest first
    in_flight: int = 0

    @property
    def full(self) -> bool:
        """Whether a request has to be refused: nothing can be begun, and as many wait as may."""
        return self.in_flight >= self.batches_max and len(self.waiting) >= self.queue_max

    def add(self, request: Waiting) -> None:
        """A request comes; whoever calls has seen that there is room."""
        assert not self.full
        self.waiting[request.number] = request

    def leave(self, number: int) -> bool:
        """A request is not wanted any more; whether it was waiting still."""
        return self.waiting.pop(number, None) is not None

    def take(self, now: float) -> list[Waiting]:
        """Take the requests of the next batch, which is then in flight; none if none is due."""
        if self.in_flight >= self.batches_max:
            return []
        for first in self.waiting.values():
            batch, full = self._with(first)
            crowded = len(self.waiting) - len(batch) > self.queue_max
            if full or crowded or now >= first.since_s + self.wait_s:
                for request in batch:
                    del self.waiting[request.number]
                self.in_flight += 1
                return batch
        return []

    def done(self) -> None:
        """A batch is over."""
        self.in_flight -= 1

    def next_deadline(self) -> float | None:
        """The time when a batch that is not full is due; None if there is none, or all wait for batches in flight."""
        if self.in_flight >= self.batches_max or not self.waiting:
            return None
        return next(iter(self.waiting.values())).since_s + self.wait_s

    def _with(self, first: Waiting) -> tuple[list[Waiting], bool]:
        """A request and those that go with it, in their order; whether no more would fit."""
        batch: list[Waiting] = []
        rows = 0
        for request in self.waiting.values():
            if request.kind != first.kind or request.since_s < first.since_s:
                continue
            if batch and rows + request.rows > self.rows_max:
                return batch, True
            batch.append(request)
            rows += request.rows
        return batch, rows >= self.rows_max
