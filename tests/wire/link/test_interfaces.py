"""Addresses that a node tells others to dial: all that may work, none that cannot, each refusal with its reason."""

from __future__ import annotations

import pytest

from wire.errors import ConfigError
from wire.link.address_policy import ANYWHERE, LOOPBACK_ONLY
from wire.link.interfaces import Interface, advertised, check_named, interfaces_here, judge, usable

HOME = (
    Interface("lo", ("127.0.0.1", "::1")),
    Interface("wlp3s0", ("192.168.1.20", "fd00::20", "fe80::1%wlp3s0")),
    Interface("enp2s0", ("10.0.0.5",)),
    Interface("enp4s0", ("10.9.0.1",), up=False),
    Interface("docker0", ("172.17.0.1",)),
    Interface("br-0a1b2c", ("172.18.0.1",)),
    Interface("veth12ab", ("fe80::5%veth12ab",)),
    Interface("virbr0", ("192.168.122.1",)),
    Interface("tailscale0", ("100.64.0.9",)),
    Interface("awdl0", ("fe80::6%awdl0",)),
    Interface("eth9", ()),
    Interface("usb0", ("169.254.3.4",)),
)


def reasons(wanted: tuple[str, ...] = ()) -> dict[str, str]:
    return {interface.name: interface.reason for interface in judge(HOME, wanted)}


def test_every_interface_that_reaches_others_is_used_the_likelier_addresses_first() -> None:
    addresses = usable(judge(HOME))
    assert addresses == ("192.168.1.20", "10.0.0.5", "100.64.0.9", "fd00::20", "169.254.3.4")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lo", "loopback"),
        ("enp4s0", "down"),
        ("docker0", "docker"),
        ("br-0a1b2c", "docker"),
        ("veth12ab", "containers"),
        ("virbr0", "libvirt"),
        ("awdl0", "AirDrop"),
        ("eth9", "no address"),
        ("enp2s0", ""),
    ],
)
def test_what_is_left_out_says_why(name: str, reason: str) -> None:
    assert reason in reasons()[name] and bool(reason) == bool(reasons()[name])


def test_named_interfaces_are_the_only_ones_and_a_name_counts_more_than_a_guess() -> None:
    assert usable(judge(HOME, ["docker0", "enp2s0"])) == ("10.0.0.5", "172.17.0.1")
    assert reasons(("docker0",))["wlp3s0"] == "not named by --interface"
    assert usable(judge(HOME, ["lo"])) == ()
    assert reasons(("enp4s0",))["enp4s0"] == "down"


def test_an_interface_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match="no network interface 'eth7'") as raised:
        check_named(HOME, ["eth7"])
    assert "enp2s0" in raised.value.next_step


def test_a_node_on_every_address_advertises_them_all() -> None:
    addresses = usable(judge(HOME))
    assert advertised(ANYWHERE, "0.0.0.0", 7100, addresses) == (
        "192.168.1.20:7100",
        "10.0.0.5:7100",
        "100.64.0.9:7100",
        "169.254.3.4:7100",
    )
    assert "[fd00::20]:7100" in advertised(ANYWHERE, "::", 7100, addresses)
    assert advertised(ANYWHERE, "10.0.0.5", 7101, addresses) == ("10.0.0.5:7101",)


def test_what_the_owner_says_comes_first() -> None:
    addresses = advertised(ANYWHERE, "10.0.0.5", 7101, (), ["home.example.org", "203.0.113.7:9000"])
    assert addresses == ("home.example.org:7101", "203.0.113.7:9000", "10.0.0.5:7101")


def test_without_a_certificate_only_loopback_is_advertised() -> None:
    addresses = usable(judge(HOME))
    assert advertised(LOOPBACK_ONLY, "0.0.0.0", 7100, addresses) == ()
    assert advertised(LOOPBACK_ONLY, "127.0.0.1", 7100, addresses) == ("127.0.0.1:7100",)
    with pytest.raises(ConfigError, match=r"will not advertise 192\.168\.1\.20"):
        advertised(LOOPBACK_ONLY, "127.0.0.1", 7100, addresses, ["192.168.1.20"])


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_loopback_is_always_allowed(address: str) -> None:
    assert LOOPBACK_ONLY.check(address, "dial") == address


@pytest.mark.parametrize("address", ["192.168.1.20", "0.0.0.0", "::", "kitchen.local", "fe80::1%lo"])
def test_anything_else_needs_a_certificate(address: str) -> None:
    with pytest.raises(ConfigError, match=f"will not dial {address}"):
        LOOPBACK_ONLY.check(address, "dial")
    assert ANYWHERE.check(address, "dial") == address


def test_this_machine_has_a_loopback_interface_and_nothing_of_it_is_advertised() -> None:
    here = interfaces_here()
    assert any("127.0.0.1" in interface.addresses for interface in here)
    assert not any(address.startswith("127.") for address in usable(judge(here)))
