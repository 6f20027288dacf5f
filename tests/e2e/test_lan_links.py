"""One link between two hosts, over TLS: a slow cable is used, a pulled one is waited for, silence is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.lan.lan_node import LanNode
from support.lan.namespaces import Lan, needs_namespaces, needs_rate_limit
from support.tls import authority, credentials

from wire.limits import MIB

pytestmark = needs_namespaces


def two(lan: Lan, folder: Path, **timeouts: float) -> tuple[LanNode, LanNode, int]:
    """Members of one mesh on the first two hosts, and the port of the second."""
    by = authority()
    for name in ("near", "far"):
        credentials(folder / name, by)
    named = zip(lan.hosts, ("near", "far"), strict=True)
    near, far = (LanNode(host, name, folder / name, **timeouts) for host, name in named)
    return near, far, far.ask("listen")


@contextmanager
def linked(lan: Lan, folder: Path, **timeouts: float) -> Iterator[tuple[LanNode, LanNode]]:
    """Those with a link between them, dialled by the first."""
    near, far, port = two(lan, folder, **timeouts)
    assert near.ask(f"dial {far.host.address} {port}") == "far"
    yield near, far


@needs_rate_limit
@pytest.mark.long  # it measures
@pytest.mark.parametrize("dialler_sends", [True, False])
def test_a_slow_cable_is_used_whole_and_control_is_not_held_up(tmp_path: Path, dialler_sends: bool) -> None:
    rate, mib = 100_000_000, 4
    with Lan(2) as lan, linked(lan, tmp_path) as nodes:
        lan.hosts[0].limit_rate(rate)
        sender = nodes[0 if dialler_sends else 1]
        used, tries = 0.0, 3  # a busy machine may be late
        while used < 0.9 and tries:
            tries -= 1
            sender.tell(f"send {mib}")
            asked_s = [sender.ask("ask 5") for _ in range(5)]
            used = mib * MIB * 8 / sender.answer(f"send {mib}") / rate
            assert all(isinstance(each, float) for each in asked_s)
        assert 0.9 < used < 1.02


def test_a_cable_that_was_pulled_costs_time_and_no_bytes(tmp_path: Path) -> None:
    with Lan(2) as lan, linked(lan, tmp_path) as (near, far):
        far.host.unplug()
        near.tell("send 1")
        assert near.ask("ask 0.3") == "deadline_exceeded"
        far.host.plug()
        assert near.answer("send 1") > 0.3
        assert isinstance(near.ask("ask 100"), float)


@pytest.mark.parametrize("lost_from", [0, pytest.param(1, marks=pytest.mark.long)])
def test_silence_one_way_is_silence_for_whoever_asks(tmp_path: Path, lost_from: int) -> None:
    with Lan(2) as lan, linked(lan, tmp_path) as nodes:
        loser, other = nodes[lost_from], nodes[1 - lost_from]
        loser.host.lose_what_goes_to(other.host)
        assert [each.ask("ask 0.3") for each in nodes] == ["deadline_exceeded"] * 2
        loser.host.reach(other.host)
        assert all(isinstance(each.ask("ask 100"), float) for each in nodes)


def test_a_link_ends_whose_connection_for_bulk_is_lost_alone(tmp_path: Path) -> None:
    """As where a router on the way forgets it, because it was idle; the other connection goes on."""
    with Lan(2) as lan, linked(lan, tmp_path, keepalive_program_answer_s=2.0) as (near, _):
        near.host.lose_what_comes_from(near.ask("bulk"))
        near.tell("send 1")
        assert isinstance(near.ask("ask 100"), float)
        assert near.answer("send 1") == "node_lost"


def test_who_is_behind_a_silence_cannot_be_dialled(tmp_path: Path) -> None:
    with Lan(2) as lan:
        near, far, port = two(lan, tmp_path)
        near.host.lose_what_goes_to(far.host)
        assert near.ask(f"dial {far.host.address} {port} 0.5") == "connect_failed"
        near.host.reach(far.host)
        assert near.ask(f"dial {far.host.address} {port}") == "far"
