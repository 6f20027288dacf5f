"""Stragglers: how many times slower a device is than it was measured to be, from what its parts took.

A machine may be shared, hot or throttled.  What a part took is held against what was predicted of it, and that against
how far off predictions are elsewhere: a cost model that errs on all devices alike makes nobody a straggler.  Figures
go by powers of two, so that plans do not change with every flutter, and are forgiven by halves while a device has too
little to do to show that it is well again.  Pure: times come with the calls.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from .plan import Plan
from .profile import WorkerProfile

Site = tuple[str, int]
SHORT_S = 0.002  # what takes less says more about the machine's noise than about the device
SEEN = 3  # of so many runs the middle one counts
SEEN_MIN = 2
USUAL = 2.0  # how far off predictions may be as long as no other device was seen
SLOWNESS_MAX = 64.0
FORGIVE_S = 30.0


@dataclass(slots=True)
class _Seen:
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN))  # of what parts took to predictions
    slowness: float = 1.0
    at_s: float = 0.0  # when it was last judged

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


class Stragglers:
    """`took` for everything that was computed; `as_it_runs` when a plan is made.  A site is (node, device)."""

    def __init__(self) -> None:
        self._sites: dict[Site, _Seen] = {}

    def slowness(self, site: Site) -> float:
        """1 for a device that is as fast as measured, else 2, 4, 8 and so on."""
        found = self._sites.get(site)
        return found.slowness if found else 1.0

    def as_it_runs(self, worker: WorkerProfile) -> WorkerProfile:
        """As measured, but for devices that were slower of late."""
        devices = (each.slowed(self.slowness((worker.node_id, each.index))) for each in worker.devices)
        return replace(worker, devices=tuple(devices))

    def took(self, node: str, plan: Plan, seconds: Mapping[int, float], now: float) -> list[str]:
        """Parts of a plan took so many seconds on a worker; what that changes, for people."""
        changes = []
        for device in sorted({plan.parts[part].device for part in seconds}):
            mine = [part for part in seconds if plan.parts[part].device == device]
            predicted_s, took_s = sum(plan.parts[part].seconds for part in mine), sum(seconds[part] for part in mine)
            if self.ran((node, device), predicted_s, took_s, now):
                times = self.slowness((node, device))
                changes.append(f"device {device} takes {times:g} times as long as measured")
        return changes

    def ran(self, site: Site, predicted_s: float, took_s: float, now: float) -> bool:
        """A device took so long for what, at its present slowness, should take so long; whether that changes it."""
        if max(predicted_s, took_s) < SHORT_S or predicted_s <= 0:
            return False
        seen = self._sites.setdefault(site, _Seen())
        seen.ratios.append(took_s / predicted_s)
        seen.at_s = now
        if len(seen.ratios) < SEEN_MIN:
            return False
        relative = seen.ratio / self._usual(site)
        slowness = min(max(seen.slowness * 2.0 ** round(math.log2(relative)), 1.0), SLOWNESS_MAX)
        return self._change(seen, slowness)

    def forgive(self, now: float) -> bool:
        """Whether somebody is given another chance by now."""
        due = [seen for seen in self._sites.values() if seen.slowness > 1.0 and now - seen.at_s >= FORGIVE_S]
        for seen in due:
            seen.at_s = now
            self._change(seen, seen.slowness / 2)
        return bool(due)

    def forget(self, node: str) -> None:
        """The node is gone, or began anew."""
        for site in [site for site in self._sites if site[0] == node]:
            del self._sites[site]

    def slow(self) -> Iterable[tuple[Site, float]]:
        """Who is slower than measured, and how much."""
        return ((site, seen.slowness) for site, seen in self._sites.items() if seen.slowness > 1.0)

    def _usual(self, site: Site) -> float:
        others = [seen.ratio for other, seen in self._sites.items() if other != site and seen.ratios]
        return statistics.median(others) if others else USUAL

    def _change(self, seen: _Seen, slowness: float) -> bool:
        if slowness == seen.slowness:
            return False
        seen.slowness = slowness
        seen.ratios.clear()
        return True
