"""mDNS is spoken on what others can reach, in both families, and on loopback for this machine's own."""

from __future__ import annotations

import errno

from wire.discovery.multicast_sockets import LOOPBACK, MulticastCounts, dialled, listened, multicast_interfaces
from wire.link.interfaces import Interface

LO = Interface("lo", ("127.0.0.1", "::1"))
HOME = Interface("eth0", ("192.168.1.5", "fd00::5", "fe80::5%eth0"))
DOCKER = Interface("docker0", ("172.17.0.1",))


def test_every_interface_that_others_reach_has_a_place_per_family() -> None:
    four, six, own = multicast_interfaces([LO, DOCKER, HOME])
    assert own == LOOPBACK
    assert (four.interface, four.group, four.own) == ("eth0", "224.0.0.251", ("192.168.1.5",))
    assert (six.interface, six.group, six.own) == ("eth0", "ff02::fb", ("fd00::5", "fe80::5%eth0"))
    assert four.advertised == six.advertised == ("192.168.1.5", "fd00::5", "fe80::5")


def test_an_interface_that_is_down_or_not_named_has_none() -> None:
    wifi = Interface("wlan0", ("192.168.1.6",))
    assert multicast_interfaces([Interface("eth0", ("192.168.1.5",), up=False), wifi]) == multicast_interfaces(
        [HOME, wifi], ["wlan0"]
    )
    assert [place.interface for place in multicast_interfaces([HOME, wifi], ["wlan0"])] == ["wlan0", "loopback"]


def test_without_any_it_is_loopback() -> None:
    assert multicast_interfaces([]) == multicast_interfaces([LO, DOCKER]) == [LOOPBACK]


def test_addresses_of_the_world_are_not_told() -> None:
    four, six, _ = multicast_interfaces([Interface("eth0", ("8.8.8.8", "2001:db8::1", "10.0.0.1"))])
    assert four.advertised == six.advertised == ("10.0.0.1",)


def test_a_node_tells_what_it_listens_on() -> None:
    addresses = ("192.168.1.5", "fd00::5")
    assert listened(addresses, "0.0.0.0") == ["192.168.1.5"]
    assert listened(addresses, "::") == ["192.168.1.5", "fd00::5"]
    assert listened(addresses, "fd00::5") == ["fd00::5"]
    assert listened(addresses, "10.0.0.1") == listened(addresses, "127.0.0.1") == []
    assert listened(LOOPBACK.advertised, "127.0.0.1") == listened(LOOPBACK.advertised, "0.0.0.0") == ["127.0.0.1"]


def test_an_advert_leads_nowhere_but_to_the_network_it_was_heard_on() -> None:
    four, six, _ = multicast_interfaces([HOME])
    said = ("192.168.1.9", "8.8.8.8", "127.0.0.1", "::1", "2001:db8::9", "fd00::9", "fe80::9")
    assert dialled(said, 7100, 0, four) == ["192.168.1.9:7100", "[fd00::9]:7100"]
    assert dialled(said, 7100, 3, six) == ["192.168.1.9:7100", "[fd00::9]:7100", "[fe80::9%3]:7100"]
    assert dialled(said, 7100, 0, LOOPBACK) == ["127.0.0.1:7100", "[::1]:7100"]


def test_a_tally_is_a_line_for_people() -> None:
    tally = MulticastCounts("eth0", "224.0.0.251", sent=5)
    assert str(tally) == "eth0: sent 5, heard 0 on 224.0.0.251 port 5353"
    tally.failed(OSError(errno.EHOSTUNREACH, "No route to host"))
    assert str(tally).startswith("eth0: sent 5, heard 0 on 224.0.0.251 port 5353, last error EHOSTUNREACH (")
    tally.failed(OSError("no number"))
    assert "EIO" in str(tally)
