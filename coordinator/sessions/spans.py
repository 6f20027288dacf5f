"""Spans: what each worker's share of the last steps of a session took.  Plain data."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from wire.protocol.messages import Ran

_SUMMED = ("wait_s", "exchange_s", "readback_s", "encode_s", "sent_bytes", "uploaded_bytes", "readback_bytes")


@dataclass(frozen=True, slots=True)
class Span:
    """The time from the Run of a step to a worker's answer, by the coordinator's clock.

    `compute_s` is of its parts, `readback_s` what came of devices to the host, `wait_s` until their inputs were there,
    `exchange_s` what its ranks waited for others and for what they send, `encode_s` what is sent was copied; the rest
    went to messages.  `parts_s` are the seconds of its parts, reading included, in the order in which they were done;
    `sent_bytes` its ranks sent to others, wherever these are; `uploaded_bytes` and `readback_bytes` went from the
    host's memory to its devices and back.
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
    readback_s: float = 0.0
    encode_s: float = 0.0
    sent_bytes: int = 0
    uploaded_bytes: int = 0
    readback_bytes: int = 0

    @classmethod
    def of(cls, worker: str, step: int, began_s: float, ended_s: float, answer: Ran) -> Span:
        summed = {name: sum(getattr(run, name) for run in answer.parts) for name in _SUMMED}
        parts_s = array("d", [run.compute_s for run in answer.parts])
        compute_s = max(0.0, sum(parts_s) - summed["readback_s"])
        sizes = {"bytes_in": answer.bytes_in, "bytes_out": answer.bytes_out}
        return cls(worker, step, began_s, ended_s, compute_s, parts_s=parts_s, **sizes, **summed)

    @property
    def rest_s(self) -> float:
        accounted_s = self.compute_s + self.readback_s + self.wait_s + self.exchange_s + self.encode_s
        return max(0.0, self.ended_s - self.began_s - accounted_s)
