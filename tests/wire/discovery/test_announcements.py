"""Adverts are known to their own mesh alone, say nothing to others, and are bounded whatever is announced."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.hostile.mdns import advert

from wire.discovery.announcements import (
    ADDRESSES_MAX,
    BUCKET_S,
    CANDIDATES_MAX,
    JOINED_MAX,
    TTL_S,
    Candidate,
    Candidates,
    bucket_of,
    fields_of,
    key_of_name,
    near,
    role_in,
    text_of,
)
from wire.discovery.mdns import advert_in
from wire.joining.join_tokens import discovery_key

KEY = discovery_key(bytes(32))
REDIAL_S = 5.0
NONCE = bytes(range(8))
LABEL = "0123456789abcdef"
HERE = ("10.0.0.5:7100",)


def known(key: bytes = KEY, label: str = LABEL, port: int = 7100, bucket: int = 100, **changed: bytes) -> str:
    text = text_of(KEY, LABEL, NONCE, "worker", 7100, 100)
    return role_in(key, label, text | {name.encode(): value for name, value in changed.items()}, port, bucket)


def test_an_advert_is_known_to_who_has_the_key_in_its_time_and_beside_it() -> None:
    assert known() == known(bucket=99) == known(bucket=101) == "worker"
    assert known(bucket=98) == known(bucket=102) == ""


@pytest.mark.parametrize(
    "other",
    [
        {"key": discovery_key(b"\1" * 32)},
        {"key": key_of_name("m")},
        {"label": "0123456789abcdee"},
        {"port": 7101},
        {"v": b"2"},
        {"n": bytes(8)},
        {"n": b""},
        {"t": bytes(16)},
        {"t": b""},
    ],
)
def test_anything_else_is_noise(other: dict[str, Any]) -> None:
    assert known(**other) == ""


def test_a_record_without_its_fields_is_noise() -> None:
    whole = text_of(KEY, LABEL, NONCE, "coordinator", 7100, 100)
    assert role_in(KEY, LABEL, whole, 7100, 100) == "coordinator"
    for name in whole:
        assert role_in(KEY, LABEL, {**whole, name: None}, 7100, 100) == ""


def test_an_advert_tells_nothing_but_itself() -> None:
    text = text_of(KEY, LABEL, NONCE, "coordinator", 7100, 100)
    assert set(text) == {b"v", b"n", b"t"}
    assert sum(len(name) + len(value) for name, value in text.items()) == 3 + 1 + 8 + 16
    assert text != text_of(KEY, LABEL, NONCE, "coordinator", 7100, 101)


def test_buckets_are_ten_minutes() -> None:
    assert bucket_of(0) == bucket_of(BUCKET_S - 1) == 0
    assert bucket_of(BUCKET_S) == 1


@pytest.mark.parametrize("address", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.7.7", "127.0.0.1", "::1"])
def test_a_home_has_these_addresses(address: str) -> None:
    assert near(address)


@pytest.mark.parametrize("address", ["fd12::1", "fe80::1", "fe80::1%eth0", "fe80::1%3"])
def test_and_these_of_ipv6(address: str) -> None:
    assert near(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "172.32.0.1", "192.0.2.1", "0.0.0.0", "255.255.255.255", "224.0.0.251", "2001:db8::1", "::"]
)
def test_nobody_is_led_elsewhere(address: str) -> None:
    assert not near(address)
    assert not near("home.example")


def test_fields_are_read_as_far_as_they_are_fields() -> None:
    assert fields_of(b"\x03v=1\x04n=ab\x02n=") == {b"v": b"1", b"n": b"ab"}
    assert fields_of(b"\x00\x01v\x02=1\xffn=cut") == {b"n": b"cut"}
    assert fields_of(b"") == {}


def test_no_text_record_is_too_strange_to_read() -> None:
    chance = random.Random(7)
    whole = b"\x03v=1\x0an=" + NONCE + b"\x12t=" + text_of(KEY, LABEL, NONCE, "worker", 7100, 100)[b"t"]
    assert role_in(KEY, LABEL, fields_of(whole), 7100, 100) == "worker"
    for _ in range(5_000):
        record = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            record[chance.randrange(len(record))] = chance.randrange(256)
        fields = fields_of(bytes(record[: chance.randint(0, len(record))]))
        assert role_in(KEY, LABEL, fields, 7100, 100) == "" or fields == fields_of(whole)


# -- candidates


def test_an_advert_is_news_once_and_when_it_names_more() -> None:
    seen = Candidates(REDIAL_S)
    assert seen.heard(LABEL, "worker", HERE, 0.0) == Candidate(HERE, "worker", LABEL)
    assert seen.heard(LABEL, "worker", HERE, 1.0) is None
    more = seen.heard(LABEL, "worker", ("[fd00::5]:7100", "10.0.0.4:7100"), 2.0)
    assert more == Candidate(("10.0.0.4:7100", "10.0.0.5:7100", "[fd00::5]:7100"), "worker", LABEL)


def test_a_node_that_died_without_a_word_is_forgotten() -> None:
    seen = Candidates(REDIAL_S)
    seen.heard(LABEL, "worker", HERE, 0.0)
    assert seen.expired(TTL_S - 1) == []
    seen.heard(LABEL, "worker", HERE, TTL_S - 1)
    assert seen.expired(TTL_S + 1) == []
    assert seen.expired(2 * TTL_S) == [Candidate(HERE, "worker", LABEL)]
    assert len(seen) == 0


def test_a_long_promise_is_not_believed() -> None:
    seen = Candidates(REDIAL_S)
    seen.heard(LABEL, "worker", HERE, 0.0, ttl_s=1e9)
    assert len(seen.expired(TTL_S)) == 1


def test_each_is_dialled_at_once_and_then_once_per_pause() -> None:
    seen = Candidates(REDIAL_S)
    for number in range(3):
        seen.heard(f"{number}", "worker", HERE, 0.0)
    first = [candidate.label for candidate in iter(lambda: seen.due(0.0), None)]
    assert sorted(first) == ["0", "1", "2"]
    assert seen.next_due_s() == REDIAL_S and seen.due(REDIAL_S - 0.1) is None
    assert [candidate.label for candidate in iter(lambda: seen.due(REDIAL_S), None)] == first


def test_who_says_goodbye_and_returns_is_dialled_no_more_often() -> None:
    seen = Candidates(REDIAL_S)
    dials = 0
    for tick in range(200):
        now_s = tick / 10
        seen.heard(LABEL, "worker", HERE, now_s)
        dials += seen.due(now_s) is not None
        assert seen.gone(LABEL, now_s) is not None
        assert seen.gone(LABEL, now_s) is None
    assert dials == 20 / REDIAL_S
    seen.expired(100.0)
    assert seen._known == {}


def test_a_flood_of_good_adverts_ends_at_so_many_candidates_and_addresses() -> None:
    seen = Candidates(REDIAL_S)
    for number in range(10_000):
        seen.heard(f"{number}", "worker", (f"10.0.{number >> 8}.{number & 255}:7100",), 0.0)
        seen.heard("0", "worker", (f"10.1.{number >> 8}.{number & 255}:7100",), 0.0)
    assert len(seen) == len(seen._known) == CANDIDATES_MAX
    assert max(len(known.until) for known in seen._known.values()) == ADDRESSES_MAX
    assert len(list(iter(lambda: seen.due(0.0), None))) == CANDIDATES_MAX
    assert len(seen.expired(TTL_S)) == CANDIDATES_MAX and seen.heard("new", "worker", HERE, TTL_S) is not None


def test_who_has_joined_leaves_its_place_to_others_within_bounds() -> None:
    seen = Candidates(REDIAL_S)
    for number in range(10_000):
        seen.heard(f"{number}", "worker", HERE, 0.0)
        seen.joined(f"{number}")
    assert len(seen._known) == JOINED_MAX + CANDIDATES_MAX
    dialled = [candidate.label for candidate in iter(lambda: seen.due(0.0), None)]
    assert dialled == [f"{number}" for number in range(JOINED_MAX, JOINED_MAX + CANDIDATES_MAX)]
    assert seen.next_due_s() == REDIAL_S


def test_each_of_many_that_join_and_go_on_announcing_themselves_is_dialled() -> None:
    seen, dialled = Candidates(REDIAL_S), list[str]()
    for second in range(int(TTL_S)):
        for number in range(3 * CANDIDATES_MAX):
            seen.heard(f"{number}", "worker", HERE, float(second))
        while (candidate := seen.due(float(second))) is not None:
            dialled.append(candidate.label)
            seen.joined(candidate.label)
    assert sorted(dialled) == sorted(f"{number}" for number in range(3 * CANDIDATES_MAX))


@pytest.mark.parametrize("goes", [lambda seen: seen.gone("0", TTL_S), lambda seen: seen.expired(TTL_S)])
def test_one_that_had_joined_and_went_is_dialled_when_it_is_back(goes: Callable[[Candidates], object]) -> None:
    seen = Candidates(REDIAL_S)
    seen.heard("0", "worker", HERE, 0.0)
    assert seen.due(0.0) is not None
    seen.joined("0")
    assert seen.due(REDIAL_S) is None and seen.next_due_s() is None
    assert goes(seen)
    seen.joined("0")  # too late
    seen.heard("0", "worker", HERE, TTL_S)
    assert seen.due(TTL_S) is not None


def test_who_was_turned_away_is_asked_for_once_there_is_room() -> None:
    seen = Candidates(REDIAL_S)
    for number in range(CANDIDATES_MAX):
        seen.heard(f"{number}", "worker", HERE, 0.0)
    seen.joined("0")
    assert not seen.ask_again()  # nobody was
    for label in ("one more", "turned away"):
        seen.heard(label, "worker", HERE, 0.0)
    assert not seen.ask_again()  # no room
    seen.joined("1")
    assert [seen.ask_again(), seen.ask_again()] == [True, False]


@pytest.mark.parametrize(("port", "taken"), [(7100, True), (0, False)])
def test_nobody_listens_on_port_0(port: int, taken: bool) -> None:
    assert (advert_in(advert(KEY, 0.0, port=port)) is not None) == taken
