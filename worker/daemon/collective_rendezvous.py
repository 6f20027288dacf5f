"""What a daemon tells its engine hosts so that they connect to those of other machines
(`worker/collectives/connector.py`).

The host of the node that dialled the link calls, at the address where the link was dialled; the other one listens where
its daemon does, on a port of its own, until the caller has come.  Key and port go over the link.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from wire.addresses import parse_address
from wire.link.link import Link
from wire.protocol.messages import Meet
from wire.security.certificates import server_name
from wire.security.credentials import Credentials
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from ..collectives.connector import KEY_BYTES
from ..config import WorkerConfig
from ..engine.host_messages import Call, Expect, NodeTLS, ToHost


@dataclass(frozen=True, slots=True)
class Calls:
    """`tell` gives a message to the host of a device, `host` is where the daemon listens; `credentials` are the node's,
    in a mesh with a token."""

    tell: Callable[[int, ToHost], None]
    host: str
    credentials: Credentials | None = None
    timeouts: Timeouts = DEFAULT_TIMEOUTS

    def expect(self, device: int, mailbox: str, letter_bytes: int, node: str) -> None:
        """Have a host expect the one of `node`; it answers Expecting."""
        key = secrets.token_bytes(KEY_BYTES)
        times = self.timeouts.rank_call_s, self.timeouts.rank_proof_s
        self.tell(device, Expect(mailbox, key, self.host, letter_bytes, self._tls(node), *times))

    def call(self, device: int, mailbox: str, letter_bytes: int, link: Link, where: Meet) -> None:
        """Have a host call the one that is expecting it at the other end of a link."""
        host = parse_address(link.address)[0]
        tls, times = self._tls(link.peer.node_id), (self.timeouts.rank_call_s, self.timeouts.rank_proof_s)
        self.tell(device, Call(mailbox, where.key, host, where.port, letter_bytes, tls, *times))

    def _tls(self, node: str) -> NodeTLS | None:
        if self.credentials is None:
            return None
        files, name = self.credentials.files, server_name(node, self.credentials.mesh)
        return NodeTLS(str(files.key), str(files.certificate), str(files.trust), name)


def calls_of(
    config: WorkerConfig, credentials: Credentials | None, tell: Callable[[int, ToHost], None]
) -> Calls | None:
    """None where hosts may not connect to those of other machines."""
    return Calls(tell, config.host, credentials, config.timeouts) if config.connect_hosts else None
