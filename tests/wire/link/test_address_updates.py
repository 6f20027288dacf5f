"""A node tells others where to dial it, and notices when that changes."""

from __future__ import annotations

import pytest
from support.machines.links import Recorder, node

from mesh.simulation.network import SimulatedNetwork
from wire.errors import ConfigError
from wire.link.address_policy import ANYWHERE, LOOPBACK_ONLY, AddressPolicy
from wire.link.address_updates import AddressUpdates
from wire.link.endpoint import Endpoint
from wire.link.interfaces import Interface

LOOPBACK = Interface("lo", ("127.0.0.1",))
WIFI, CABLE = Interface("wifi", ("192.168.1.20",)), Interface("cable", ("10.0.0.5",))


class Machine:
    """Its interfaces, which a test changes."""

    def __init__(self, *interfaces: Interface, allowed: AddressPolicy = ANYWHERE) -> None:
        self.interfaces = interfaces
        self.endpoint = Endpoint(node("x"), Recorder(), SimulatedNetwork().carrier("x"), allowed=allowed)

    def at(self, host: str, *names: str, extra: tuple[str, ...] = ()) -> AddressUpdates:
        return AddressUpdates(self.endpoint, host, 7100, names, extra, lambda: self.interfaces)

    @property
    def told(self) -> tuple[str, ...]:
        return self.endpoint.identity.addresses


async def test_a_cable_that_is_plugged_in_is_told_and_one_that_is_pulled_no_longer() -> None:
    machine = Machine(LOOPBACK, WIFI)
    here = machine.at("0.0.0.0")
    assert machine.told == ("192.168.1.20:7100",) and not here.moved()
    machine.interfaces = (LOOPBACK, WIFI, CABLE)
    assert here.moved() and machine.told == ("192.168.1.20:7100", "10.0.0.5:7100")
    machine.interfaces = (LOOPBACK,)
    assert here.moved() and machine.told == ()
    assert not here.moved()


async def test_a_named_interface_may_go_and_come_back() -> None:
    machine = Machine(LOOPBACK, WIFI, CABLE)
    here = machine.at("0.0.0.0", "cable")
    assert machine.told == ("10.0.0.5:7100",)
    machine.interfaces = (LOOPBACK, WIFI)
    assert here.moved() and machine.told == ()
    machine.interfaces = (LOOPBACK, WIFI, CABLE)
    assert here.moved() and machine.told == ("10.0.0.5:7100",)


async def test_a_name_that_was_never_there_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="no network interface 'eth7'"):
        Machine(LOOPBACK, WIFI).at("0.0.0.0", "eth7")


async def test_one_address_is_told_whatever_the_interfaces_do() -> None:
    machine = Machine(LOOPBACK, WIFI, allowed=LOOPBACK_ONLY)
    here = machine.at("127.0.0.1", extra=("localhost:9000",))
    assert machine.told == ("localhost:9000", "127.0.0.1:7100")
    machine.interfaces = (LOOPBACK, WIFI, CABLE)
    assert not here.moved()
