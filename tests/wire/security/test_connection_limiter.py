"""How many strangers a port deals with at once: the limits at N-1, N and N+1."""

from __future__ import annotations

import random

import pytest

from wire.security.connection_limiter import Arrival, ConnectionLimiter, ConnectionLimits

SLOW_S = ConnectionLimits().patience_s


def address(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250}"


def test_so_many_strangers_are_heard_and_then_the_slowest_goes() -> None:
    gate = ConnectionLimiter()
    assert [gate.arrive(number, address(number), number / 1000) for number in range(64)] == [Arrival(True)] * 64
    assert gate.arrive(64, address(64), SLOW_S) == Arrival(True, 0)
    assert gate.arrive(65, address(65), SLOW_S + 0.001) == Arrival(True, 1)
    gate.leave(5)
    assert gate.arrive(66, address(66), SLOW_S) == Arrival(True)
    assert gate.arrive(67, address(67), SLOW_S + 0.002) == Arrival(True, 2)


def test_nobody_who_gets_on_goes_for_a_newcomer_of_its_own_address() -> None:
    """Each step has its moment; while it is our turn, the caller's time stands still."""
    gate = ConnectionLimiter()
    for number in range(8):
        gate.arrive(number, "10.0.0.1", 0.0)
    assert gate.arrive(8, "10.0.0.1", SLOW_S - 0.01) == Arrival(heard=False)
    for number in range(1, 8):
        gate.spoke(number)
    assert gate.arrive(9, "10.0.0.1", SLOW_S) == Arrival(True, 0)
    assert gate.arrive(10, "10.0.0.1", SLOW_S + 0.01) == Arrival(heard=False)
    gate.answered(3, 1.0)
    gate.answered(4, 1.1)
    assert gate.arrive(11, "10.0.0.1", 1.0 + SLOW_S) == Arrival(True, 9)
    assert gate.arrive(12, "10.0.0.1", 1.1 + SLOW_S) == Arrival(True, 3)
    assert gate.arrive(13, "10.0.0.1", 1.1 + SLOW_S) == Arrival(True, 4)
    assert gate.arrive(14, "10.0.0.1", 1.1 + SLOW_S) == Arrival(heard=False), "the rest waits for us"


@pytest.mark.parametrize("per_s", [20, 200, 2_000])
def test_a_flood_from_the_same_address_leaves_its_share(per_s: int) -> None:
    """A newcomer that tries 20 times a second is heard within seconds, however fast the others come."""
    gate, draw = ConnectionLimiter(), random.Random(per_s)
    waited_s: list[float] = []
    now_s, began_s, number = 0.0, 0.0, 0
    while len(waited_s) < 12:
        now_s += draw.expovariate(per_s + 20)
        number += 1
        mine = draw.random() < 20 / (per_s + 20)
        arrival = gate.arrive(number, "10.0.0.1", now_s)
        if arrival.heard and draw.random() < 0.5:  # half of the flood shakes hands halfway
            gate.spoke(number)
            gate.answered(number, now_s)
        if mine and arrival.heard:
            waited_s.append(now_s - began_s)
            began_s = now_s
            gate.leave(number)
    assert sum(waited_s) / len(waited_s) < max(0.2, per_s / 20 / 32 * 2), waited_s


def test_one_that_spoke_stays_before_those_that_did_not() -> None:
    gate = ConnectionLimiter()
    gate.arrive(1000, "127.0.0.1", 0.0)
    gate.spoke(1000)
    arrivals = [gate.arrive(number, "127.0.0.1", number / 100) for number in range(200)]
    evicted = [arrival.evicted for arrival in arrivals if arrival.evicted is not None]
    assert 1000 not in evicted and evicted == sorted(evicted) and len(evicted) == 200 - 63


def test_a_flood_from_many_addresses_pushes_itself_out() -> None:
    gate = ConnectionLimiter()
    for number in range(60):
        gate.arrive(number, f"10.0.0.{number % 15}", 0.0)
        gate.spoke(number)
    for number in range(100, 104):
        gate.arrive(number, f"10.1.0.{number}", 0.0)
        gate.spoke(number)
    assert gate.arrive(200, "10.2.0.1", 0.1).evicted == 0
    gate.spoke(200)
    assert gate.arrive(201, "10.2.0.2", 0.1).evicted == 1


def test_of_those_that_do_not_get_on_one_of_the_largest_crowd_goes() -> None:
    """A slow link of somebody else does not pay for a flood."""
    gate = ConnectionLimiter()
    gate.arrive(500, "10.9.9.9", 0.0)
    for number in range(63):
        gate.arrive(number, f"10.0.0.{number % 9}", 0.1)
    assert [gate.arrive(600 + number, f"10.3.0.{number}", 1.0).evicted for number in range(5)] == [0, 1, 2, 3, 4]


def test_whoever_left_or_proved_itself_does_not_count() -> None:
    gate = ConnectionLimiter()
    for number in range(1000):
        assert gate.arrive(number, address(number), 0.0) == Arrival(True)
        gate.leave(number)
    gate.leave(1)
    gate.spoke(1)
    gate.answered(1, 0.0)


def test_one_address_has_8_and_does_not_push_others_out() -> None:
    gate = ConnectionLimiter()
    gate.arrive(100, "10.9.9.9", 0.0)
    heard = [gate.arrive(number, "10.0.0.1", 0.0).heard for number in range(10)]
    assert heard == [True] * 8 + [False] * 2
    gate.leave(3)
    assert gate.arrive(11, "10.0.0.1", 0.0) == Arrival(True)
    assert gate.arrive(12, "10.0.0.2", 0.0) == Arrival(True)


def test_loopback_counts_in_the_total_only() -> None:
    gate = ConnectionLimiter()
    hosts = ["127.0.0.1", "::1", "127.1.2.3", "::ffff:127.0.0.1"]
    assert all(gate.arrive(number, hosts[number % 4], 0.0) == Arrival(True) for number in range(64))
    assert gate.arrive(64, "127.0.0.1", 0.0) == Arrival(heard=False), "there is no larger crowd than its own"
    assert gate.arrive(65, "10.0.0.1", 0.0) == Arrival(True, 0)
    assert gate.arrive(66, "127.0.0.1", SLOW_S) == Arrival(True, 1)


def test_an_ipv6_network_counts_as_one_address() -> None:
    gate = ConnectionLimiter()
    assert all(gate.arrive(number, f"2001:db8::{number:x}", 0.0).heard for number in range(8))
    assert not gate.arrive(8, "2001:db8::ffff:1", 0.0).heard
    assert gate.arrive(9, "2001:db8:0:1::1", 0.0).heard
    assert all(gate.arrive(20 + number, f"::ffff:10.0.0.{number}", 0.0).heard for number in range(9))
    assert all(gate.arrive(40 + number, "fe80::1%eth0", 0.0).heard for number in range(8))
    assert not gate.arrive(50, "fe80::2%eth1", 0.0).heard


def test_the_sixth_question_of_an_address_within_a_minute_waits() -> None:
    gate = ConnectionLimiter()
    assert [gate.delay_s("10.0.0.1", float(number)) for number in range(7)] == [0.0] * 5 + [1.0] * 2
    assert gate.delay_s("10.0.0.2", 7.0) == 0.0
    assert gate.delay_s("10.0.0.1", 67.0) == 0.0


def test_the_61st_question_of_all_waits_and_loopback_is_not_counted_alone() -> None:
    gate = ConnectionLimiter()
    assert [gate.delay_s("127.0.0.1", 0.0) for _ in range(62)] == [0.0] * 60 + [1.0] * 2
    assert gate.delay_s("10.0.0.1", 30.0) == 1.0
    assert gate.delay_s("10.0.0.1", 60.0) == 0.0


def test_a_flood_of_questions_is_remembered_within_bounds() -> None:
    gate = ConnectionLimiter(ConnectionLimits(questions_remembered=100))
    for number in range(10_000):
        gate.delay_s(address(number), 0.0)
    assert len(gate._questions) == 100
