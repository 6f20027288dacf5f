"""Worker names: the names and states of workers as people see them, and which worker a name means.  Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from wire.errors import InputError, MeshError
from wire.protocol.messages import Joined, NodeReport
from wire.protocol.peer import Identity

from .failure_detector import Health

if TYPE_CHECKING:
    from .records import Member

LEFT = "left"  # the state of a worker that is gone in good order
GONE = frozenset({Health.DEAD.value, LEFT})
PAUSED_BY = {"machine": "paused on its own machine", "coordinator": "paused by mesh-coord nodes pause"}


class NamesTaken:
    """The names of the connected workers: each is one worker's, because reports go by names."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._node_of: dict[str, str] = {}  # by name the node that was given it last
        self._name_of: dict[str, str] = {}

    def give(self, node: str, preferred: str) -> str:
        """A worker's own name, with a number if another worker here has the same one."""
        self.forget(node)
        stem = re.sub(r"-\d+$", "", preferred)
        names = itertools.chain([preferred], (f"{stem}-{number}" for number in itertools.count(2)))
        name = next(name for name in names if self._node_of.get(name) not in self._members)
        self._node_of[name], self._name_of[node] = node, name
        return name

    def forget(self, node: str) -> None:
        """Forget a worker that is gone for good."""
        name = self._name_of.pop(node, "")
        if self._node_of.get(name) == node:
            del self._node_of[name]


def name_of(known: Mapping[str, NodeReport], node: str) -> str:
    """The name of a worker; the start of its id, if it has been gone for so long that it is not known any more."""
    return known[node].name if node in known else node[:8]


def culprit(error: MeshError, node: str, members: Mapping[str, Member]) -> str:
    """The worker that an error names.  It may be another one than `node`, which sent the error and waited for that
    one."""
    named = (
        node_id for node_id, member in members.items() if error.node in (node_id, node_id[:8], member.profile.name)
    )
    return next(named, node)


def node_report(peer: Identity, name: str, joined: Joined) -> NodeReport:
    """The report on a worker that has just joined."""
    return NodeReport(
        name,
        peer.node_id,
        peer.pid,
        peer.addresses,
        Health.HEALTHY.value,
        peer.version,
        joined.devices,
        system=joined.system,
        without_gpu=joined.without_gpu,
        sandbox=joined.sandbox,
    )


def state_of(health: Health | None, paused: bool, stuck: bool, quarantined: bool, left: bool) -> str:
    """The state of a worker in one word; what keeps it from work comes first."""
    if quarantined:
        return "quarantined"
    if health in (None, Health.DEAD) and left:
        return LEFT
    if health is Health.HEALTHY and (paused or stuck):
        return "paused" if paused else "stuck"
    return (health or Health.DEAD).value


def member_called(members: Mapping[str, Member], name: str) -> Member:
    """The worker with this name, id or start of an id; InputError if there is none, or more than one."""
    matching = [member for node, member in members.items() if name in (member.profile.name, node)]
    matching = matching or [member for node, member in members.items() if name and node.startswith(name)]
    if len(matching) != 1:
        there = ", ".join(sorted(member.profile.name for member in members.values())) or "none"
        which = f"{len(matching)} workers have ids that begin with" if matching else "there is no worker called"
        raise InputError(f"{which} {name!r} here now", next_step=f"The workers are: {there}")
    return matching[0]


def no_worker_reason(members: Collection[Member], usable: Collection[str]) -> str:
    """Why no worker can be given work, as text; "" if one can.  `usable` are the ids of those that can."""
    if usable:
        return ""
    if not members:
        return "none is connected"
    return "all are paused" if all_paused(members) else "those that are not paused are in quarantine"


def all_paused(members: Iterable[Member]) -> bool:
    """Whether there are workers, and all of them are paused."""
    states = [bool(member.paused) for member in members]
    return bool(states) and all(states)
