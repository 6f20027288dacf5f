"""Members find each other on a network by mDNS: over both IP families, after moving, and never where it is blocked."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.lan.mdns_node import MdnsNode
from support.lan.namespaces import Host, Lan, needs_namespaces

pytestmark = needs_namespaces
KEY = secrets.token_hex(32)
OTHER = secrets.token_hex(32)


@contextmanager
def announced(lan: Lan) -> Iterator[tuple[MdnsNode, MdnsNode]]:
    """A member on the first host and one on the second that looks for it."""
    says, looks = MdnsNode(lan.hosts[0]), MdnsNode(lan.hosts[1])
    says.ask(f"announce worker 7100 {KEY}")
    looks.ask(f"browse {KEY}")
    yield says, looks


def until(holds: Callable[[], bool], within_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.1)


def has_ipv6(host: Host) -> bool:
    return "fe80:" in host.run("ip", "-6", "addr", "show", "dev", "eth0").stdout


def test_a_member_is_found_at_all_its_addresses_and_no_other_mesh_sees_it() -> None:
    with Lan(3) as lan, announced(lan) as (says, looks):
        stranger = MdnsNode(lan.hosts[2])
        stranger.ask(f"browse {OTHER}")
        until(lambda: ["10.77.0.1:7100"] in [found[:1] for found in looks.found()])
        if has_ipv6(lan.hosts[0]):
            until(lambda: len(looks.found()[0]) == 2)
            assert re.fullmatch(r"\[fe80::[0-9a-f:]+%\d+\]:7100", looks.found()[0][1])
        until(lambda: any(heard for _, _, _, heard, _ in stranger.ask("tallies")))
        assert stranger.found() == [] and all(not known for *_, known in stranger.ask("tallies"))
        says.ask("bye")
        until(lambda: looks.found() == [])


def test_a_node_that_moved_is_found_again_and_one_that_was_unplugged() -> None:
    with Lan(2) as lan, announced(lan) as (_, looks):
        until(lambda: len(looks.found()) == 1)
        lan.hosts[0].change_address("10.77.0.99")
        until(lambda: any("10.77.0.99:7100" in found for found in looks.found()))
        lan.hosts[1].unplug()
        lan.hosts[0].change_address("10.77.0.98")
        time.sleep(3)  # both ends look at their interfaces meanwhile
        lan.hosts[1].plug()
        until(lambda: any("10.77.0.98:7100" in found for found in looks.found()))


def test_blocked_multicast_is_told_by_what_was_heard() -> None:
    with Lan(2) as lan:
        lan.block_multicast()
        with announced(lan) as (_, looks):
            until(lambda: sum(sent for _, _, sent, _, _ in looks.ask("tallies")) >= 4)
            tallies = looks.ask("tallies")
            assert looks.found() == []
            assert {interface for interface, *_ in tallies} == {"eth0", "loopback"}
            assert all(heard == 0 for _, _, _, heard, _ in tallies)
