"""This machine's network interfaces: which of their addresses others may dial, and why not the rest.

`interfaces_here` looks; everything else is a pure function of what it saw.  Others get every address that may work, and
they try them all: nobody can know from here which one reaches there.  To leave out another kind of interface, add a row
to VIRTUAL.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ..addresses import EVERY, parse_address, shown
from ..errors import ConfigError
from .address_policy import AddressPolicy

ADDRESSES_MAX = 16  # of one node: more interfaces than any machine at home has

# Networks inside one machine, by the names that the software gives them: nobody outside can dial there.
VIRTUAL = {
    "docker*": "docker", "br-*": "docker", "veth*": "containers", "cni*": "containers", "podman*": "podman",
    "lxc*": "lxc", "lxd*": "lxd", "virbr*": "libvirt", "vnet*": "libvirt", "cali*": "calico", "flannel*": "flannel",
    "cilium*": "cilium", "kube-*": "kubernetes", "vmnet*": "VMware", "vboxnet*": "VirtualBox", "vEthernet*": "Hyper-V",
    "awdl*": "AirDrop", "llw*": "AirDrop",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interface:
    """`up` says that it works now: switched on, with its cable or its network."""

    name: str
    addresses: tuple[str, ...]
    up: bool = True


@dataclass(frozen=True, slots=True)
class ChosenAddresses:
    """What of an interface others may dial; `reason` says why not, "" where all is well."""

    name: str
    addresses: tuple[str, ...]
    reason: str = ""


def interfaces_here() -> tuple[Interface, ...]:
    """What this machine has now, in the system's order."""
    import psutil  # a millisecond or two that a program with its own workers need not spend

    families = (socket.AF_INET, socket.AF_INET6)
    stats = psutil.net_if_stats()
    return tuple(
        Interface(
            name,
            tuple(address.address for address in addresses if address.family in families),
            name in stats and stats[name].isup,
        )
        for name, addresses in psutil.net_if_addrs().items()
    )


def judge(interfaces: Sequence[Interface], names: Sequence[str] = ()) -> list[ChosenAddresses]:
    """Every interface with its addresses to dial, or why there are none.

    `names` names the interfaces to use and no others; a name counts more than what VIRTUAL says of it.
    """
    return [_judged(interface, names) for interface in interfaces]


def check_named(interfaces: Sequence[Interface], names: Sequence[str]) -> None:
    """Check that an interface has this name; ConfigError if none has."""
    there = [interface.name for interface in interfaces]
    for name in names:
        if name not in there:
            raise ConfigError(
                f"there is no network interface {name!r}", next_step=f"This machine has {', '.join(there)}"
            )


def usable(judged: Sequence[ChosenAddresses]) -> tuple[str, ...]:
    """The addresses of all interfaces, the likelier ones first."""
    addresses = dict.fromkeys(address for interface in judged for address in interface.addresses)
    return tuple(sorted(addresses, key=_rank))


def advertised(
    allowed: AddressPolicy, host: str, port: int, addresses: Sequence[str], extra: Sequence[str] = ()
) -> tuple[str, ...]:
    """The addresses at which others can dial a node that listens on `host`, as "host:port", best first.

    `addresses` are the machine's usable ones, for a node that listens on all of them ("0.0.0.0" or "::").  `extra` are
    addresses that only its owner knows (--advertise HOST[:PORT]: a forwarded port, say); they come first, and
    ConfigError says if one is not allowed.
    """
    named = []
    for text in extra:
        name, number = parse_address(text, port)
        named.append(f"{shown(allowed.check(name, 'advertise'))}:{number}")
    hosts: Sequence[str] = [host]
    if host in EVERY:
        hosts = [address for address in addresses if host == "::" or ":" not in address]
    listed = dict.fromkeys([*named, *(f"{shown(address)}:{port}" for address in allowed.among(hosts))])
    return tuple(listed)[:ADDRESSES_MAX]


def _judged(interface: Interface, names: Sequence[str]) -> ChosenAddresses:
    addresses = tuple(address for address in interface.addresses if _reaches_others(address))
    virtual = next((what for name, what in VIRTUAL.items() if fnmatch.fnmatchcase(interface.name, name)), "")
    reasons = (
        (bool(names) and interface.name not in names, "not named by --interface"),
        (bool(virtual) and interface.name not in names, f"a network inside this machine ({virtual})"),
        (not interface.up, "down"),
        (bool(interface.addresses) and not addresses, "loopback or link-local addresses only"),
        (not interface.addresses, "no address"),
    )
    reason = next((text for holds, text in reasons if holds), "")
    return ChosenAddresses(interface.name, () if reason else addresses, reason)


def _reaches_others(address: str) -> bool:
    """A link-local IPv6 address means nothing without an interface of the node that dials it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return not (ip.is_loopback or ip.is_unspecified or (ip.version == 6 and ip.is_link_local))


def _rank(address: str) -> tuple[bool, bool]:
    """IPv4 first, since every network at home has it; self-given addresses (169.254) last."""
    ip = ipaddress.ip_address(address)
    return ip.is_link_local, ip.version == 6
