"""Pairs: who reaches whom, how fast, and whose turn it is to be probed.  Pure.

Every node is probed with the others when it joins, both directions in turn, no node in two probes at once so that none
measures another's traffic.  A link serves both ways, so a pair is connected if either end could dial the other.  A pair
that is not relays through the coordinator, and is tried again, ever less often but for ever: what stood in the way may
be gone.  CLIENT stands for the coordinator's own process.

The planner gets links from here.  What was measured is rounded, and a little more or less than what it goes by already
changes nothing: links that are alike have to look alike, and plans not to change with the weather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from .profile import CLIENT, LAN, SAME_HOST, Link

Pair = tuple[str, str]  # from, to

PEERS_MAX = 32  # a node is probed with so many others: in a larger mesh the rest is assumed
REST_S = 0.5  # after joining: what a worker joined for comes first
RETRY_S_FIRST, RETRY_S_MAX = 30.0, 300.0
HOP_S = SAME_HOST.latency_s  # what a hop costs where the way itself costs nothing
ALIKE = 1.5  # a factor that does not matter


@dataclass(frozen=True, slots=True)
class Way:
    """What a probe found: `address` was dialled ("": the other end had dialled), `cause` says why it was not reached.

    `bytes_per_s` is 0 where it was not measured, as over shared memory.
    """

    reached: bool
    rtt_s: float = 0.0
    bytes_per_s: float = 0.0
    shared: bool = False
    address: str = ""
    cause: str = ""


@dataclass(slots=True)
class Pairs:
    """Tell it who joins and leaves and what probes found; it says which are due."""

    _nodes: dict[str, None] = field(default_factory=lambda: {CLIENT: None})  # in order of joining
    _ways: dict[Pair, Way] = field(default_factory=dict)
    _links: dict[Pair, Link] = field(default_factory=dict)  # measured, and other than what was assumed
    _waiting: dict[Pair, None] = field(default_factory=dict)
    _asked: set[Pair] = field(default_factory=set)
    _retries: dict[Pair, tuple[float, float]] = field(default_factory=dict)  # when, and after how long the last was
    _resting: dict[str, float] = field(default_factory=dict)  # until when a worker that has just joined is left alone

    _again: dict[Pair, float] = field(default_factory=dict)  # when a slow way is measured once more; inf when it was

    def joined(self, node: str, now: float) -> None:
        """A worker is there, or there again: whatever was known of it is old."""
        self.left(node)
        self._resting[node] = now + REST_S
        others = list(self._nodes)
        for other in dict.fromkeys([CLIENT, *others[-PEERS_MAX:]]):
            self._waiting[node, other] = None
        self._nodes[node] = None

    def left(self, node: str) -> None:
        """A worker is gone."""
        self._nodes.pop(node, None)
        self._resting.pop(node, None)
        for known in (self._ways, self._links, self._waiting, self._retries, self._again):
            for pair in [pair for pair in known if node in pair]:
                del known[pair]
        self._asked = {pair for pair in self._asked if node not in pair}

    def doubt(self, pair: Pair) -> None:
        """Something was lost between two workers: see again whether they reach each other."""
        if not self._nodes.keys() >= set(pair):
            return
        for way in (pair, (pair[1], pair[0])):
            self._ways.pop(way, None)
            self._retries.pop(way, None)
        self._waiting[pair] = None

    def due(self, now: float) -> list[Pair]:
        """What to probe now; tell `found` of each."""
        for pair in [pair for pair, (at_s, _) in self._retries.items() if at_s <= now]:
            self._waiting.setdefault(pair)
            self._retries[pair] = (math.inf, self._retries[pair][1])
        for pair in [pair for pair, at_s in self._again.items() if at_s <= now]:
            self._waiting.setdefault(pair)
            self._again[pair] = math.inf
        self._resting = {node: until_s for node, until_s in self._resting.items() if until_s > now}
        busy = {node for pair in self._asked for node in pair} | self._resting.keys()
        begun = []
        for pair in list(self._waiting):
            if busy.isdisjoint(pair):
                begun.append(pair)
                busy.update(pair)
                del self._waiting[pair]
        self._asked.update(begun)
        return begun

    def next_deadline(self) -> float | None:
        """When to ask for what is due, if nothing happens before."""
        retries = (at_s for at_s, _ in self._retries.values())
        at_s = min((*retries, *self._again.values(), *self._resting.values()), default=math.inf)
        return None if at_s == math.inf else at_s

    def found(self, pair: Pair, way: Way, now: float, assumed: Link) -> bool:
        """A probe ended: whether the planner should know.  `assumed` is what it goes by where nothing is measured."""
        if pair not in self._asked:
            return False  # one of the two left meanwhile
        self._asked.discard(pair)
        back = pair[1], pair[0]
        was_cut = self._connected(pair) is False
        self._ways[pair] = way
        other = self._ways.get(back)
        if way.reached and way.shared:
            self._ways[back] = replace(way, address="")
        elif other is None or (way.reached and not other.reached):
            self._waiting[back] = None
        if self._connected(pair):
            self._retries.pop(pair, None)
            self._retries.pop(back, None)
        elif other is not None:
            _, wait_s = self._retries.get(pair, (0.0, RETRY_S_FIRST / 2))
            wait_s = min(wait_s * 2, RETRY_S_MAX)
            self._retries[pair] = (now + wait_s, wait_s)
        changed = self._use(pair, assumed)
        if changed:  # so slow, or only while somebody was busy?
            self._again.setdefault(pair, now + RETRY_S_FIRST)
        if way.shared:
            changed = self._use(back, assumed) or changed
        return changed or was_cut != (self._connected(pair) is False)

    def _use(self, pair: Pair, assumed: Link) -> bool:
        """Go by what was measured, if it is other than what we go by."""
        way = self._ways[pair]
        if not way.reached:
            return False
        measured = _link_of(way)
        if _alike(measured, self._links.get(pair, assumed)):
            return False
        self._links[pair] = measured
        return True

    def _connected(self, pair: Pair) -> bool | None:
        """Whether tensors can go straight; None while that is not known."""
        ways = [self._ways.get(pair), self._ways.get((pair[1], pair[0]))]
        if any(way is not None and way.reached for way in ways):
            return True
        return None if None in ways else False

    # -- what others make of it

    def relayed(self, node: str) -> frozenset[str]:
        """The workers to which this one sends through the coordinator."""
        return frozenset(other for one, other in self._ways if one == node and self._is_relayed((one, other)))

    def links(self, nodes: Iterable[str], assumed: Callable[[str, str], Link]) -> dict[Pair, Link]:
        """The ways between these workers and the client that are other than `assumed`."""
        there = {CLIENT, *nodes}
        found = {pair: link for pair, link in self._links.items() if there.issuperset(pair)}
        for pair in self._ways:
            if self._is_relayed(pair) and there.issuperset(pair):
                hops = (pair[0], CLIENT), (CLIENT, pair[1])
                found[pair] = through(*(self._links.get(hop) or assumed(*hop) for hop in hops))
        return found

    def table(self) -> list[tuple[Pair, Way, str]]:
        """Everything that was found, with how tensors go that way, for people."""
        return [(pair, way, self._path(pair, way)) for pair, way in self._ways.items()]

    def _path(self, pair: Pair, way: Way) -> str:
        if way.shared:
            return "shared memory"
        return {True: "direct", False: "relay", None: "?"}[self._connected(pair)]

    def _is_relayed(self, pair: Pair) -> bool:
        return CLIENT not in pair and self._connected(pair) is False


def through(first: Link, second: Link) -> Link:
    """Two hops: every byte takes both, one after the other."""
    bytes_per_s = 1 / (1 / first.bytes_per_s + 1 / second.bytes_per_s)
    return Link(first.latency_s + second.latency_s, bytes_per_s, relayed=True)


def _link_of(way: Way) -> Link:
    if way.shared:
        return SAME_HOST
    return Link(_rounded(HOP_S + way.rtt_s / 2), _rounded(way.bytes_per_s) if way.bytes_per_s else LAN.bytes_per_s)


def _rounded(value: float) -> float:
    """To the next half power of two."""
    return float(2 ** (round(2 * math.log2(value)) / 2))


def _alike(one: Link, other: Link) -> bool:
    ratios = (one.latency_s / other.latency_s, one.bytes_per_s / other.bytes_per_s)
    return one.relayed == other.relayed and all(1 / ALIKE <= ratio <= ALIKE for ratio in ratios)
