"""Schedules of pipelines: what each stage does for the micro-batches of a step, when, and with which weights.  Pure.

A row of SCHEDULES says how many micro-batches a stage begins before it goes back with the first, and whether weights
change after each of them:

  * gpipe: all forward, then all backward (Huang et al., GPipe, NeurIPS 2019).  All micro-batches are in flight.
  * 1f1b: a stage begins as many as there are stages from it to the end, then goes back with one for each that it begins
    (PipeDream-flush: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021).
  * pipedream: the order of 1f1b; each stage changes its weights after each micro-batch that comes back, and stashes the
    version that one in flight began with (Narayanan et al., PipeDream, SOSP 2019).  A step drains the pipeline.

Stages and micro-batches are numbered from 0.  It knows nothing of graphs and workers.  To add a schedule: a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True)
class Event:
    """A stage computes one micro-batch, with the weights after `version` updates in this step."""

    kind: str
    batch: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """`alternates`: a stage goes back as soon as it can; `updates`: its weights change after each micro-batch."""

    name: str
    alternates: bool
    updates: bool

    def in_flight(self, stage: int, stages: int, batches: int) -> int:
        """How many micro-batches a stage has begun and not gone back with, at most."""
        return min(stages - stage, batches) if self.alternates else batches

    def versions(self, stage: int, stages: int, batches: int) -> int:
        """How many versions of its weights a stage has at a time, at most, the newest among them."""
        return self.in_flight(stage, stages, batches) if self.updates else 1

    def events(self, stage: int, stages: int, batches: int) -> Iterator[Event]:
        """What a stage does, in turn.  Back goes a micro-batch with the version that it began with."""
        most = self.in_flight(stage, stages, batches)
        version = [max(0, batch - most + 1) if self.updates else 0 for batch in range(batches)]
        back = 0
        for batch in range(batches):
            yield Event(FORWARD, batch, version[batch])
            if batch + 1 >= most:
                yield Event(BACKWARD, back, version[back])
                back += 1
        for batch in range(back, batches):
            yield Event(BACKWARD, batch, version[batch])


SCHEDULES = {
    row.name: row
    for row in (Schedule("gpipe", False, False), Schedule("1f1b", True, False), Schedule("pipedream", True, True))
}


def in_order(schedule: Schedule, stages: int, batches: int) -> list[tuple[int, Event]]:
    """The events of all stages, each behind what it needs: forward the stage before, backward the stage after.

    They stand as they would begin if every event took the same time.
    """
    left = [list(schedule.events(stage, stages, batches)) for stage in range(stages)]
    done: dict[tuple[int, str, int], int] = {}  # when each event ended
    free, order = [0] * stages, []
    while any(left):
        ready = []
        for stage, events in enumerate(left):
            needs = [(stage, event) for event in _needs(stage, stages, events[0])] if events else []
            if events and all(need in done for _, need in needs):
                ready.append((max([free[stage], *(done[need] for _, need in needs)]), -stage))
        begins, stage = min(ready)[0], -min(ready)[1]
        event = left[stage].pop(0)
        free[stage] = done[stage, event.kind, event.batch] = begins + 1
        order.append((begins, stage, event))
    order.sort(key=lambda entry: entry[0])
    return [(stage, event) for _, stage, event in order]


def _needs(stage: int, stages: int, event: Event) -> Iterator[tuple[int, str, int]]:
    if event.kind == FORWARD and stage:
        yield stage - 1, FORWARD, event.batch
    if event.kind == BACKWARD:
        yield stage, FORWARD, event.batch
        if stage + 1 < stages:
            yield stage + 1, BACKWARD, event.batch


def bound(stages: int, batches: int) -> float:
    """The share of a step in which equal stages are busy, at best: what is left is the bubble (GPipe, section 2.3)."""
    return batches / (batches + stages - 1)
