"""Stage search: where a line of work is cut, and who gets which slice, so that the slowest stage is as fast as can be.

Dynamic programming over cuts and workers, from the end of the line, after PipeDream (Narayanan et al., SOSP 2019,
section 3.1) with the memory of what is in flight as a constraint, as in DAPPLE (Fan et al., PPoPP 2021): a stage has
less in flight the fewer stages come behind it.  For few workers, alike or not, it is exact over all choices and orders
of them; of many only those orders are tried in which the fastest, or the roomiest, come first.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

EXACT_MAX = 6  # teams of which every order is tried
SLACK = 0.03  # of the slowest stage's time: what may be given for less that is sent
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Team:
    """The workers that compute a stage: one, or several that each have a share of the micro-batches.

    `seconds` are those of a micro-batch by place, of the slowest of them; `dispatch_s` is added once per stage and
    micro-batch.
    """

    members: tuple[int, ...]
    seconds: Vector
    dispatch_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """The line that is cut, by place: how many weights are read there, of which every stage has some; bytes that stay;
    bytes of each micro-batch in flight.  By boundary, of which number p is before place p: the bytes of a micro-batch
    that go up and down, and whether it may be cut there."""

    weights: Vector
    fixed_bytes: Vector
    flying_bytes: Vector
    up_bytes: Vector
    down_bytes: Vector
    open: NDArray[np.bool_]

    @property
    def stages_max(self) -> int:
        """The most stages that the line can be cut into."""
        first = np.flatnonzero(self.open | (np.arange(len(self.open)) == 0))
        return int(np.count_nonzero(np.add.reduceat(self.weights, first))) if len(self.open) else 0


@dataclass(frozen=True, slots=True)
class Stages:
    """Stage s has the places from `cuts[s]` to before `cuts[s + 1]`, and is computed by `teams[s]`.  By other cuts the
    slowest takes `slowest_s`; by these up to SLACK more."""

    cuts: tuple[int, ...]
    teams: tuple[int, ...]
    slowest_s: float


Send = Callable[[int, int, float], float]  # seconds from a team to another for a number of bytes


def best_stages(
    line: Load, teams: Sequence[Team], count: int, send_s: Send, in_flight: Callable[[int], int]
) -> Stages | None:
    """The best `count` stages; `in_flight(k)` is of a stage with k behind it.  None if no choice fits the memory."""
    return _Search(line, teams, send_s, in_flight).best(count)


@dataclass(slots=True)
class _Search:
    line: Load
    teams: Sequence[Team]
    send_s: Send
    in_flight: Callable[[int], int]
    _slices: dict[tuple[int, int], Vector] = field(default_factory=dict)
    _sent: dict[tuple[int, int], Vector] = field(default_factory=dict)

    def best(self, count: int) -> Stages | None:
        best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
        for order in self._orders(count):
            cost, cuts = self._along(order)
            if cost < float("inf") and (best is None or cost < best[0]):
                best = cost, cuts, order
        return Stages(best[1], best[2], best[0]) if best else None

    def _orders(self, count: int) -> Iterator[tuple[int, ...]]:
        """The orders of teams that are tried on stages; of teams that are alike one."""
        numbers = range(len(self.teams))
        if len(self.teams) <= EXACT_MAX:
            yield from self._permutations(count)
            return
        fastest = sorted(numbers, key=lambda team: float(self.teams[team].seconds.sum()))
        roomiest = sorted(numbers, key=lambda team: -self.teams[team].memory_bytes)
        seen = set()
        for order in (fastest, roomiest):
            for chosen in (tuple(order[:count]), tuple(reversed(order[:count])), tuple(sorted(order[:count]))):
                if chosen not in seen:
                    seen.add(chosen)
                    yield chosen

    def _permutations(self, count: int) -> Iterator[tuple[int, ...]]:
        alike = self._first_equal_teams()

        def extended(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(chosen) == count:
                yield chosen
                return
            tried = set()
            for team in range(len(self.teams)):
                if team not in chosen and alike[team] not in tried:
                    tried.add(alike[team])
                    yield from extended((*chosen, team))

        yield from extended(())

    def _first_equal_teams(self) -> Mapping[int, int]:
        """The first team that one differs from in nothing."""
        first_alike: dict[int, int] = {}
        for team in range(len(self.teams)):
            first = (other for other in range(team) if first_alike[other] == other)
            first_alike[team] = next((other for other in first if self._same(other, team)), team)
        return first_alike

    def _same(self, one: int, two: int) -> bool:
        mine, other = self.teams[one], self.teams[two]
        if (mine.dispatch_s, mine.memory_bytes) != (other.dispatch_s, other.memory_bytes):
            return False
        if not np.array_equal(mine.seconds, other.seconds) or self._way(one, two) != self._way(two, one):
            return False
        rest = [team for team in range(len(self.teams)) if team not in (one, two)]
        return all(
            self._way(one, team) == self._way(two, team) and self._way(team, one) == self._way(team, two)
            for team in rest
        )

    def _way(self, source: int, target: int) -> tuple[float, float]:
        return self.send_s(source, target, 0.0), self.send_s(source, target, 1e6)

    def _along(self, order: Sequence[int]) -> tuple[float, tuple[int, ...]]:
        """The least that the slowest stage takes where teams are in this order, and the cuts."""
        slowest, cuts = self._dynamic(order, np.inf)
        if slowest < np.inf:
            _, cuts = self._dynamic(order, slowest * (1 + SLACK))
        return slowest, cuts

    def _dynamic(self, order: Sequence[int], limit_s: float) -> tuple[float, tuple[int, ...]]:
        """The slowest stage's least seconds with the cuts; where no stage may exceed a limit, those of all sends."""
        places = len(self.line.fixed_bytes)
        after = np.full(places + 1, np.inf)  # of what begins at a place, with the stages placed so far
        after[places] = 0.0
        chosen: list[NDArray[np.intp]] = []
        for behind, team in enumerate(reversed(order)):
            sends = self._sends(team, order[len(order) - behind] if behind else None)[None, :]
            table = self._slice(team, behind) + sends
            if limit_s < np.inf:
                table = np.where(table <= limit_s, sends, np.inf) + after[None, :]
            else:
                table = np.maximum(table, after[None, :])
            ends = np.argmin(table, axis=1)
            chosen.append(ends)
            after = np.append(table[np.arange(places + 1), ends][:places], np.inf)
        cuts = [0]
        for ends in reversed(chosen):
            cuts.append(int(ends[cuts[-1]]))
        return float(after[0]), tuple(cuts)

    def _slice(self, team: int, behind: int) -> Vector:
        """Seconds by (first place, end); infinite where it is empty or does not fit."""
        key = team, behind
        if key not in self._slices:
            mine, line = self.teams[team], self.line
            work = np.concatenate([[0.0], np.cumsum(mine.seconds)])
            held = np.concatenate([[0.0], np.cumsum(line.fixed_bytes + self.in_flight(behind) * line.flying_bytes)])
            seconds = work[None, :] - work[:, None] + mine.dispatch_s
            fits = held[None, :] - held[:, None] <= mine.memory_bytes
            weights = np.concatenate([[0.0], np.cumsum(line.weights)])
            whole = weights[None, :] > weights[:, None]
            begins = np.concatenate([[True], line.open[1:], [True]])[:, None]
            self._slices[key] = np.asarray(np.where(fits & whole & begins, seconds, np.inf), np.float64)
        return self._slices[key]

    def _sends(self, team: int, following: int | None) -> Vector:
        """Seconds by the end of a stage: what it sends up there, and what comes back down."""
        line = self.line
        if following is None:
            return np.zeros(len(line.fixed_bytes) + 1)
        if (team, following) not in self._sent:
            up = [self.send_s(team, following, float(size)) for size in (*line.up_bytes, 0.0)]
            down = [self.send_s(following, team, float(size)) for size in (*line.down_bytes, 0.0)]
            self._sent[team, following] = np.array([one + other for one, other in zip(up, down, strict=True)])
        return self._sent[team, following]
