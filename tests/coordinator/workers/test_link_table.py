"""Every pair is probed when a node joins, both ways, one at a time; a pair that is cut relays and is tried for ever."""

from __future__ import annotations

import math
import random

import pytest

from coordinator.planning.model.profiles import CLIENT, LAN, SAME_HOST, Link
from coordinator.workers.link_table import REST_S, RETRY_S_FIRST, RETRY_S_MAX, SIMILAR_MAX, LinkTable, Pair, ProbeResult

FAST = ProbeResult(True, 0.001, 1e8, address="10.0.0.2:7100")
SLOW = ProbeResult(True, 0.02, 2e6)
NEAR = ProbeResult(True, 0.0001, shared=True, address="127.0.0.1:7100")
CUT = ProbeResult(False, cause="No route to host")


def assumed(source: str, target: str) -> Link:
    return LAN


def settle(table: LinkTable, ways: dict[Pair, ProbeResult] | None = None, now: float = 0.0) -> list[Pair]:
    """Answer every probe that is due, by `ways` or FAST; the order in which they were asked."""
    asked: list[Pair] = []
    while due := table.due(now):
        asked += due
        for pair in due:
            table.probed(pair, (ways or {}).get(pair, FAST), now, LAN)
    return asked


def joined(*nodes: str) -> LinkTable:
    table = LinkTable()
    for node in nodes:
        table.joined(node, -REST_S)
    return table


def test_every_pair_is_probed_both_ways_and_with_the_coordinator() -> None:
    asked = settle(joined("a", "b", "c"))
    nodes = ["a", "b", "c", CLIENT]
    assert sorted(asked) == sorted((one, other) for one in nodes for other in nodes if one != other)


def test_a_worker_that_has_just_joined_is_left_alone_for_a_moment() -> None:
    table = LinkTable()
    table.joined("a", 10.0)
    assert table.due(10.0) == [] and table.next_deadline() == 10.0 + REST_S
    assert table.due(10.0 + REST_S) == [("a", CLIENT)] and table.next_deadline() is None


def test_no_node_is_in_two_probes_at_once() -> None:
    table = joined(*"abcdef")
    first = table.due(0.0)
    nodes = [node for pair in first for node in pair]
    assert len(nodes) == len(set(nodes)) and len(first) == 3
    assert table.due(0.0) == []


def test_what_is_as_assumed_changes_nothing() -> None:
    table = joined("a", "b")
    changes = []
    while due := table.due(0.0):
        changes += [table.probed(pair, FAST, 0.0, LAN) for pair in due]
    assert not any(changes) and table.links(["a", "b"], assumed) == {}


def test_a_slow_way_is_told_rounded_and_only_once() -> None:
    table = joined("a", "b")
    settle(table, {("b", "a"): SLOW})
    (link,) = table.links(["a", "b"], assumed).values()
    assert link.bytes_per_s == pytest.approx(2e6, rel=0.2) and link.latency_s == pytest.approx(0.0105, rel=0.2)
    before = table.links(["a", "b"], assumed)
    table._asked.add(("b", "a"))
    assert not table.probed(("b", "a"), ProbeResult(True, 0.02 * 1.1, 2e6 / 1.1), 0.0, LAN)
    assert table.links(["a", "b"], assumed) == before
    table._asked.add(("b", "a"))
    assert table.probed(("b", "a"), ProbeResult(True, 0.02, 2e6 / SIMILAR_MAX**2), 0.0, LAN)


def test_what_was_measured_to_be_slow_is_measured_once_more() -> None:
    table = joined("a", "b")
    settle(table, {("b", "a"): SLOW})
    assert table.next_deadline() == RETRY_S_FIRST
    assert settle(table, {}, RETRY_S_FIRST) == [("b", "a")]
    assert table.links(["a", "b"], assumed)["b", "a"].bytes_per_s == pytest.approx(1e8, rel=0.2)
    assert table.next_deadline() is None


@pytest.mark.parametrize(("rtt_s", "bytes_per_s"), [(math.inf, 1e8), (0.01, math.inf), (1e308, 1.7e308), (0.0, 5e-324)])
def test_whatever_a_worker_says_of_a_link_its_figures_are_finite(rtt_s: float, bytes_per_s: float) -> None:
    table = joined("a", "b")
    settle(table, {("b", "a"): ProbeResult(True, rtt_s, bytes_per_s)})
    link = table.links(["a", "b"], assumed)["b", "a"]
    assert 0 < link.bytes_per_s < math.inf and link.seconds(1 << 40) < 1e40


def test_shared_memory_is_a_way_of_its_own_and_the_same_both_ways() -> None:
    table = joined("a", "b")
    asked = settle(table, {("b", "a"): NEAR})
    assert ("a", "b") not in asked
    assert table.links(["a", "b"], assumed) == {("a", "b"): SAME_HOST, ("b", "a"): SAME_HOST}
    assert {path for pair, _, path in table.rows() if CLIENT not in pair} == {"shared memory"}


def test_one_end_that_can_dial_is_enough() -> None:
    table = joined("a", "b")
    asked = settle(table, {("b", "a"): CUT})
    assert asked.count(("b", "a")) == 2  # again once the link stands
    assert table.relayed("a") == table.relayed("b") == frozenset()
    assert table.next_deadline() is None


def test_a_pair_that_is_cut_both_ways_goes_through_the_coordinator_and_costs_both_hops() -> None:
    table = joined("a", "b")
    settle(table, {("b", "a"): CUT, ("a", "b"): CUT, (CLIENT, "b"): SLOW})
    assert table.relayed("a") == {"b"} and table.relayed("b") == {"a"}
    links = table.links(["a", "b"], assumed)
    there, back = links["a", "b"], links["b", "a"]
    assert there.relayed and back.relayed
    assert there.latency_s > LAN.latency_s + 0.01 and there.bytes_per_s < 2.4e6
    assert back == Link(2 * LAN.latency_s, LAN.bytes_per_s / 2, relayed=True)
    assert {path for pair, _, path in table.rows() if CLIENT not in pair} == {"relay"}


def test_a_cut_pair_is_tried_again_for_ever_and_less_often_and_may_heal() -> None:
    table = joined("a", "b")
    settle(table, {("b", "a"): CUT, ("a", "b"): CUT})
    waits, now = [], 0.0
    for _ in range(12):
        at_s = table.next_deadline()
        assert at_s is not None
        waits.append(at_s - now)
        now = at_s
        assert settle(table, {("b", "a"): CUT, ("a", "b"): CUT}, now)
    assert waits[0] == RETRY_S_FIRST and max(waits) == RETRY_S_MAX and waits[-1] > 0
    settle(table, {}, now + 2 * RETRY_S_MAX)
    assert table.relayed("a") == frozenset() and table.next_deadline() is None


def test_who_leaves_is_forgotten_and_a_late_answer_is_dropped() -> None:
    table = joined("a", "b")
    (asked,) = table.due(0.0)
    table.left("a")
    assert not table.probed(asked, SLOW, 0.0, LAN)
    settle(table)
    assert all("a" not in pair for pair, _, _ in table.rows())


def test_who_comes_back_is_probed_anew() -> None:
    table = joined("a", "b")
    settle(table, {("b", "a"): CUT, ("a", "b"): CUT})
    table.joined("b", -REST_S)
    assert table.relayed("a") == frozenset()
    assert ("b", "a") in settle(table)


def test_a_pair_that_lost_something_is_probed_again_and_may_turn_out_cut() -> None:
    table = joined("a", "b")
    settle(table)
    table.probe_again(("a", "b"))
    assert settle(table, {("b", "a"): CUT, ("a", "b"): CUT}) == [("a", "b"), ("b", "a")]
    assert table.relayed("a") == {"b"} and table.next_deadline() is not None
    table.probe_again(("a", "gone"))
    assert table.due(0.0) == []


def test_a_large_mesh_is_not_probed_by_the_square() -> None:
    table = joined(*(f"n{number}" for number in range(200)))
    assert len(settle(table)) < 200 * 2 * 34


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_every_pair_that_is_there_is_known_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    table, there, now = LinkTable(), set(), 0.0
    asked: list[Pair] = []
    for _ in range(200):
        now += chance.uniform(0, 5)
        match chance.randrange(4):
            case 0:
                node = chance.choice("abcdef")
                table.joined(node, now)
                there.add(node)
            case 1 if there:
                node = chance.choice(sorted(there))
                table.left(node)
                there.discard(node)
            case 2:
                asked += table.due(now)
            case _ if asked:
                pair = asked.pop(chance.randrange(len(asked)))
                table.probed(pair, chance.choice((FAST, SLOW, CUT, NEAR)), now, LAN)
        busy = [node for pair in table._asked for node in pair]
        assert len(busy) == len(set(busy))
    for pair in asked:
        table.probed(pair, FAST, now, LAN)
    settle(table, {}, now + 2 * RETRY_S_MAX)
    known = {pair for pair, way, _ in table.rows()}
    nodes = there | {CLIENT}
    assert known == {(one, other) for one in nodes for other in nodes if one != other}
    assert all(table.relayed(node) == frozenset() for node in there)
