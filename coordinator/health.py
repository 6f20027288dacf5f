"""The failure detector: Healthy -> Suspect -> Dead, with refutation and rejoin.

Pure: `now` (monotonic seconds) is an argument, transitions are the result.  It does not know what a link, a worker or a
plan is; it is told when a node was heard and asked what follows.  Timed suspicion with refutation by incarnation number
follows SWIM (Das, Gupta, Motivala 2002); the patience of a judge that was itself late follows Lifeguard (Dadgar,
Phillips, Currey 2018).

    joined --> HEALTHY --silent suspect_s--> SUSPECT --silent dead_s--> DEAD
                  ^                             |
                  '--- any later beat ----------'        DEAD --joined again, newer incarnation--> HEALTHY

A closed connection is certain knowledge and goes to DEAD at once.  DEAD is final for an incarnation: late beats of it
are ignored, so a node that was only asleep comes back by joining again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from wire.errors import ConfigError


class Health(Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """Intervals in seconds; everything follows from the heartbeat, so there is one number to choose."""

    beat_s: float = 0.1  # under load the worst gap measured between beats is 1.5 beats, on a starved machine 3
    suspect_beats: float = 5.0  # three times the worst measured gap
    dead_beats: float = 10.0  # the suspicion was announced to the node at 5; it had 5 beats to refute it

    @staticmethod
    def of_heartbeat(beat_s: float) -> HealthConfig:
        """The timeouts that go with a heartbeat interval; ConfigError outside 0.01 to 60 s."""
        if not 0.01 <= beat_s <= 60:
            raise ConfigError(f"a heartbeat of {beat_s} s is outside 0.01 to 60 s", next_step="Most meshes want 0.1")
        return HealthConfig(beat_s=beat_s)

    @property
    def suspect_s(self) -> float:
        return self.beat_s * self.suspect_beats

    @property
    def dead_s(self) -> float:
        return self.beat_s * self.dead_beats

    @property
    def lease_s(self) -> float:
        """How long a worker that hears nothing may believe it still belongs to its coordinator."""
        return 1.5 * self.dead_s


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of one node.  `heard_s` is when it was last heard, on the judge's clock."""

    node: str
    health: Health
    incarnation: int
    heard_s: float


@dataclass(frozen=True, slots=True)
class Transition:
    """A node's health changed at `at_s`; `silent_s` is how long it had not been heard."""

    node: str
    health: Health
    was: Health | None
    at_s: float
    silent_s: float
    reason: str


class HealthDetector:
    """Judges any number of nodes by when they were last heard."""

    def __init__(self, config: HealthConfig) -> None:
        self.config = config
        self._watches: dict[str, Watch] = {}

    def health(self, node: str) -> Health | None:
        """The node's health, or None if it never joined."""
        watch = self._watches.get(node)
        return watch.health if watch else None

    def joined(self, node: str, incarnation: int, now: float) -> list[Transition]:
        """A node completed its handshake; a dead one comes back."""
        watch = self._watches.get(node)
        self._watches[node] = Watch(node, Health.HEALTHY, incarnation, now)
        if watch is not None and watch.health is Health.HEALTHY:
            return []
        return [Transition(node, Health.HEALTHY, watch.health if watch else None, now, 0.0, "joined")]

    def heard(self, node: str, incarnation: int, now: float) -> list[Transition]:
        """A beat arrived.  An older incarnation, a dead node or a stranger changes nothing."""
        watch = self._watches.get(node)
        if watch is None or watch.health is Health.DEAD or incarnation < watch.incarnation:
            return []
        self._watches[node] = Watch(node, Health.HEALTHY, incarnation, now)
        if watch.health is Health.HEALTHY:
            return []
        return [Transition(node, Health.HEALTHY, watch.health, now, now - watch.heard_s, "refuted the suspicion")]

    def lost(self, node: str, now: float, reason: str) -> list[Transition]:
        """Certain knowledge that the node is gone, such as a closed connection."""
        watch = self._watches.get(node)
        if watch is None or watch.health is Health.DEAD:
            return []
        self._watches[node] = replace(watch, health=Health.DEAD)
        return [Transition(node, Health.DEAD, watch.health, now, now - watch.heard_s, reason)]

    def forget(self, node: str) -> None:
        """The node left for good."""
        self._watches.pop(node, None)

    def tick(self, now: float, late_s: float = 0.0) -> list[Transition]:
        """What follows from the silence so far.

        `late_s` is how much later than asked this judge itself woke up: the same delay may sit in front of beats that
        have arrived but not been read, so every node is given that much longer.
        """
        transitions = []
        for watch in list(self._watches.values()):
            if late_s > 0 and watch.health is not Health.DEAD:
                watch = self._watches[watch.node] = replace(watch, heard_s=min(now, watch.heard_s + late_s))
            silent_s = now - watch.heard_s
            health = self._judge(watch.health, silent_s)
            if health is not watch.health:
                self._watches[watch.node] = replace(watch, health=health)
                reason = f"silent for {silent_s:.2f} s"
                transitions.append(Transition(watch.node, health, watch.health, now, silent_s, reason))
        return transitions

    def next_deadline(self) -> float | None:
        """When `tick` should be called next, or None while nobody is watched."""
        waits = {Health.HEALTHY: self.config.suspect_s, Health.SUSPECT: self.config.dead_s}
        due = [watch.heard_s + waits[watch.health] for watch in self._watches.values() if watch.health in waits]
        return min(due, default=None)

    def _judge(self, health: Health, silent_s: float) -> Health:
        if health is Health.HEALTHY and silent_s >= self.config.suspect_s:
            return Health.SUSPECT
        if health is Health.SUSPECT and silent_s >= self.config.dead_s:
            return Health.DEAD
        return health
