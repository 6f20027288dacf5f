"""Versions: which protocol two nodes speak together, and which ops they agree on.

A version is (major, minor).  Another major refuses, before anything of the hello is decoded; the smaller minor of the
two is spoken.  Ops are agreed row by row: an op is usable between two nodes when both have it with the same hash, so a
new op or a changed one never breaks a link, the planner only places it elsewhere.

To change the protocol: append an optional field or a frame kind and raise MINOR (and send it only where
`negotiate` gave that minor); anything that an older node would misread raises MAJOR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import VersionMismatch

if TYPE_CHECKING:
    from .peer import Identity

Version = tuple[int, int]
PROTOCOL: Version = (1, 1)


def negotiate(mine: Version, theirs: Version) -> Version:
    """The version both speak; VersionMismatch if the majors differ."""
    if mine[0] != theirs[0]:
        upgrade = "this node" if mine[0] < theirs[0] else "the other node"
        raise VersionMismatch(
            f"the other node speaks protocol {text(theirs)}, this node {text(mine)}",
            expected=text(mine),
            got=text(theirs),
            upgrade=upgrade,
            next_step=f"Upgrade graph-mesh on {upgrade}",
        )
    return mine[0], min(mine[1], theirs[1])


def usable_ops(mine: Identity, theirs: Identity) -> frozenset[str]:
    """Names of the ops that mean the same to both nodes."""
    return frozenset(name for name, row in mine.op_rows.items() if theirs.op_rows.get(name) == row)


def text(version: Version) -> str:
    """ "major.minor"."""
    return f"{version[0]}.{version[1]}"
