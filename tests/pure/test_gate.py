"""How many strangers a port deals with at once: the limits at N-1, N and N+1."""

from __future__ import annotations

from wire.gate import Arrival, Gate, GateLimits


def address(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250}"


def test_so_many_strangers_are_heard_and_then_the_oldest_goes() -> None:
    gate = Gate()
    assert [gate.arrive(number, address(number)) for number in range(64)] == [Arrival(True)] * 64
    assert gate.arrive(64, address(64)) == Arrival(True, 0)
    assert gate.arrive(65, address(65)) == Arrival(True, 1)
    gate.leave(5)
    assert gate.arrive(66, address(66)) == Arrival(True)
    assert gate.arrive(67, address(67)) == Arrival(True, 2)


def test_one_that_spoke_stays_before_those_that_did_not() -> None:
    gate = Gate()
    gate.arrive(1000, "127.0.0.1")
    gate.spoke(1000)
    evicted = [gate.arrive(number, "127.0.0.1").evicted for number in range(200)]
    assert 1000 not in evicted and evicted[-1] == 136
    for number in range(137, 200):
        gate.spoke(number)
    assert gate.arrive(2000, "127.0.0.1").evicted == 1000


def test_a_flood_from_many_addresses_pushes_itself_out() -> None:
    gate = Gate()
    for number in range(60):
        gate.arrive(number, f"10.0.0.{number % 15}")
        gate.spoke(number)
    for number in range(100, 104):
        gate.arrive(number, f"10.1.0.{number}")
        gate.spoke(number)
    assert gate.arrive(200, "10.2.0.1").evicted == 0
    gate.spoke(200)
    assert gate.arrive(201, "10.2.0.2").evicted == 1


def test_whoever_left_or_proved_itself_does_not_count() -> None:
    gate = Gate()
    for number in range(1000):
        assert gate.arrive(number, address(number)) == Arrival(True)
        gate.leave(number)
    gate.leave(1)


def test_one_address_has_8_and_does_not_push_others_out() -> None:
    gate = Gate()
    gate.arrive(100, "10.9.9.9")
    heard = [gate.arrive(number, "10.0.0.1").heard for number in range(10)]
    assert heard == [True] * 8 + [False] * 2
    gate.leave(3)
    assert gate.arrive(11, "10.0.0.1") == Arrival(True)
    assert gate.arrive(12, "10.0.0.2") == Arrival(True)


def test_loopback_counts_in_the_total_only() -> None:
    gate = Gate()
    hosts = ["127.0.0.1", "::1", "127.1.2.3", "::ffff:127.0.0.1"]
    assert all(gate.arrive(number, hosts[number % 4]) == Arrival(True) for number in range(64))
    assert gate.arrive(64, "127.0.0.1") == Arrival(True, 0)


def test_an_ipv6_network_counts_as_one_address() -> None:
    gate = Gate()
    assert all(gate.arrive(number, f"2001:db8::{number:x}").heard for number in range(8))
    assert not gate.arrive(8, "2001:db8::ffff:1").heard
    assert gate.arrive(9, "2001:db8:0:1::1").heard
    assert all(gate.arrive(20 + number, f"::ffff:10.0.0.{number}").heard for number in range(9))
    assert all(gate.arrive(40 + number, "fe80::1%eth0").heard for number in range(8))
    assert not gate.arrive(50, "fe80::2%eth1").heard


def test_the_sixth_question_of_an_address_within_a_minute_waits() -> None:
    gate = Gate()
    assert [gate.delay_s("10.0.0.1", float(number)) for number in range(7)] == [0.0] * 5 + [1.0] * 2
    assert gate.delay_s("10.0.0.2", 7.0) == 0.0
    assert gate.delay_s("10.0.0.1", 67.0) == 0.0


def test_the_61st_question_of_all_waits_and_loopback_is_not_counted_alone() -> None:
    gate = Gate()
    assert [gate.delay_s("127.0.0.1", 0.0) for _ in range(62)] == [0.0] * 60 + [1.0] * 2
    assert gate.delay_s("10.0.0.1", 30.0) == 1.0
    assert gate.delay_s("10.0.0.1", 60.0) == 0.0


def test_a_flood_of_questions_is_remembered_within_bounds() -> None:
    gate = Gate(GateLimits(questions_remembered=100))
    for number in range(10_000):
        gate.delay_s(address(number), 0.0)
    assert len(gate._questions) == 100
