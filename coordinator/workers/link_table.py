"""Link table: which nodes reach each other, how fast, and which pair is to be probed next.  Pure.

A node that joins is probed with the others, in both directions.  No node is in two probes at once, so that none
measures another's traffic.  A link serves both ways, so a pair is connected if either end could dial the other.  A pair
that is not connected relays through the coordinator, and is probed again without end, ever less often.  CLIENT stands
for the coordinator's own process.

The planner gets its links from here.  Measured figures are rounded, and a small change is ignored: similar links have
to be equal, and plans must not change with every measurement.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..planning.model.profiles import CLIENT, LAN, SAME_HOST, Link

Pair = tuple[str, str]  # from, to

PEERS_MAX = 32  # a node is probed with at most as many others: in a larger mesh the rest is assumed
REST_S = 0.5  # after joining: what a worker joined for comes first
RETRY_S_FIRST, RETRY_S_MAX = 30.0, 300.0
HOP_S = SAME_HOST.latency_s  # what a hop costs where the way itself costs nothing
SIMILAR_MAX = 1.5  # a factor that does not matter
EXPONENT_MAX = 64  # of figures as powers of two


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe: `address` was dialled ("": the other end had dialled), `cause` says why it was not
    reached.

    `bytes_per_s` is 0 where it was not measured, as over shared memory.
    """

    reached: bool
    rtt_s: float = 0.0
    bytes_per_s: float = 0.0
    shared: bool = False
    address: str = ""
    cause: str = ""


@dataclass(slots=True)
class LinkTable:
    """The pairs of nodes: give it joins, leaves and results of probes; it says which probes are due.

    A large mesh has tens of thousands of pairs, so an event of one node looks at the pairs of that node only.
    """

    _nodes: dict[str, None] = field(default_factory=lambda: {CLIENT: None})  # in order of joining
    _others: dict[str, set[str]] = field(default_factory=dict)  # of each node: with whom anything is known or due
    _ways: dict[Pair, ProbeResult] = field(default_factory=dict)
    _links: dict[Pair, Link] = field(default_factory=dict)  # measured, and other than what was assumed
    _cut: dict[Pair, None] = field(default_factory=dict)  # what goes that way goes through the coordinator
    _waiting: dict[str, dict[Pair, None]] = field(default_factory=dict)  # for a probe, at both nodes of the pair
    _asked: set[Pair] = field(default_factory=set)
    _busy: set[str] = field(default_factory=set)  # the nodes of those
    _fresh: dict[str, None] = field(default_factory=dict)  # nodes that may begin one: free since, or with new pairs
    _resting: dict[str, float] = field(default_factory=dict)  # until when a worker that has just joined is left alone
    _retries: dict[Pair, tuple[float, float]] = field(default_factory=dict)  # when, and after how long the last was
    _again: dict[Pair, float] = field(default_factory=dict)  # when a slow way is measured once more; inf when it was
    _timers: list[tuple[float, Pair]] = field(default_factory=list)  # a heap of the two; old entries count no more

    def joined(self, node: str, now: float) -> None:
        """A worker joined, perhaps again: what was known of it is out of date."""
        self.left(node)
        self._resting[node] = now + REST_S
        latest = list(itertools.islice(reversed(self._nodes), PEERS_MAX))
        for other in dict.fromkeys([CLIENT, *reversed(latest)]):
            self._wait((node, other))
        self._nodes[node] = None

    def left(self, node: str) -> None:
        """A worker is gone."""
        self._nodes.pop(node, None)
        self._resting.pop(node, None)
        for other in self._others.pop(node, ()):
            self._others[other].discard(node)
            for pair in ((node, other), (other, node)):
                self._end_probe(pair)
                self._waiting[other].pop(pair, None)
                for known in (self._ways, self._links, self._cut, self._retries, self._again):
                    known.pop(pair, None)
        self._waiting.pop(node, None)

    def probe_again(self, pair: Pair) -> None:
        """Probe a pair again: something was lost between the two."""
        if not self._nodes.keys() >= set(pair):
            return
        for way in (pair, (pair[1], pair[0])):
            self._ways.pop(way, None)
            self._cut.pop(way, None)
            self._retries.pop(way, None)
        self._wait(pair)

    def mark_silent(self, pair: Pair, cause: str) -> bool:
        """Relay between two workers that hear nothing of each other, until a probe succeeds."""
        if not self._nodes.keys() >= set(pair):
            return False
        self.probe_again(pair)
        for way in (pair, (pair[1], pair[0])):
            self._ways[way] = ProbeResult(False, cause=cause)
            self._cut[way] = None
        return True

    def due(self, now: float) -> list[Pair]:
        """The pairs to probe now; call `probed` for each."""
        while self._timers and self._timers[0][0] <= now:
            _, pair = heapq.heappop(self._timers)
            at_s, wait_s = self._retries.get(pair, (math.inf, 0.0))
            if at_s <= now:
                self._retries[pair] = (math.inf, wait_s)
                self._wait(pair)
            if self._again.get(pair, math.inf) <= now:
                self._again[pair] = math.inf
                self._wait(pair)
        for node in list(itertools.takewhile(lambda node: self._resting[node] <= now, self._resting)):
            del self._resting[node]
            self._fresh[node] = None
        fresh, self._fresh = self._fresh, {}
        return [begun for node in fresh if (begun := self._begin(node)) is not None]

    def next_deadline(self) -> float | None:
        """The time at which to ask for what is due, if nothing happens before."""
        while self._timers and not self._is_set(*self._timers[0]):
            heapq.heappop(self._timers)
        first = [at_s for at_s, _ in self._timers[:1]]
        return min([*first, *itertools.islice(self._resting.values(), 1)], default=None)

    def _wait(self, pair: Pair) -> None:
        """A probe of this pair is due as soon as both nodes are free."""
        for node, other in (pair, (pair[1], pair[0])):
            self._others.setdefault(node, set()).add(other)
            self._waiting.setdefault(node, {})[pair] = None
            self._fresh[node] = None

    def _begin(self, node: str) -> Pair | None:
        """Begin the first probe of a node whose other node is free, too."""
        if not self._is_free(node):
            return None
        for pair in self._waiting.get(node, ()):
            if self._is_free(pair[0]) and self._is_free(pair[1]):
                for end in pair:
                    del self._waiting[end][pair]
                self._asked.add(pair)
                self._busy.update(pair)
                return pair
        return None

    def _is_free(self, node: str) -> bool:
        return node not in self._busy and node not in self._resting

    def _end_probe(self, pair: Pair) -> None:
        if pair in self._asked:
            self._asked.discard(pair)
            self._busy.difference_update(pair)
            self._fresh.update(dict.fromkeys(pair))

    def _set(self, at_s: float, pair: Pair) -> None:
        heapq.heappush(self._timers, (at_s, pair))

    def _is_set(self, at_s: float, pair: Pair) -> bool:
        """Whether a timer is still valid."""
        return at_s in (self._retries.get(pair, (math.inf,))[0], self._again.get(pair))

    def probed(self, pair: Pair, way: ProbeResult, now: float, assumed: Link) -> bool:
        """A probe ended; whether plans may change.  `assumed` is the link that planning uses where nothing is
        measured."""
        if pair not in self._asked:
            return False  # one of the two left meanwhile
        self._end_probe(pair)
        back = pair[1], pair[0]
        was_cut = self._connected(pair) is False
        self._ways[pair] = way
        other = self._ways.get(back)
        if way.reached and way.shared:
            self._ways[back] = replace(way, address="")
        elif other is None or (way.reached and not other.reached):
            self._wait(back)
        if self._connected(pair):
            self._retries.pop(pair, None)
            self._retries.pop(back, None)
        elif other is not None:
            _, wait_s = self._retries.get(pair, (0.0, RETRY_S_FIRST / 2))
            wait_s = min(wait_s * 2, RETRY_S_MAX)
            self._retries[pair] = (now + wait_s, wait_s)
            self._set(now + wait_s, pair)
        for direction in (pair, back):
            self._cut.pop(direction, None)
            if CLIENT not in pair and self._connected(pair) is False:
                self._cut[direction] = None
        changed = self._use(pair, assumed)
        if changed and pair not in self._again:  # so slow, or only while one of the two was busy?
            self._again[pair] = now + RETRY_S_FIRST
            self._set(self._again[pair], pair)
        if way.shared:
            changed = self._use(back, assumed) or changed
        return changed or was_cut != (self._connected(pair) is False)

    def _use(self, pair: Pair, assumed: Link) -> bool:
        """Use what was measured, if it differs from what was used before; whether it did."""
        way = self._ways[pair]
        if not way.reached:
            return False
        measured = _link_of(way)
        if _similar(measured, self._links.get(pair, assumed)):
            return False
        self._links[pair] = measured
        return True

    def _connected(self, pair: Pair) -> bool | None:
        """Whether the two can connect; None while that is not known."""
        ways = [self._ways.get(pair), self._ways.get((pair[1], pair[0]))]
        if any(way is not None and way.reached for way in ways):
            return True
        return None if None in ways else False

    # -- what others make of it

    def relayed(self, node: str) -> frozenset[str]:
        """The workers to which this one sends through the coordinator."""
        return frozenset(other for other in self._others.get(node, ()) if (node, other) in self._cut)

    def link(self, source: str, target: str, assumed: Callable[[str, str], Link]) -> Link:
        """The link between two nodes, `assumed` where nothing else was measured."""
        if (source, target) in self._cut:
            return through(self.link(source, CLIENT, assumed), self.link(CLIENT, target, assumed))
        return self._links.get((source, target)) or assumed(source, target)

    def links(self, nodes: Iterable[str], assumed: Callable[[str, str], Link]) -> dict[Pair, Link]:
        """The links between these workers and the client that differ from `assumed`."""
        there = {CLIENT, *nodes}
        links = {pair: link for pair, link in self._links.items() if there.issuperset(pair)}
        return links | {pair: self.link(*pair, assumed) for pair in self._cut if there.issuperset(pair)}

    def rows(self) -> list[tuple[Pair, ProbeResult, str]]:
        """The result of every probe, with the path that tensors take."""
        return [(pair, way, self._path(pair, way)) for pair, way in self._ways.items()]

    def _path(self, pair: Pair, way: ProbeResult) -> str:
        if way.shared:
            return "shared memory"
        return {True: "direct", False: "relay", None: "?"}[self._connected(pair)]


def through(first: Link, second: Link) -> Link:
    """A link over two hops: every byte takes both, one after the other."""
    bytes_per_s = 1 / (1 / first.bytes_per_s + 1 / second.bytes_per_s)
    return Link(first.latency_s + second.latency_s, bytes_per_s, relayed=True)


def _link_of(way: ProbeResult) -> Link:
    if way.shared:
        return SAME_HOST
    return Link(_rounded(HOP_S + way.rtt_s / 2), _rounded(way.bytes_per_s) if way.bytes_per_s else LAN.bytes_per_s)


def _rounded(value: float) -> float:
    """Round to the nearest half power of two, as far as what is computed of it is finite, whatever a worker says."""
    return float(2 ** (round(2 * max(min(math.log2(value), EXPONENT_MAX), -EXPONENT_MAX)) / 2))


def _similar(one: Link, other: Link) -> bool:
    ratios = (one.latency_s / other.latency_s, one.bytes_per_s / other.bytes_per_s)
    return one.relayed == other.relayed and all(1 / SIMILAR_MAX <= ratio <= SIMILAR_MAX for ratio in ratios)
