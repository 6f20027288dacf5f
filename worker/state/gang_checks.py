"""Gang checks: parts that run at the same time, one per rank of a grid, and wait for each other meanwhile.  Pure.

Each rank needs a device of its own, and the plan must be ordered: else two gangs could wait for each other.  What the
ranks exchange, and how, is the business of `collectives/`.
"""

from __future__ import annotations

import math

from wire.errors import InputError, MeshError
from wire.protocol.messages import Deploy, Member, PartSpec


def others_in(part: PartSpec, node: str) -> set[str]:
    """The other workers that have a rank of a part's gang."""
    return {member.node for member in part.gang.members} - {node} if part.gang else set()


def wrong_in_gang(part: PartSpec, deploy: Deploy, node: str) -> MeshError | None:
    """What is impossible about the gang of a part, if it has one, on worker `node`."""
    gang = part.gang
    if gang is None:
        return None
    members, ranks = gang.members, math.prod(gang.sizes)
    if len(gang.axes) != len(gang.sizes) or ranks != len(members):
        return InputError(f"part {part.part} is of a gang of {len(members)}, and its grid has {ranks} ranks")
    if gang.rank >= ranks or members[gang.rank] != Member(node, part.part, part.device):
        return InputError(f"part {part.part} is not rank {gang.rank} of its gang")
    if len({(member.node, member.device) for member in members}) < ranks:
        return InputError(f"two ranks of the gang of part {part.part} are on one device, and would wait for ever")
    if not deploy.ordered:
        return InputError(f"part {part.part} is of a gang, and its plan is not ordered")
    strange = sorted(others_in(part, node) - deploy.peers.keys())
    return InputError(f"the gang of part {part.part} is with {strange[0][:16]}, who is not listed") if strange else None
