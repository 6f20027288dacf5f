"""A program that uses a simulated coordinator daemon as `Mesh.builder().node(address)` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mesh.backends.remote import Remote
from mesh.simulation.cluster import COORDINATOR, PORT, Cluster
from wire.link.identity import identity_here

CLIENT = "client"


class NoMembership:
    """The membership of simulated nodes, which have no certificates."""

    class credentials:
        outdated = False

    async def trusted(self) -> None:
        return

    async def refresh(self) -> None:
        return

    def met(self, addresses: Sequence[str]) -> None:
        return

    def close(self) -> None:
        return


async def client_of(cluster: Cluster, name: str = CLIENT, member: str = "d" * 32) -> Remote:
    """A client whose only link is that to the daemon: a process on a host of this name, of this member."""
    node_id = member if name == CLIENT else f"{member}/{name}"
    identity = replace(identity_here("client", "sim", name, None), node_id=node_id)
    remote: Any = Remote(identity, None, NoMembership(), lambda me, handler, *_: cluster._endpoint(name, me, handler))
    remote._address = COORDINATOR, PORT
    remote._lasting.keep("the watch over the link", remote._watch.run)
    await remote._open()
    return remote
