"""Spans: what each worker's share of the last steps of a session took.  Plain data."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from wire.messages import Ran

SPANS_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Span:
    """From when a worker was told to run a step to when it answered, by the coordinator's clock.

    `compute_s` is of its parts, `wait_s` until their inputs were there, `exchange_s` what its ranks waited for others
    and for what they send; the rest went to messages.  `parts_s` are the seconds of its parts, in the order in which
    they were done.
    """

    worker: str
    step: int
    began_s: float
    ended_s: float
    compute_s: float
    wait_s: float
    bytes_in: int
    bytes_out: int
    parts_s: array[float]
    exchange_s: float = 0.0

    @classmethod
    def of(cls, worker: str, step: int, began_s: float, ended_s: float, answer: Ran) -> Span:
        compute_s, wait_s = sum(each.compute_s for each in answer.parts), sum(each.wait_s for each in answer.parts)
        parts_s = array("d", (each.compute_s for each in answer.parts))
        exchange_s, sizes = sum(each.exchange_s for each in answer.parts), (answer.bytes_in, answer.bytes_out)
        return cls(worker, step, began_s, ended_s, compute_s, wait_s, *sizes, parts_s, exchange_s)

    @property
    def rest_s(self) -> float:
        return max(0.0, self.ended_s - self.began_s - self.compute_s - self.wait_s - self.exchange_s)
