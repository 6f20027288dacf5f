"""Which workers each replica has, and which replica a text goes to: tables of both."""

from __future__ import annotations

import pytest

from mesh.inference.replica_groups import Machine, regrouped, stands_apart
from mesh.inference.replica_router import Load, chosen
from wire.policy.strategies import Auto, DeviceMap, Pipeline, Single, Strategy, TensorParallel


def machines(text: str) -> list[Machine]:
    """'a4 b2' is worker a with 4 bytes and b with 2."""
    return [Machine(word[0], word[0], int(word[1:])) for word in text.split()]


@pytest.mark.parametrize(
    ("before", "there", "replicas", "needed", "after"),
    [
        # from nothing
        ("", "a4 b4 c4", 3, 4, "a b c"),
        ("", "a4 b4 c4", 2, 4, "ac b"),
        ("", "a4 b4", 3, 4, "a b"),  # fewer workers than replicas
        ("", "a4", 3, 4, "a"),
        ("", "a4 b4 c4", 3, 8, "abc"),  # two replicas have no room
        ("", "a4 b4 c4 d4", 3, 8, "ac bd"),
        ("", "a9 b3 c3 d3", 2, 8, "a bcd"),  # the largest one alone
        ("", "a2 b2", 2, 9, "ab"),  # not even all have the room: the planner says so
        # a worker comes
        ("a", "a4 b4", 2, 4, "a b"),
        ("a b", "a4 b4 c4", 3, 4, "a b c"),
        ("a b", "a4 b4 c4", 2, 4, "ac b"),  # nobody lacks one
        ("ab", "a4 b4 c4", 2, 8, "abc"),  # not enough for a second replica
        ("ab", "a4 b4 c4 d4", 2, 8, "ab cd"),
        # a worker goes
        ("a b c", "a4 c4", 3, 4, "a c"),
        ("ab cd", "a4 c4 d4", 2, 4, "a cd"),
        ("ab cd", "a4 c4 d4", 2, 8, "a cd"),  # what is left of a group that is short of memory stays its own
        ("a b", "c4", 2, 4, "c"),
        ("a", "", 2, 4, ""),
        # a worker goes, and another one comes where memory lacks
        ("ab cd", "a4 c4 d4 e4", 2, 8, "ae cd"),
    ],
)  # fmt: skip
def test_groups(before: str, there: str, replicas: int, needed: int, after: str) -> None:
    found = regrouped([tuple(word) for word in before.split()], machines(there), replicas, needed)
    assert found == tuple(tuple(word) for word in after.split())


@pytest.mark.parametrize(
    ("strategy", "apart"),
    [
        (Auto(), True), (Single(), True), (Auto(use_all=True), False), (Pipeline(), False), (TensorParallel(), False),
        (DeviceMap().layer("", "a"), False),
    ],
)  # fmt: skip
def test_a_strategy_for_all_workers_has_no_replicas_apart(strategy: Strategy, apart: bool) -> None:
    assert stands_apart(strategy) is apart


@pytest.mark.parametrize(
    ("loads", "tokens", "place"),
    [
        ([Load(), Load()], 10, 0),
        ([Load(1, 4, 100), Load(0, 4, 0)], 10, 1),  # least to do
        ([Load(1, 4, 100), Load(3, 4, 90)], 10, 1),  # counted in tokens, not in texts
        ([Load(1, 4, 100, found=64), Load(1, 4, 100)], 80, 0),  # what is known need not be read
        ([Load(1, 4, 400, found=64), Load(1, 4, 100)], 80, 1),  # unless another one reads it sooner
        ([Load(4, 4, 10), Load(3, 4, 500)], 10, 1),  # a free slot
        ([Load(2, 4, 10, full=True), Load(9, 4, 500)], 10, 1),  # a place in the queue
        ([Load(9, 4, 10, full=True), Load(9, 4, 20, full=True)], 10, 0),  # which says that it is full
        ([Load(tokens_max=32), Load(3, 4, 500, tokens_max=64)], 40, 1),  # memory
        ([Load(tokens_max=32), Load(tokens_max=64)], 65, None),
        ([], 1, None),
    ],
)
def test_a_text_goes_where_it_goes_on_soonest(loads: list[Load], tokens: int, place: int | None) -> None:
    assert chosen(loads, tokens) == place
