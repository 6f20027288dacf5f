"""Configuration: which coordinators have every acknowledged entry on their disks, and whose votes decide.

Pure.  It is the one value that coordinators agree on by votes; entries of the journal go from one to the other without
any.  See docs/decisions/0039-a-standby.md.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """A round of votes and the node that asks for them: no two nodes have the same one."""

    round: int = 0
    node: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A version of it.  `voters` is one set of nodes, or two while it changes: then both have to agree."""

    version: int
    in_sync: frozenset[str]
    voters: tuple[frozenset[str], ...]

    @staticmethod
    def alone(node: str) -> Configuration:
        """The configuration of a coordinator that never had a standby."""
        return Configuration(0, frozenset({node}), (frozenset({node}),))

    @property
    def everybody(self) -> frozenset[str]:
        """Every node that it names."""
        return self.in_sync.union(*self.voters)

    def agreed(self, nodes: AbstractSet[str]) -> bool:
        """Whether these nodes are a majority of each set of voters."""
        return all(2 * len(nodes & voters) > len(voters) for voters in self.voters)

    def changed(self, in_sync: frozenset[str], voters: frozenset[str]) -> Configuration:
        """The next version.  Other voters come in two steps: with the old ones first, then alone."""
        steps = (self.voters[-1], voters) if voters != self.voters[-1] else (voters,)
        return Configuration(self.version + 1, in_sync, steps)


@dataclass(frozen=True, slots=True)
class Record:
    """What a voter has on its disk: the highest ballot that it promised, and the newest configuration that it
    accepted, with the ballot of that."""

    promised: Ballot = Ballot()
    accepted: Ballot = Ballot()
    configuration: Configuration | None = None

    @property
    def rank(self) -> tuple[Ballot, int]:
        """The configuration of the record with the highest rank is the one that may have been agreed on."""
        return self.accepted, self.configuration.version if self.configuration else -1
