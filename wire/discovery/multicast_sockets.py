"""Multicast sockets: where a node speaks mDNS, which are its interfaces times the two IP families, and what came of it
there.

A node without a token has one place, the loopback interface.  Which interfaces others may reach,
`wire/link/interfaces.py` says; this file knows neither multicast nor what is said.
"""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..addresses import EVERY, shown
from ..link.interfaces import Interface, judge
from .announcements import near

PORT = 5353
GROUPS = {4: "224.0.0.251", 6: "ff02::fb"}


@dataclass(frozen=True, slots=True)
class MulticastInterface:
    """An interface in one IP family: the node's `own` addresses there, and those it may be dialled at by either."""

    interface: str
    version: int
    own: tuple[str, ...]
    advertised: tuple[str, ...]

    @property
    def group(self) -> str:
        return GROUPS[self.version]


LOOPBACK = MulticastInterface("loopback", 4, ("127.0.0.1",), ("127.0.0.1",))


@dataclass(slots=True)
class MulticastCounts:
    """What came of mDNS at one place since the start; `heard` are packets of other machines, of whatever service."""

    interface: str
    group: str
    sent: int = 0
    heard: int = 0
    adverts: int = 0  # of any mesh, this machine's among them
    known: int = 0  # of them, those of this mesh
    last_errno: int = 0
    port: int = PORT

    def failed(self, error: OSError) -> None:
        self.last_errno = error.errno or errno.EIO

    def __str__(self) -> str:
        failure = f", last error {errno.errorcode.get(self.last_errno, '?')} ({os.strerror(self.last_errno)})"
        return (
            f"{self.interface}: sent {self.sent}, heard {self.heard} on {self.group} port {self.port}"
            f"{failure if self.last_errno else ''}"
        )


def multicast_interfaces(interfaces: Sequence[Interface], names: Sequence[str] = ()) -> list[MulticastInterface]:
    """The interfaces on which a member speaks: every one that others can reach, and loopback for this machine's own
    nodes.

    `names` are the interfaces to use and no others.
    """
    reached = {interface.name for interface in judge(interfaces, names) if interface.addresses}
    spoken = [
        MulticastInterface(interface.name, version, own, public)
        for interface in interfaces
        if interface.name in reached
        for public in [tuple(filter(near, (address.partition("%")[0] for address in interface.addresses)))]
        for version in GROUPS
        if (own := tuple(address for address in interface.addresses if _version(address) == version))
    ]
    return [*spoken, LOOPBACK]


def listened(addresses: Sequence[str], host: str) -> list[str]:
    """The addresses of a place that a node which listens on `host` answers at."""
    if host in EVERY:
        return [address for address in addresses if host == "::" or _version(address) == 4]
    return [address for address in addresses if address == host.partition("%")[0]]


def dialled(hosts: Iterable[str], port: int, scope: int, place: MulticastInterface) -> list[str]:
    """The addresses of an advert that may be dialled from where it was heard, as "host:port".

    `scope` is the number of the interface it came by, without which a link-local IPv6 address means nothing.
    """
    addresses = []
    for host in filter(near, hosts):
        address = ipaddress.ip_address(host)
        if address.is_loopback != (place == LOOPBACK):
            continue
        if address.version == 4 or not address.is_link_local:
            addresses.append(f"{shown(host)}:{port}")
        elif scope:
            addresses.append(f"[{host}%{scope}]:{port}")
    return addresses


def _version(address: str) -> int:
    return ipaddress.ip_address(address.partition("%")[0]).version
