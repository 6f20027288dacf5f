"""A worker that nobody finds says what it tried, what it heard, and what to type at which machine."""

from __future__ import annotations

import errno

from wire.discovery.multicast_sockets import MulticastCounts
from worker.daemon.no_peer_warning import text_without_coordinator

WIFI = MulticastCounts("wlan0", "224.0.0.251", sent=12, heard=40)
DEAF = MulticastCounts("eth0", "224.0.0.251", sent=3)
BROKEN = MulticastCounts("eth1", "ff02::fb", sent=0, last_errno=errno.ENETUNREACH)
HOME = ("192.168.1.20:7100", "10.0.0.5:7100")


def test_it_names_every_interface_with_what_was_sent_heard_and_failed_there() -> None:
    said = text_without_coordinator(30.2, HOME, (WIFI, BROKEN), {})
    assert said.startswith("no coordinator in 30 s\n")
    assert "wlan0: sent 12, heard 40 on 224.0.0.251 port 5353" in said
    assert "eth1: sent 0, heard 0 on ff02::fb port 5353, last error ENETUNREACH" in said
    assert "multicast" not in said


def test_it_gives_the_lines_to_type_at_either_machine() -> None:
    said = text_without_coordinator(30, HOME, (WIFI,), {})
    assert "where the coordinator runs: mesh-coord serve --peer 192.168.1.20:7100" in said
    assert "mesh-worker --peer HOST:PORT" in said and "mesh-worker join" not in said


def test_a_network_that_swallows_multicast_is_suspected() -> None:
    assert "keeps multicast back" in text_without_coordinator(30, HOME, (DEAF, BROKEN), {})


def test_without_mdns_it_says_so() -> None:
    assert "mDNS is off" in text_without_coordinator(30, HOME, (), {})


def test_a_peer_that_was_named_and_not_reached_is_told_with_its_reason() -> None:
    said = text_without_coordinator(
        30, HOME, (WIFI,), {"10.0.0.9": "no node answers at 10.0.0.9:7100 (cause: No route to host)"}
    )
    assert "--peer 10.0.0.9: no node answers at 10.0.0.9:7100 (cause: No route to host)" in said


def test_one_that_has_joined_no_mesh_is_told_that_it_keeps_to_its_machine() -> None:
    said = text_without_coordinator(30, ("127.0.0.1:7100",), (DEAF,), {})
    assert "multicast" not in said
    assert "mesh-worker join" in said and "on this machine: mesh-coord serve --peer 127.0.0.1:7100" in said


def test_a_machine_without_a_network_is_told_that() -> None:
    said = text_without_coordinator(30, (), (), {})
    assert "no network that others can reach" in said and "serve --peer" not in said
