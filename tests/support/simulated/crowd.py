"""What a coordinator does for each heartbeat of a simulated crowd that nobody asks anything: CPU seconds, and calls of
its functions, which no other load of the machine changes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

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
        counter = _Counter()
        counter.start()
        await asyncio.sleep(rounds * beat_s)
        counter.stop()
        found.append(Round(workers, counter.calls / rounds, counter.cpu_s / rounds, beat_s))

    with contextlib.nullcontext() if probing else patch.object(LinkProber, "run", _never):
        simulate(scenario, workers, plan_ahead=False)
    return found[0]


async def _never(prober: LinkProber) -> None:
    await asyncio.Event().wait()


class _Counter:
    """Counts calls into the coordinator's files, and times the outermost of them."""

    def __init__(self) -> None:
        self.calls, self.cpu_s = 0, 0.0
        self._depth, self._began_s = 0, 0.0
        self._mine: dict[CodeType, bool] = {}

    def start(self) -> None:
        sys.setprofile(self._saw)

    def stop(self) -> None:
        sys.setprofile(None)

    def _saw(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        mine = self._mine.get(code)
        if mine is None:
            mine = self._mine[code] = "/coordinator/" in code.co_filename
        if not mine:
            return
        if event == "call":
            self.calls += 1
            if not self._depth:
                self._began_s = time.thread_time()
            self._depth += 1
        elif self._depth:
            self._depth -= 1
            if not self._depth:
                self.cpu_s += time.thread_time() - self._began_s
