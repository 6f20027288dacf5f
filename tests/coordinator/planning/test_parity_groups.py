"""Groups of contents and their checks: who keeps what, what a death moves, and that the bytes come back."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from coordinator.planning.redundancy.parity_groups import Group, HeldContent, grouped, kept_bytes, moved_bytes
from wire.erasure.gf256 import combined
from wire.errors import InputError
from wire.policy.redundancy import OF_SESSIONS, copies_of

NODES = ("a", "b", "c", "d", "e")


def held(**sizes: list[int]) -> list[HeldContent]:
    return [
        HeldContent((node, number), size, frozenset({node}))
        for node, each in sizes.items()
        for number, size in enumerate(each)
    ]


def bytes_of(content: object) -> bytes:
    assert isinstance(content, tuple)
    node, number = content
    return np.random.default_rng([ord(node), number]).bytes(12 + number)


def shares(group: Group) -> dict[int, bytes]:
    members = [bytes_of(each.content) for each in group.members]
    longest = max(map(len, members))
    made = [combined(zip(row, members, strict=True), longest).tobytes() for row in group.rows]
    return dict(enumerate([*members, *made]))


@pytest.mark.parametrize("policy", ["buddy", "coded", "coded 2 of 4", "coded 3 of 5", "coded 1 of 3"])
def test_as_many_deaths_as_were_asked_for_lose_nothing(policy: str) -> None:
    copies = copies_of(policy)
    pieces = held(a=[12, 13, 14], b=[12, 13], c=[12], d=[12, 13, 14, 15])
    groups = grouped(pieces, NODES, copies)
    assert sorted(str(each.content) for group in groups for each in group.members) == sorted(
        str(each.content) for each in pieces
    )
    for dead in combinations(NODES, copies.extra):
        for group in groups:
            nodes = [*(min(each.owners) for each in group.members), *group.keepers]
            assert len(set(nodes)) == len(nodes), "one worker has two shares"
            there = {number: share for number, share in shares(group).items() if nodes[number] not in dead}
            for place in {*range(len(group.members))} - there.keys():
                factors, whole = group.repair(place, there), bytes_of(group.members[place].content)
                assert factors is not None
                terms = ((factor, there[share]) for share, factor in factors.items())
                assert combined(terms, len(whole)).tobytes() == whole


def test_a_buddy_keeps_as_much_as_there_is_and_three_workers_half_of_it_by_a_code() -> None:
    pieces = held(a=[10] * 6, b=[10] * 6, c=[10] * 6)
    assert sum(kept_bytes(grouped(pieces, "abc", copies_of("buddy"))).values()) == 180
    coded = grouped(pieces, "abc", copies_of("coded"))
    assert kept_bytes(coded) == {"a": 30, "b": 30, "c": 30}
    assert sum(moved_bytes(coded, "b").values()) == 60  # what it had, and no more
    assert sum(moved_bytes(grouped(pieces, "abc", copies_of("buddy")), "b").values()) == 0  # they are there


def test_groups_are_no_larger_than_there_are_codes_for() -> None:
    nodes = [f"node-{number}" for number in range(100)]
    contents = [HeldContent(node, 10, frozenset({node})) for node in nodes]
    groups = grouped(contents, nodes, copies_of("coded"))
    assert sum(len(group.members) for group in groups) == 100
    assert all(len(group.rows[0]) == len(group.members) for group in groups)
    assert sum(moved_bytes(groups, "node-7").values()) >= 10


def test_what_enough_workers_have_is_in_no_group() -> None:
    both = HeldContent("w", 10, frozenset("ab"))
    assert grouped([both], "abc", copies_of("buddy")) == ()
    two = grouped([both], "abcd", copies_of("coded 1 of 3"))
    assert [group.keepers for group in two] == [("c", "d")]


def test_one_worker_alone_keeps_nothing() -> None:
    assert grouped(held(a=[10]), "a", copies_of("coded")) == ()


def test_too_few_shares_give_nothing_back() -> None:
    (group,) = grouped(held(a=[10], b=[10]), "abc", copies_of("coded"))
    assert group.repair(0, {1}) is None and group.repair(0, {1, 2}) == {1: 1, 2: 1}


@pytest.mark.parametrize("text", ["twice", "coded 3 of 3", "coded 0 of 2", "coded 3 of 99", "", None, 2])
def test_what_is_no_policy_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="copies="):
        copies_of(text)


def test_a_policy_that_is_of_no_use_somewhere_is_refused_there() -> None:
    assert copies_of("coded 3 of 5", OF_SESSIONS).members == 3
    with pytest.raises(InputError, match="replica"):
        copies_of("replica", OF_SESSIONS)
