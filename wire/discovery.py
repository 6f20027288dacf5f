"""Finding nodes of one mesh on the network by mDNS, or in a list (docs/protocol.md, "Discovery").

A node announces `_graph-mesh._tcp.local.` under a name that is random per start, with its role and a hash of its
mesh's name; a browser reports candidates whose hash is that of its own mesh.  A candidate is an address to try and
nothing more: who answers there is settled by hello.  Nodes without a join token announce 127.0.0.1 on the loopback
interface only, and only loopback candidates are reported.

Where multicast does not work a log line says so and everything else goes on.  This file alone knows zeroconf.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from zeroconf import IPVersion, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from .address import parse_address
from .errors import ConfigError
from .protocol import Identity

log = logging.getLogger("graph_mesh.discovery")

SERVICE = "_graph-mesh._tcp.local."
LOOPBACK = ("127.0.0.1",)  # interfaces, by their addresses
FORMAT = b"1"
TTL_S = 60  # how long a node that died without a word stays a candidate
RESOLVE_MS = 3000
CANDIDATES_MAX = 1024  # as many as a mesh has nodes; a flood of announcements ends here


@dataclass(frozen=True, slots=True)
class Candidate:
    """An address where a node of this mesh may be."""

    host: str
    port: int
    role: str  # "" where it is not known


class Announcer:
    """Tells the network that this node listens on `port`, from `start` until `close`."""

    def __init__(self, identity: Identity, port: int, interfaces: Sequence[str] = LOOPBACK) -> None:
        self._interfaces = _loopback_only(interfaces)
        label = secrets.token_hex(8)
        self._info = ServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            port=port,
            parsed_addresses=["127.0.0.1"],
            server=f"{label}.local.",
            properties={b"v": FORMAT, b"m": mesh_tag(identity.mesh), b"r": identity.role.encode()},
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )
        self._zeroconf: AsyncZeroconf | None = None

    async def start(self) -> None:
        """Announce; without multicast, say so and do nothing."""
        self._zeroconf = _open(self._interfaces, "announce this node")
        if self._zeroconf is not None:
            # The name is random, so nobody else's; skipping the probes saves half a second.
            await (await self._zeroconf.async_register_service(self._info, cooperating_responders=True))

    async def close(self) -> None:
        """Take the announcement back."""
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is not None:
            await (await zeroconf.async_unregister_service(self._info))
            await zeroconf.async_close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


class Finder(Protocol):
    """Where candidates come from: a Browser, or its static twin StaticFinder."""

    async def start(self) -> None:
        """Begin to report candidates."""

    async def close(self) -> None:
        """Report no more."""


OnCandidate = Callable[[Candidate], None]


class Browser:
    """Reports nodes of `mesh` as they come (`on_found`) and go (`on_gone`), of one role or of any."""

    def __init__(
        self,
        mesh: str,
        on_found: OnCandidate,
        on_gone: OnCandidate | None = None,
        role: str = "",
        interfaces: Sequence[str] = LOOPBACK,
    ) -> None:
        self._tag = mesh_tag(mesh)
        self._role = role
        self._on_found = on_found
        self._on_gone = on_gone
        self._interfaces = _loopback_only(interfaces)
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._found: dict[str, Candidate] = {}
        self._resolving: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Begin to report; without multicast, say so and report nothing."""
        self._zeroconf = _open(self._interfaces, "look for nodes")
        if self._zeroconf is not None:
            self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._changed])

    async def close(self) -> None:
        """Report no more."""
        for task in self._resolving.values():
            task.cancel()
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_close()
        self._browser = self._zeroconf = None

    def _changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        task = self._resolving.pop(name, None)
        if task is not None:
            task.cancel()
        if state_change is ServiceStateChange.Removed:
            self._forget(name)
        elif len(self._found) + len(self._resolving) < CANDIDATES_MAX:
            self._resolving[name] = asyncio.get_running_loop().create_task(self._resolve(zeroconf, name))

    async def _resolve(self, zeroconf: Zeroconf, name: str) -> None:
        info = AsyncServiceInfo(SERVICE, name)
        known = info.load_from_cache(zeroconf) or await info.async_request(zeroconf, RESOLVE_MS)
        candidate = _candidate(info, self._tag) if known else None
        self._resolving.pop(name, None)
        if candidate == self._found.get(name):
            return
        self._forget(name)
        if candidate is not None and self._role in ("", candidate.role):
            self._found[name] = candidate
            self._on_found(candidate)

    def _forget(self, name: str) -> None:
        candidate = self._found.pop(name, None)
        if candidate is not None and self._on_gone is not None:
            self._on_gone(candidate)


class StaticFinder:
    """A Browser's twin for a list of "host:port": each is reported once at the start and never goes."""

    def __init__(self, addresses: Sequence[str], on_found: OnCandidate) -> None:
        self._candidates = [Candidate(*parse_address(address), role="") for address in addresses]
        self._on_found = on_found

    async def start(self) -> None:
        """Report all."""
        for candidate in self._candidates:
            self._on_found(candidate)

    async def close(self) -> None:
        """Nothing is held."""


async def discover(mesh: str, role: str = "", interfaces: Sequence[str] = LOOPBACK) -> AsyncIterator[Candidate]:
    """Candidates as they are found, without end: iterate under a timeout."""
    found: asyncio.Queue[Candidate] = asyncio.Queue()
    browser = Browser(mesh, found.put_nowait, role=role, interfaces=interfaces)
    await browser.start()
    try:
        while True:
            yield await found.get()
    finally:
        await browser.close()


def mesh_tag(mesh: str) -> bytes:
    """What an announcement says of its mesh: enough to tell two apart, not the name."""
    return hashlib.blake2b(mesh.encode(), digest_size=8, person=b"graph-mesh").hexdigest().encode()


# -- helpers -----------------------------------------------------------------------------------------------


def _candidate(info: ServiceInfo, tag: bytes) -> Candidate | None:
    """What an announcement says, or None if it is not of this mesh or makes no sense."""
    said: Mapping[bytes, bytes | None] = info.properties
    role = said.get(b"r") or b""
    hosts = [host for host in info.parsed_addresses(IPVersion.V4Only) if ipaddress.ip_address(host).is_loopback]
    if said.get(b"v") != FORMAT or said.get(b"m") != tag or not hosts or not info.port or len(role) > 32:
        return None
    return Candidate(hosts[0], info.port, role.decode("ascii", "replace"))


def _open(interfaces: Sequence[str], what: str) -> AsyncZeroconf | None:
    try:
        return AsyncZeroconf(interfaces=list(interfaces), ip_version=IPVersion.V4Only)
    except OSError as error:
        log.warning("cannot %s by mDNS on %s: %s; name addresses instead (--peer)", what, ", ".join(interfaces), error)
        return None


def _loopback_only(interfaces: Sequence[str]) -> tuple[str, ...]:
    for interface in interfaces:
        if not ipaddress.ip_address(interface).is_loopback:
            raise ConfigError(
                f"will not announce or browse on {interface}: without a join token only loopback is used",
                next_step="Leave the interfaces out; other machines can join with a token from the next version on",
            )
    return tuple(interfaces)
