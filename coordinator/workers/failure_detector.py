"""The failure detector: Healthy -> Suspect -> Dead, with indirect probes, refutation and rejoin.

Pure: `now` (monotonic seconds) is an argument, decisions are the result.  It does not know what a link, a worker or a
plan is.  Its inputs are when a node was heard, what peers found, and how late the detector itself ran.  To add a rule,
add a Cause, say in `_cause` when it holds, and give it a row of TRANSITIONS.

    joined --> HEALTHY --silent suspect_s--> SUSPECT --silent probed_s, no peer reaches it--> DEAD
                  ^                             |  '---silent dead_s, whatever peers say-------'
                  '--- any later beat ----------'        DEAD --joined again, newer incarnation--> HEALTHY

A closed connection is certain knowledge and goes to DEAD at once.  DEAD is final for an incarnation: late beats of it
are ignored, so a node that was only asleep comes back by joining again.

Three things keep a detector from blaming others for its own troubles:

* Indirect probes.  On Suspect it asks up to PEERS_ASKED healthy peers whether they reach the node.  Only if all of them
  fail, or there is none, is the node dead early.  (Das, Gupta, Motivala: SWIM, 2002.)
* Lateness.  Time by which the detector itself was late does not count as silence.  A detector that was late once is
  often late again, so its deadlines are stretched by that delay, at most by the node time-out; the stretch decays while
  it is on time.  (Dadgar, Phillips, Currey: Lifeguard, 2018, arXiv 1707.00788, which stretches by a counter instead.)
* The mass guard.  When half of all nodes, and MASS_MIN at least, become Suspect together, none is declared dead for
  hold_s, unless others still answer the detector.  (After Kubernetes, which stops evictions when most nodes fail.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from wire.timeouts import DEFAULT_TIMEOUTS, check_node_timeout
from wire.units import counted

PEERS_ASKED = 2
MASS_MIN = 3
DECAY = 0.1  # of a second per second: a stretch by the whole node time-out is over after ten of them

# Every time as a share of the node time-out.
SHARES: Mapping[str, float] = {
    "beat": 1 / 15,  # between heartbeats; the worst gap measured is 1.2 beats idle, 1.6 at 20 % of a core, 3 at 5 %
    "suspect": 1 / 3,  # five beats of silence: no gap measured comes near
    "probe": 4 / 15,  # how long a peer tries; its answer is back before `probed`
    "probed": 2 / 3,  # dead, if no peer reaches it: the suspicion was announced and had five beats to be refuted
    "dead": 1.0,  # dead, whatever peers say: a node that only we cannot hear is of no use to us
    "lease": 4 / 3,  # a worker gives its coordinator up no sooner than the mass guard would give up the worker
    "mass": 2 / 3,  # suspicions that begin within this time are one event
    "hold": 1.0,  # how long the mass guard may put off a verdict, once in a silence
    "stretch": 1.0,  # how far lateness may stretch a deadline
}


class Health(Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DEAD = "dead"


class Cause(Enum):
    """A reason for which a node's health may change.  Where several hold, the first counts."""

    JOINED = "it completed its handshake"
    HEARD = "a beat of it came"
    CLOSED = "certain knowledge, such as a closed connection"
    UNHEARD = "silent dead_s, though a peer reaches it"
    TIMED_OUT = "silent dead_s"
    UNREACHED = "silent probed_s, and every peer that was asked failed to reach it"
    ALONE = "silent probed_s, and there was no peer to ask"
    QUIET = "silent suspect_s"


# (health, cause) -> the new health, and the reason that people read.  What is absent changes nothing.
TRANSITIONS: Mapping[tuple[Health | None, Cause], tuple[Health, str]] = {
    (None, Cause.JOINED): (Health.HEALTHY, "joined"),
    (Health.SUSPECT, Cause.JOINED): (Health.HEALTHY, "joined again"),
    (Health.DEAD, Cause.JOINED): (Health.HEALTHY, "joined again"),
    (Health.SUSPECT, Cause.HEARD): (Health.HEALTHY, "refuted the suspicion"),
    (Health.HEALTHY, Cause.QUIET): (Health.SUSPECT, "silent for {silent_s:.2f} s"),
    (Health.SUSPECT, Cause.ALONE): (Health.DEAD, "silent for {silent_s:.2f} s, and no peer was there to ask"),
    (Health.SUSPECT, Cause.UNREACHED): (Health.DEAD, "silent for {silent_s:.2f} s, and {failed} could not reach it"),
    (Health.SUSPECT, Cause.UNHEARD): (Health.DEAD, "silent for {silent_s:.2f} s, though {reached} reached it"),
    (Health.SUSPECT, Cause.TIMED_OUT): (Health.DEAD, "silent for {silent_s:.2f} s"),
    (Health.HEALTHY, Cause.CLOSED): (Health.DEAD, "{closed}"),
    (Health.SUSPECT, Cause.CLOSED): (Health.DEAD, "{closed}"),
}


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """All times in seconds, derived from the one that is chosen."""

    node_timeout_s: float = DEFAULT_TIMEOUTS.node_timeout_s

    @staticmethod
    def from_node_timeout(seconds: float) -> HealthConfig:
        """The times that go with a node time-out; ConfigError outside 0.15 to 900 s."""
        return HealthConfig(check_node_timeout(seconds))

    @property
    def beat_s(self) -> float:
        return self._share("beat")

    @property
    def suspect_s(self) -> float:
        return self._share("suspect")

    @property
    def probe_s(self) -> float:
        return self._share("probe")

    @property
    def probed_s(self) -> float:
        return self._share("probed")

    @property
    def dead_s(self) -> float:
        return self._share("dead")

    @property
    def lease_s(self) -> float:
        return self._share("lease")

    @property
    def mass_s(self) -> float:
        return self._share("mass")

    @property
    def hold_s(self) -> float:
        return self._share("hold")

    @property
    def stretch_s_max(self) -> float:
        return self._share("stretch")

    def describe(self) -> str:
        """One line for people."""
        return (
            f"node time-out {self.node_timeout_s:g} s (--node-timeout): heartbeat {self.beat_s:.3g} s, "
            f"Suspect after {self.suspect_s:.3g} s of silence, Dead after {self.probed_s:.3g} s "
            f"if no peer reaches the node and after {self.dead_s:.3g} s in any case"
        )

    def _share(self, name: str) -> float:
        return self.node_timeout_s * SHARES[name]


@dataclass(slots=True)
class Watch:
    """The record of one node, on the detector's clock.

    A healthy node that is heard again changes its times only, and most of what a detector hears are such beats: those
    are written where they are, as is the delay of the detector itself.  Everything else makes a new
    record.
    """

    node: str
    health: Health
    incarnation: int
    heard_s: float  # when it was last heard
    counted_s: float  # from when its silence counts: later than heard_s where the judge was late since
    suspected_s: float = 0.0  # when it became Suspect
    held_s: float | None = None  # no verdict of this silence before this time
    probes: Mapping[str, bool | None] = field(default_factory=dict)  # peer -> reached it, or None: has not answered


@dataclass(frozen=True, slots=True)
class Transition:
    """A node's health changed at `at_s`; `silent_s` is how long it had not been heard."""

    node: str
    health: Health
    was: Health | None
    at_s: float
    silent_s: float
    reason: str
    cause: Cause
    incarnation: int


@dataclass(frozen=True, slots=True)
class AskPeer:
    """Have `peer` try to reach `node` for `wait_s`, and hand this to `probed` with the answer."""

    peer: str
    node: str
    wait_s: float
    suspected_s: float  # which suspicion it belongs to


@dataclass(frozen=True, slots=True)
class ProbeSelf:
    """See within `wait_s` whether any of `peers` answers this coordinator, and call `self_probed`."""

    peers: tuple[str, ...]
    wait_s: float


Decision = Transition | AskPeer | ProbeSelf


class FailureDetector:
    """The failure detector decides the health of any number of nodes by when they were last heard.

    Of many nodes nearly all are healthy, so whatever concerns suspects looks at these only.  Healthy nodes are looked
    at together: beats move their deadlines further away only, so none is due before the first that was known.
    """

    def __init__(self, config: HealthConfig) -> None:
        self.config = config
        self._watches: dict[str, Watch] = {}
        self._suspects: dict[str, None] = {}
        self._oldest_s = math.inf  # from then on or later the silence of every healthy node counts
        self._latest: list[str] | None = None  # healthy nodes, the latest heard last; while many are judged together
        self._asked: dict[str, dict[str, None]] = {}  # by peer the suspects that it was asked about
        self._withdrawn: deque[str] = deque()  # peers that died, while suspects are judged without their answers
        self._ticked_s: float | None = None
        self._stretch_s = 0.0  # as of _stretched_s
        self._stretched_s = 0.0

    # -- what is known

    def health(self, node: str) -> Health | None:
        """The node's health, or None if it never joined."""
        watch = self._watches.get(node)
        return watch.health if watch else None

    def heard_s(self, node: str) -> float | None:
        """The time at which the node was last heard, or None if it never joined."""
        watch = self._watches.get(node)
        return watch.heard_s if watch else None

    def next_deadline(self) -> float | None:
        """The time at which `tick` is due, or None while there is no node to watch.  Beats since the last one may have
        made it earlier than it need be."""
        quiet_s = self._deadline(self._oldest_s, self.config.suspect_s)
        suspects = map(self._watches.__getitem__, self._suspects)
        first_s = min([quiet_s, *(due_s for watch in suspects for due_s, _ in self._dues(watch))])
        return None if first_s == math.inf else first_s

    # -- what happens

    def joined(self, node: str, incarnation: int, now: float) -> list[Decision]:
        """A node completed its handshake; a dead one comes back."""
        watch = self._watches.get(node)
        fresh = self._keep(Watch(node, Health.HEALTHY, incarnation, now, now))
        return self._change(watch, fresh, Cause.JOINED, now)

    def heard(self, node: str, incarnation: int, now: float) -> list[Decision]:
        """A beat arrived.  An older incarnation, a dead node or a stranger changes nothing."""
        watch = self._watches.get(node)
        if watch is None or watch.health is Health.DEAD or incarnation < watch.incarnation:
            return []
        if watch.health is Health.HEALTHY:
            watch.incarnation, watch.heard_s, watch.counted_s = incarnation, now, now
            return []
        fresh = self._keep(Watch(node, Health.HEALTHY, incarnation, now, now))
        return self._change(watch, fresh, Cause.HEARD, now)

    def lost(self, node: str, now: float, reason: str) -> list[Decision]:
        """A node is certainly gone: its connection closed, say."""
        watch = self._watches.get(node)
        return [] if watch is None else self._change(watch, watch, Cause.CLOSED, now, reason)

    def forget(self, node: str) -> None:
        """The node left for good."""
        self._unsuspect(node)
        self._watches.pop(node, None)

    def probed(self, ask: AskPeer, reached: bool | None, now: float) -> list[Decision]:
        """A peer answered; None: it could not try, which says nothing about the node."""
        watch = self._watches.get(ask.node)
        if watch is None or watch.health is not Health.SUSPECT or watch.suspected_s != ask.suspected_s:
            return []
        return self._answered(watch, ask.peer, reached, now)

    def self_probed(self, well: bool, now: float) -> list[Decision]:
        """The result of ProbeSelf.  If others still answer, deaths may be declared; if not, the hold goes on."""
        if not well:
            return []
        for watch in self._suspected():
            if watch.held_s is not None:
                self._keep(replace(watch, held_s=min(watch.held_s, now)))
        return self._due(now)

    def tick(self, now: float, late_s: float = 0.0) -> list[Decision]:
        """Decide what follows from the silence so far.  `late_s` is how much later than due this call comes."""
        self._excuse(now, late_s)
        decisions = self._due(now)
        return decisions + self._guard(now)

    # -- judging

    def _keep(self, watch: Watch) -> Watch:
        """Write a node's record down."""
        if watch.health is not Health.SUSPECT:
            self._unsuspect(watch.node)
        self._watches[watch.node] = watch
        if watch.health is Health.SUSPECT:
            self._suspects[watch.node] = None
            for peer in watch.probes:
                self._asked.setdefault(peer, {})[watch.node] = None
        elif watch.health is Health.HEALTHY:
            self._oldest_s = min(self._oldest_s, watch.counted_s)
        return watch

    def _unsuspect(self, node: str) -> None:
        """Expect no more answers about a node."""
        if node in self._suspects:
            del self._suspects[node]
            for peer in self._watches[node].probes:
                self._not_asked(peer, node)

    def _not_asked(self, peer: str, node: str) -> None:
        """Expect nothing more of a peer about a node."""
        about = self._asked.get(peer, {})
        about.pop(node, None)
        if not about:
            self._asked.pop(peer, None)

    def _suspected(self) -> list[Watch]:
        return [self._watches[node] for node in self._suspects]

    def _due(self, now: float) -> list[Decision]:
        self._look()
        quiet = now >= self._deadline(self._oldest_s, self.config.suspect_s)
        decisions: list[Decision] = []
        for node in list(self._watches if quiet else self._suspects):
            watch = self._watches[node]  # as it is by now: one death may be the cause of others
            cause = self._cause(watch, now)
            if cause is not None:
                decisions += self._change(watch, watch, cause, now)
        if quiet:
            self._look()
        return decisions

    def _look(self) -> None:
        """Find out since when the healthy node that was silent for longest is so."""
        healthy = Health.HEALTHY
        self._oldest_s = min(
            [watch.counted_s for watch in self._watches.values() if watch.health is healthy], default=math.inf
        )
        self._latest = None

    def _cause(self, watch: Watch, now: float) -> Cause | None:
        return next((cause for due_s, cause in self._dues(watch) if now >= due_s), None)

    def _dues(self, watch: Watch) -> list[tuple[float, Cause]]:
        """The times at which silence alone changes this node's health, with the causes; the first that holds counts."""
        config, answers = self.config, watch.probes.values()
        if watch.health is Health.HEALTHY:
            return [(self._deadline(watch.counted_s, config.suspect_s), Cause.QUIET)]
        if watch.health is Health.DEAD:
            return []
        last = Cause.UNHEARD if any(answers) else Cause.TIMED_OUT
        dues = [(self._deadline(watch.counted_s, config.dead_s, watch.held_s), last)]
        if all(answer is False for answer in answers):
            cause = Cause.UNREACHED if answers else Cause.ALONE
            dues.append((self._deadline(watch.counted_s, config.probed_s, watch.held_s), cause))
        return dues

    def _deadline(self, counted_s: float, after_s: float, held_s: float | None = None) -> float:
        """The time at which a node was silent for `after_s` and the stretch, which decays; not before its hold ends.

        The stretched deadline is the t of: t = plain + stretch - DECAY * (t - stretched)."""
        plain_s = counted_s + after_s
        stretched_s = (plain_s + self._stretch_s + DECAY * self._stretched_s) / (1 + DECAY)
        return max(plain_s, stretched_s, plain_s if held_s is None else held_s)

    def _change(self, was: Watch | None, known: Watch, cause: Cause, now: float, closed: str = "") -> list[Decision]:
        """Make the transition that the table has for a cause; `was` is the record before it, None for a new node."""
        row = TRANSITIONS.get((was.health if was else None, cause))
        if row is None:
            return []
        health, reason = row
        peers = self._peers(known.node) if health is Health.SUSPECT else []
        fresh = replace(known, health=health)
        if health is Health.SUSPECT:
            fresh = replace(fresh, suspected_s=now, probes=dict.fromkeys(peers))
        self._keep(fresh)
        silent_s = now - was.heard_s if was else 0.0
        failed, reached = (_peers_text(fresh.probes, answer) for answer in (False, True))
        text = reason.format(silent_s=silent_s, failed=failed, reached=reached, closed=closed)
        before = was.health if was else None
        decisions: list[Decision] = [
            Transition(fresh.node, health, before, now, silent_s, text, cause, fresh.incarnation),
            *(AskPeer(peer, fresh.node, self.config.probe_s, now) for peer in peers),
        ]
        return decisions + self._withdraw(fresh.node, now) if health is Health.DEAD else decisions

    # -- probes by other workers

    def _peers(self, node: str) -> list[str]:
        """The peers to ask: healthy ones, the most recently heard first."""
        if self._latest is None:
            healthy = [watch for watch in self._watches.values() if watch.health is Health.HEALTHY]
            healthy.sort(key=lambda watch: (-watch.heard_s, watch.node), reverse=True)
            self._latest = [watch.node for watch in healthy]
        found: list[str] = []
        while self._latest and len(found) <= PEERS_ASKED:
            other = self._latest.pop()
            if self.health(other) is Health.HEALTHY:  # others were judged in the same moment
                found.append(other)
        self._latest += reversed(found)
        return [other for other in found if other != node][:PEERS_ASKED]

    def _answered(self, watch: Watch, peer: str, reached: bool | None, now: float) -> list[Decision]:
        if watch.probes.get(peer, True) is not None:
            return []  # it was not asked, or has answered
        probes = {name: answer for name, answer in watch.probes.items() if name != peer}
        if reached is not None:
            probes[peer] = reached
        self._not_asked(peer, watch.node)
        fresh = self._keep(replace(watch, probes=probes))
        cause = self._cause(fresh, now)
        return [] if cause is None else self._change(fresh, fresh, cause, now)

    def _withdraw(self, peer: str, now: float) -> list[Decision]:
        """Expect no answers of a dead peer, nor of those that are dead because it was the last to be asked."""
        self._withdrawn.append(peer)
        if len(self._withdrawn) > 1:
            return []  # of many that die together each is the next one's peer: they are handled in turn
        decisions: list[Decision] = []
        while self._withdrawn:
            for node in list(self._asked.pop(self._withdrawn[0], ())):
                decisions += self._answered(self._watches[node], self._withdrawn[0], None, now)
            self._withdrawn.popleft()
        return decisions

    # -- the judge's own troubles

    def _excuse(self, now: float, late_s: float) -> None:
        """Subtract the detector's own delay from every silence, and stretch the deadlines.

        One beat of every delay counts all the same, so that a detector that is never on time still reaches a decision.
        """
        elapsed_s = now - (self._ticked_s if self._ticked_s is not None else now - late_s)
        self._ticked_s = now
        excused_s = min(late_s, elapsed_s - self.config.beat_s)
        if late_s <= self.config.beat_s or excused_s <= 0:
            return
        stretch_s = max(0.0, self._stretch_s - DECAY * (now - self._stretched_s)) + excused_s
        self._stretch_s, self._stretched_s = min(stretch_s, self.config.stretch_s_max), now
        for watch in self._watches.values():
            if watch.health is not Health.DEAD:
                watch.counted_s = min(now, watch.counted_s + excused_s)

    def _guard(self, now: float) -> list[Decision]:
        """Declare no deaths while many became Suspect together, and probe first whether others still answer."""
        together = [watch for watch in self._suspected() if now - watch.suspected_s <= self.config.mass_s]
        fresh = [watch for watch in together if watch.held_s is None]
        if not fresh or len(together) < MASS_MIN:
            return []
        alive = [watch for watch in self._watches.values() if watch.health is not Health.DEAD]
        if 2 * len(together) < len(alive):
            return []
        for watch in fresh:
            self._keep(replace(watch, held_s=now + self.config.hold_s))
        healthy = [watch for watch in alive if watch.health is Health.HEALTHY]
        healthy.sort(key=lambda watch: (-watch.heard_s, watch.node))
        return [ProbeSelf(tuple(watch.node for watch in healthy[:MASS_MIN]), self.config.probe_s)]


def _peers_text(probes: Mapping[str, bool | None], answer: bool) -> str:
    return counted(sum(reached is answer for reached in probes.values()), "peer")
