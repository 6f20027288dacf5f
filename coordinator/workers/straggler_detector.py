"""Straggler detector: finds devices that became slower than they were, each compared with its own past.

A machine may come to be shared, hot or throttled.  The time of a part is compared with that of the same part on the
same device earlier, with as many calls in flight.  So a verdict never follows from a plan: not from unlike devices, an
error of the cost model, or another partition.  A new plan brings new parts; their times are first learnt, at the pace
that the device is known to have.

A few runs in a row must agree, by more than the device's runs usually differ.  A device stays slow until it is well
again, and its factor changes only where it is far off.  One that became twice as fast counts as well, too: the times of
its present parts were learnt while it was slow, at a factor that may have been wrong, and only its earlier parts can
show how fast it is.  Pure.  It does not know what follows from a verdict
(`coordinator/plan_service/migration_cost.py`), nor of a device that was never well: that one is as slow as its
measurement says or not.

The error of predictions is learnt, too, for all devices with the same figures together: a stage must not look slower on
a device only because that one was tried already.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..planning.model.plan import Part, Plan
from ..planning.model.profiles import DeviceProfile, Profiles, WorkerProfile

DeviceKey = tuple[str, int]  # node, device
CLOCK_S = 1e-7  # what clocks tell apart: nothing takes less
BASE_S = 0.002  # added to either side: what takes no time says more about the machine's noise than about the device
TRIFLE_S = BASE_S / 32  # what takes less says nothing about the device
WINDOW = 31  # runs that say how long a part takes while its device is well
KNOWN_MIN = 3  # runs, from which on its speed is known
SEEN = 5  # runs, of which the median counts, so that two that were held up change nothing
SEEN_MIN = 3
SLOW = 1.7  # times as long as in good runs: slow
RARE_MARGIN = 1.5  # and that much longer than what is rare for the device
WELL = 1.5  # less than this is not slow any more
CHANGE_MIN = 2.0  # a figure that is off by more is changed
SLOWNESS_MAX = 64.0
LEARNT_MIN = 8  # runs after which predictions go by how far off they were
EXPONENT_MAX = 64  # of a factor as a power of two
PARTS_MAX = 4096  # whose runs are remembered, of all devices; the least recently run goes first

Figures = tuple[str, str, float, float]  # of a device: its engine, adapter, and what was measured
Key = tuple[DeviceKey, bytes, int]  # a part's graph on a device, and about how many calls were in flight


@dataclass(slots=True)
class _DeviceHistory:
    at: DeviceKey
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN))  # of what work takes now to good runs
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # the same while it is well
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # of good runs to what was predicted
    as_rank: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # the same of what ranks compute
    slowness: float = 1.0


@dataclass(slots=True, eq=False)
class _DeviceKind:
    """A kind of device: those with the same figures."""

    errors: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # of good runs that are no trifle
    slowdown: float = 1.0  # measured time divided by predicted time, while they are well


class StragglerDetector:
    """Learns from `took`, which is called for everything that was computed; planning reads `at_present_speed`."""

    def __init__(self) -> None:
        self._sites: dict[DeviceKey, _DeviceHistory] = {}
        self._kinds: dict[Figures, _DeviceKind] = {}
        self._kind_of: dict[DeviceKey, _DeviceKind] = {}
        self._runs: OrderedDict[Key, tuple[float, ...]] = OrderedDict()  # an empty deque takes 0.6 KiB
        self._guessed: set[Key] = set()  # those of which were got to know while the device was slow
        self.verdicts = 0  # how often one changed

    # -- what is known

    def slowness(self, site: DeviceKey) -> float:
        """1 for a device that is as fast as it was, else how many times as long everything takes, 64 at most."""
        history = self._sites.get(site)
        return history.slowness if history else 1.0

    def slow(self) -> Iterable[tuple[DeviceKey, float]]:
        """The devices that are slower than they were, with their factors."""
        return ((site, seen.slowness) for site, seen in self._sites.items() if seen.slowness > 1.0)

    def at_present_speed(self, worker: WorkerProfile) -> WorkerProfile:
        """A worker's profile with the speeds that its devices have now, where they differ from the measured ones."""
        devices = (device.slowed(self._factor((worker.node_id, device.index), device)) for device in worker.devices)
        return replace(worker, devices=tuple(devices))

    def with_rank_errors(self, profiles: Profiles) -> Profiles:
        """Workers `at_present_speed`, with the prediction error of each device's own runs as a rank.  A device with too
        few runs gets the error of those with the same figures, so that none looks slower for having been tried."""
        sites = [(worker.node_id, device.index) for worker in profiles.workers for device in worker.devices]
        own = {at: factor for at in sites if (factor := self._own_factor(at))}
        alike: dict[_DeviceKind | None, list[float]] = {}
        for at, factor in own.items():
            alike.setdefault(self._kind_of.get(at), []).append(factor)

        def error_of(at: DeviceKey) -> float:
            return own.get(at) or statistics.median_low(alike.get(self._kind_of.get(at), [1.0]))

        workers = (
            replace(one, devices=tuple(device.slowed(error_of((one.node_id, device.index))) for device in one.devices))
            for one in profiles.workers
        )
        return replace(profiles, workers=tuple(workers))

    def _own_factor(self, at: DeviceKey) -> float | None:
        """The ratio of a device's times as a rank to the prediction for its kind; None if it had too few runs."""
        own, kind = self._sites.get(at), self._kind_of.get(at)
        if own is None or len(own.as_rank) < LEARNT_MIN:
            return None
        return _rounded(_good(own.as_rank) / (kind.slowdown if kind else 1.0))

    def _factor(self, at: DeviceKey, device: DeviceProfile) -> float:
        figures = device.engine, device.adapter, device.gflops, device.gbytes_per_s
        kind = self._kind_of[at] = self._kinds.setdefault(figures, _DeviceKind())
        return self.slowness(at) * kind.slowdown

    def expected_s(self, part: Part) -> float:
        """The time of a part now: by its own runs, else the prediction corrected by the device's error."""
        site = part.node, part.device
        known = [runs for (where, graph, _), runs in self._runs.items() if where == site and graph == part.graph.hash]
        if known:
            return _good(max(known, key=len)) * self.slowness(site)
        return part.seconds / part.slower * self._error(site) * self.slowness(site)

    def ran_slowly(self, site: DeviceKey) -> bool:
        """Whether the last run of a device was slow."""
        history = self._sites.get(site)
        return history is not None and bool(history.ratios) and history.ratios[-1] >= SLOW

    # -- what happens

    def took(self, plan: Plan, seconds: Mapping[int, float], calls: int) -> list[str]:
        """Parts of a plan took `seconds` on one worker, while `calls` calls ran; what that changes, for
        people.  With none it was a trial, and is forgotten once the device is well.  Parts whose work depends on values
        say nothing; of ranks, who wait for each other, what they compute themselves counts."""
        if self._are_trifles(plan, seconds, calls):
            return []
        changes, by_site = [], dict[DeviceKey, dict[int, float]]()
        for part, took_s in seconds.items():
            if not plan.parts[part].graph.work_varies:
                by_site.setdefault(_site_of(plan.parts[part]), {})[part] = took_s
        for site, mine in sorted(by_site.items()):
            before = self.slowness(site)
            self._judge(site, plan, mine, calls.bit_length())
            after = self.slowness(site)
            if after != before:
                self.verdicts += 1
                changes.append(f"device {site[1]} {_in_words(before, after)}")
        return changes

    def late(self, part: Part, took_s: float, calls: int) -> list[str]:
        """A part has run for so long and is not done; the changes that follow."""
        known = self._runs.get((_site_of(part), part.graph.hash, calls.bit_length()))
        if known is None or len(known) < KNOWN_MIN:
            return []
        before = self.slowness(_site_of(part))
        self._weigh(_site_of(part), _good(known), took_s)
        after = self.slowness(_site_of(part))
        self.verdicts += after != before
        return [f"device {part.device} {_in_words(before, after)}"] if after != before else []

    def pardon(self, site: DeviceKey) -> None:
        """Take back a verdict that cannot be tested any more."""
        history = self._sites.get(site)
        if history is not None and history.slowness > 1.0:
            self._set(site, 1.0)
            self.verdicts += 1

    def forget(self, node: str) -> None:
        """Forget a node that is gone or was started again."""
        for site in [site for site in self._sites if site[0] == node]:
            del self._sites[site]
        for site in [site for site in self._kind_of if site[0] == node]:
            del self._kind_of[site]
        self._kinds = {figures: kind for figures, kind in self._kinds.items() if kind in self._kind_of.values()}
        for key in [key for key in self._runs if key[0][0] == node]:
            del self._runs[key]
            self._guessed.discard(key)

    # -- judging

    def _are_trifles(self, plan: Plan, seconds: Mapping[int, float], calls: int) -> bool:
        """Whether these parts took no time on devices that are well, and have for long: then there is nothing to learn,
        but that the devices are as they were.  Of such parts there are many, and each of their calls waits for this."""
        for part, took_s in seconds.items():
            spec = plan.parts[part]
            at = _site_of(spec)
            site, known = self._sites.get(at), self._runs.get((at, spec.graph.hash, calls.bit_length()), ())
            if took_s > TRIFLE_S or site is None or site.slowness != 1.0:
                return False
            if len(known) < WINDOW or max(known) > TRIFLE_S:
                return False
            site.ratios.append(1.0)
            site.usual.append(1.0)
        return True

    def _judge(self, at: DeviceKey, plan: Plan, seconds: Mapping[int, float], load: int) -> None:
        site = self._site(at)
        keys = {part: self._known((site.at, plan.parts[part].graph.hash, load)) for part in seconds}
        runs = [self._runs.get(key, ()) for key in keys.values()]
        well = True
        if all(len(known) >= KNOWN_MIN for known in runs):
            well = self._weigh(at, sum(map(_good, runs)), sum(seconds.values()))
        for part, key in keys.items():
            known = self._runs.get(key)
            if known is None:  # it was a guess, and the device is well
                continue
            if site.slowness == 1.0 and well:
                known = *known, seconds[part]
            elif len(known) < KNOWN_MIN:
                known = *known, seconds[part] / site.slowness
                self._guessed.add(key)
            self._runs[key] = known[-WINDOW:]
        predicted_s = sum(plan.parts[part].seconds / plan.parts[part].slower for part in seconds)
        if predicted_s > 0 and site.slowness == 1.0 and well:
            site.errors.append(sum(seconds.values()) / predicted_s)
            ranks = seconds.keys() & plan.ranks.keys()
            alike_s = sum(plan.parts[part].seconds / plan.parts[part].slower for part in ranks)
            if alike_s >= BASE_S:
                site.as_rank.append(max(sum(seconds[part] for part in ranks), CLOCK_S) / alike_s)
            if predicted_s >= BASE_S and at in self._kind_of:
                self._learn(self._kind_of[at], max(sum(seconds.values()), CLOCK_S) / predicted_s)

    def _learn(self, kind: _DeviceKind, error: float) -> None:
        """Add a prediction error of a device's kind, of work that is long enough to be measured."""
        kind.errors.append(error)
        error_now = _good(kind.errors)
        if len(kind.errors) >= LEARNT_MIN and max(error_now / kind.slowdown, kind.slowdown / error_now) > CHANGE_MIN:
            kind.slowdown = min(max(_rounded(error_now), 1 / SLOWNESS_MAX), SLOWNESS_MAX)

    def _weigh(self, at: DeviceKey, good_s: float, took_s: float) -> bool:
        """Add a run of work that took `good_s` in good runs and now `took_s`; whether that is normal for the device."""
        site = self._site(at)
        ratio = (took_s + BASE_S) / (good_s + BASE_S)
        site.ratios.append(ratio)
        bound = max(SLOW, RARE_MARGIN * _rare(site.usual))
        sustained, was_well = statistics.median(site.ratios), site.slowness == 1.0
        if was_well and sustained < SLOW and ratio < bound:
            site.usual.append(ratio)
        if len(site.ratios) >= SEEN_MIN:
            well = sustained < (bound if was_well else WELL)
            slower = max(sustained, 1.0)  # one that is faster than it was known to be is not slow
            slowness = _rounded(slower + (slower - 1) * BASE_S / max(good_s, 2 * BASE_S))
            well = well or site.slowness / slowness > CHANGE_MIN
            if well or was_well or slowness / site.slowness > CHANGE_MIN:
                self._set(at, 1.0 if well or slowness < SLOW else min(slowness, SLOWNESS_MAX))
        return ratio < bound

    def _set(self, at: DeviceKey, slowness: float) -> None:
        site = self._sites[at]
        if slowness == site.slowness:
            return
        site.slowness = slowness
        site.ratios.clear()
        if slowness == 1.0:
            for key in [key for key in self._guessed if key[0] == at]:
                self._guessed.discard(key)
                self._runs.pop(key, None)

    def _site(self, at: DeviceKey) -> _DeviceHistory:
        history = self._sites.get(at)
        if history is None:
            history = self._sites[at] = _DeviceHistory(at)
        return history

    def _known(self, key: Key) -> Key:
        """The key of a part whose runs are remembered from now on."""
        self._runs.setdefault(key, ())
        self._runs.move_to_end(key)
        while len(self._runs) > PARTS_MAX:
            self._guessed.discard(self._runs.popitem(last=False)[0])
        return key

    def _error(self, at: DeviceKey) -> float:
        """The error of predictions for a device; for one that never ran, that of the others."""
        own = self._sites.get(at)
        if own is not None and own.errors:
            return _good(own.errors)
        others = [_good(history.errors) for history in self._sites.values() if history.errors]
        return statistics.median(others) if others else 1.0


def _site_of(part: Part) -> DeviceKey:
    return part.node, part.device


def _good(runs: Collection[float]) -> float:
    """The time of a part in a good run: the first quartile."""
    ordered = sorted(runs)
    return ordered[len(ordered) // 4]


def _rare(ratios: deque[float]) -> float:
    """The ninth decile."""
    return sorted(ratios)[len(ratios) * 9 // 10] if ratios else 1.0


def _rounded(times: float) -> float:
    """Round to a quarter power of two, so that similar figures become equal, and finite, whatever a worker says."""
    return float(2 ** (round(4 * min(math.log2(times), EXPONENT_MAX)) / 4))


def _in_words(before: float, after: float) -> str:
    return f"takes {after:.2g} times as long as it did" if after > 1.0 else "is as fast again as it was"
