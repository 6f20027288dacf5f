"""Load balance: how many units of a batch each worker should have, by its speed, where all of them wait for each other.

What a worker takes for a share is a part that is always there, as the optimiser's update, and a part per unit.  Both
follow from what it takes for the whole batch alone and for an even share.  Units are then handed out one by one, each
to whoever would be done with it first; who would have none is left out, and where somebody would have next to none,
doing without him is proposed too.  What ranks exchange is not in it: each proposal is planned, and judged by that.

Pure.  It does not know what a unit is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wire.ir.graph import WireGraph
from wire.policy.batch_shares import UNITS, Portions, handed_out, uneven

from ..model.profiles import Profiles
from .rank_placement import Site, able

LITTLE = 0.25  # of an even share


@dataclass(frozen=True, slots=True)
class Proposal:
    """The workers that take part with how many units each, most first."""

    units: tuple[tuple[str, int], ...]

    @property
    def portions(self) -> Portions:
        """The units of each rank; a number of ranks where they are even."""
        counts = tuple(count for _, count in self.units)
        return len(counts) if len({*counts}) == 1 else counts

    def among(self, profiles: Profiles) -> Profiles:
        """The profiles of those who take part."""
        nodes = {node for node, _ in self.units}
        return replace(profiles, workers=tuple(worker for worker in profiles.workers if worker.node_id in nodes))


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds that a worker takes for its share of a batch's pieces: `fixed_s`, and `piece_s` for each."""

    node: str
    fixed_s: float
    piece_s: float

    @classmethod
    def of(cls, site: Site, whole: WireGraph, even: WireGraph, pieces: int, share: int) -> Pace:
        """The pace that follows from the programs of all pieces and of one share."""
        whole_s, even_s = site.seconds(whole), site.seconds(even)
        piece_s = max(whole_s - even_s, 0.0) / max(pieces - share, 1)
        return cls(site.worker.node_id, max(even_s - share * piece_s, 0.0), piece_s)


def uneven_speeds(even: WireGraph, profiles: Profiles) -> bool:
    """Whether workers differ so much in what they take for an even share that shares by speed may pay."""
    seconds = [site.seconds(even) for site in fastest_sites([even], profiles)]
    return bool(seconds) and uneven(seconds)


def proposals(
    whole: WireGraph, even: WireGraph, ranks: int, profiles: Profiles, pieces: int, everybody: bool = False
) -> tuple[Proposal, ...]:
    """Ways to split a batch of `pieces` pieces: `whole` is the program of one worker that has them all, `even` that
    of one of `ranks` ranks.  The fastest workers take part, at most `ranks`, and with `everybody` all of these."""
    share = -(-pieces // ranks)
    sites = fastest_sites([whole, even], profiles)
    paces = sorted((Pace.of(site, whole, even, pieces, share) for site in sites), key=lambda pace: pace.piece_s)[:ranks]
    if not paces:
        return ()
    first = _proposed(paces, pieces, everybody)
    total = sum(count for _, count in first.units)
    useful = {node for node, count in first.units if count * len(first.units) >= LITTLE * total}
    if everybody or len(useful) == len(first.units):
        return (first,)
    return first, _proposed([pace for pace in paces if pace.node in useful], pieces, everybody)


def _proposed(paces: Sequence[Pace], pieces: int, everybody: bool) -> Proposal:
    units = min(pieces, UNITS * len(paces))
    each_s = [pace.piece_s * pieces / units for pace in paces]
    first = int(everybody and len(paces) <= units)
    counts = handed_out([pace.fixed_s for pace in paces], each_s, units, first)
    having = [(pace.node, count) for pace, count in zip(paces, counts, strict=True) if count]
    return Proposal(tuple(sorted(having, key=lambda row: -row[1])))


def fastest_sites(graphs: Sequence[WireGraph], profiles: Profiles) -> Iterator[Site]:
    """The device of each worker that computes these fastest."""
    best: dict[str, tuple[float, Site]] = {}
    for site in able(graphs, profiles):
        seconds = sum(map(site.seconds, graphs))
        node = site.worker.node_id
        if node not in best or seconds < best[node][0]:
            best[node] = seconds, site
    yield from (site for _, site in best.values())
