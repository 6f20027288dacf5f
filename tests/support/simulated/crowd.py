"""What a coordinator does for each heartbeat of a simulated crowd that nobody asks anything: CPU seconds, and calls of
its functions, which no other load of the machine changes.

Calls are counted by a profiler, which takes longer than what it counts; so seconds are taken in other rounds, without
it, around what a coordinator is told and around its looks at deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from coordinator.runtime.message_router import MessageRouter
from coordinator.workers.failure_detector import FailureDetector
from coordinator.workers.link_prober import LinkProber
from mesh.simulation.cluster import Cluster

from .simulated import simulate

SETTLE_S = 5.0  # virtual: until all have joined and links are known


@dataclass(frozen=True, slots=True)
class Round:
    """One heartbeat of everybody, on average over some."""

    workers: int
    calls: float  # of the coordinator's functions
    cpu_s: float  # of the coordinator, and of what it calls
    beat_s: float


def heartbeat_round(workers: int, rounds: int = 5, probing: bool = True) -> Round:
    """Without `probing` links between workers are not measured, which is most of what a large simulation takes."""
    found: list[Round] = []

    async def scenario(cluster: Cluster) -> None:
        await asyncio.sleep(SETTLE_S)
        beat_s = cluster.coordinator.config.health.beat_s
        counter = CallCounter()
        counter.start()
        await asyncio.sleep(rounds * beat_s)
        counter.stop()
        with Clock() as clock:
            await asyncio.sleep(rounds * beat_s)
        found.append(Round(workers, counter.calls / rounds, clock.cpu_s / rounds, beat_s))

    with contextlib.nullcontext() if probing else patch.object(LinkProber, "run", never_probe):
        simulate(scenario, workers, plan_ahead=False)
    return found[0]


async def never_probe(prober: LinkProber) -> None:
    await asyncio.Event().wait()


TIMED = ((MessageRouter, "on_notify"), (FailureDetector, "next_deadline"), (FailureDetector, "tick"))


class Clock(contextlib.ExitStack):
    """The CPU seconds of the coordinator's functions that are called from outside, while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu_s = 0.0
        for owner, name in TIMED:
            self.enter_context(patch.object(owner, name, self._timed(getattr(owner, name))))

    def _timed(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began_s = time.thread_time()
            try:
                return plain(*args)
            finally:
                self.cpu_s += time.thread_time() - began_s

        return timed


class CallCounter:
    """Counts calls into the coordinator's files."""

    def __init__(self) -> None:
        self.calls = 0
        self._mine: dict[CodeType, bool] = {}

    def start(self) -> None:
        sys.setprofile(self._saw)

    def stop(self) -> None:
        sys.setprofile(None)

    def _saw(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        mine = self._mine.get(code)
        if mine is None:
            mine = self._mine[code] = "/coordinator/" in code.co_filename
        self.calls += mine
