"""Address policy: which addresses a node may listen on, dial and announce.

A node that cannot prove who it is keeps to its own machine: LOOPBACK_ONLY.  One with a certificate of its mesh may go
ANYWHERE.  It is asked before every bind, every dial and every announcement; there is no way around it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """`anywhere` is for nodes with a certificate."""

    anywhere: bool = False

    def check(self, address: str, what: str) -> str:
        """The address, if this node may `what` it ("dial", "listen on"); ConfigError for any other."""
        if not self.anywhere and not is_loopback(address):
            raise ConfigError(
                f"will not {what} {address}: it is not a loopback address, and this node has joined no mesh, so "
                "nothing would keep strangers from running work here",
                next_step="Join a mesh with a token: mesh-coord join for a program, or mesh-worker join for a worker",
            )
        return address

    def among(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """The addresses that may be used."""
        return tuple(address for address in addresses if self.anywhere or is_loopback(address))


LOOPBACK_ONLY = AddressPolicy()
ANYWHERE = AddressPolicy(anywhere=True)


def is_loopback(address: str) -> bool:
    """Whether an address (no name) never leaves this machine; an IPv6 address may carry its scope."""
    try:
        return ipaddress.ip_address(address.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def is_address(text: str) -> bool:
    """Whether a host is an IP address, and no name; an IPv6 address may carry its scope."""
    try:
        ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
