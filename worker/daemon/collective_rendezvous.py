"""The rendezvous of engine hosts: what daemons tell theirs so that they connect (`worker/collectives/connector.py`).

The host of the node that dialled the link connects, to the address at which the link was dialled.  The other host
listens where its daemon does, on a port of its own.  Key and port go over the link.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from wire.addresses import parse_address
from wire.joining.credentials import Credentials
from wire.link.link import Link
from wire.protocol.messages import Meet
from wire.security.certificates import server_name
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from ..collectives.connector import KEY_BYTES
from ..config import WorkerConfig
from ..engine.host_messages import Connect, Listen, NodeTLS, ToHost


@dataclass(frozen=True, slots=True)
class HostConnections:
    """The connections between engine hosts.  `send` sends a message to the host of a device, and `host` is the address
    on which the daemon listens.  `credentials` are the node's, in a mesh with a token."""

    send: Callable[[int, ToHost], None]
    host: str
    credentials: Credentials | None = None
    timeouts: Timeouts = DEFAULT_TIMEOUTS

    def listen(self, device: int, buffer: str, slot_bytes: int, node: str) -> None:
        """Have a host listen for the host of `node`.  It answers Listening."""
        key = secrets.token_bytes(KEY_BYTES)
        times = self.timeouts.rank_call_s, self.timeouts.rank_proof_s
        self.send(device, Listen(buffer, key, self.host, slot_bytes, self._tls(node), *times))

    def connect(self, device: int, buffer: str, slot_bytes: int, link: Link, meet: Meet) -> None:
        """Have a host connect to the one that listens at the other end of a link."""
        host = parse_address(link.address)[0]
        tls, times = self._tls(link.peer.node_id), (self.timeouts.rank_call_s, self.timeouts.rank_proof_s)
        self.send(device, Connect(buffer, meet.key, host, meet.port, slot_bytes, tls, *times))

    def _tls(self, node: str) -> NodeTLS | None:
        if self.credentials is None:
            return None
        files, name = self.credentials.files, server_name(node, self.credentials.mesh)
        return NodeTLS(str(files.key), str(files.certificate), str(files.trust), name)


def host_connections_of(
    config: WorkerConfig, credentials: Credentials | None, send: Callable[[int, ToHost], None]
) -> HostConnections | None:
    """What has the worker's hosts connect; None if they may not connect to hosts of other machines."""
    return HostConnections(send, config.host, credentials, config.timeouts) if config.connect_hosts else None
