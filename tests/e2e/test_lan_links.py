"""One link between two hosts on a network: a slow cable is used, a pulled one is waited for, silence is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.lan_node import LanNode
from support.namespaces import Lan, needs_namespaces, needs_rate_limit

from wire.limits import MIB

pytestmark = needs_namespaces


@contextmanager
def linked(lan: Lan) -> Iterator[tuple[LanNode, LanNode]]:
    """Nodes on the first two hosts with a link between them, dialled by the first."""
    near, far = LanNode(lan.hosts[0], "near"), LanNode(lan.hosts[1], "far")
    port = far.ask("listen")
    assert near.ask(f"dial {far.host.address} {port}") == "far"
    yield near, far


@needs_rate_limit
@pytest.mark.parametrize("dialler_sends", [True, False])
def test_a_slow_cable_is_used_whole_and_control_is_not_held_up(dialler_sends: bool) -> None:
    rate, mib = 100_000_000, 4
    with Lan(2) as lan, linked(lan) as nodes:
        lan.hosts[0].limit_rate(rate)
        sender = nodes[0 if dialler_sends else 1]
        used = 0.0
        for _ in range(3):  # a busy machine may be late once
            sender.tell(f"send {mib}")
            asked_s = [sender.ask("ask 5") for _ in range(5)]
            used = max(used, mib * MIB * 8 / sender.answer(f"send {mib}") / rate)
            assert all(isinstance(each, float) for each in asked_s)
        assert 0.9 < used < 1.02


def test_a_cable_that_was_pulled_costs_time_and_no_bytes() -> None:
    with Lan(2) as lan, linked(lan) as (near, far):
        far.host.unplug()
        near.tell("send 1")
        assert near.ask("ask 0.3") == "deadline_exceeded"
        far.host.plug()
        assert near.answer("send 1") > 0.3
        assert isinstance(near.ask("ask 20"), float)


@pytest.mark.parametrize("lost_from", [0, 1])
def test_silence_one_way_is_silence_for_whoever_asks(lost_from: int) -> None:
    with Lan(2) as lan, linked(lan) as nodes:
        loser, other = nodes[lost_from], nodes[1 - lost_from]
        loser.host.lose_what_goes_to(other.host)
        assert [each.ask("ask 0.3") for each in nodes] == ["deadline_exceeded"] * 2
        loser.host.reach(other.host)
        assert all(isinstance(each.ask("ask 20"), float) for each in nodes)


def test_who_is_behind_a_silence_cannot_be_dialled() -> None:
    with Lan(2) as lan:
        near, far = LanNode(lan.hosts[0], "near"), LanNode(lan.hosts[1], "far")
        port = far.ask("listen")
        near.host.lose_what_goes_to(far.host)
        assert near.ask(f"dial {far.host.address} {port}") == "connect_failed"
        near.host.reach(far.host)
        assert near.ask(f"dial {far.host.address} {port}") == "far"
