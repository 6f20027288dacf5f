"""What is written down of a session is read as it was, and what is no such thing is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.jobs.client_session import Terms
from coordinator.planning.model.plan import FromState, Window
from coordinator.sessions.events import Checked
from coordinator.sessions.manifest import CopyRecord, Manifest, PlanRecord, SessionRecord, as_json, from_json
from wire.errors import JournalDamaged

WHOLE, CUT = FromState("w"), FromState("v", Window((0, 4), (3, 4)), 5)
OWNERS = {WHOLE: frozenset({"a"}), CUT: frozenset({"b", "c"})}
CHECKED = Checked((WHOLE, CUT), 48, (("d", b"\x02" * 32), ("e", b"\x03" * 32)))
COPY = CopyRecord((1 << 53) - 1, 1 << 40, {WHOLE: b"\x00" * 32, CUT: b"\xff" * 32}, OWNERS, (CHECKED,), True)
RECORD = SessionRecord(
    Manifest((CopyRecord(0, 0, None), COPY), PlanRecord(7, (1 << 40) + 2, OWNERS)),
    {(0, 1): WHOLE, (3, 0): CUT},
    {7: 1 << 50, (1 << 53) - 1: 3},
)


def test_a_record_is_read_as_it_was_written() -> None:
    assert from_json(json.loads(json.dumps(as_json(RECORD)))) == RECORD
    nothing = SessionRecord(Manifest(()), {}, {})
    assert from_json(json.loads(json.dumps(as_json(nothing)))) == nothing


def test_it_names_all_that_workers_hold() -> None:
    manifest = RECORD.manifest
    assert manifest.generations == {7, COPY.number}
    assert manifest.places == sorted([*((7, node) for node in "abc"), *((COPY.number, node) for node in "abcde")])


def test_what_came_after_the_client_s_answers_is_of_no_use() -> None:
    manifest = RECORD.manifest
    assert manifest.before(COPY.value) == Manifest(manifest.copies)
    assert manifest.before(COPY.value - 1) == Manifest(manifest.copies[:1])
    assert manifest.before(COPY.value + 3) == manifest
    assert manifest.first_feed(COPY.value) == 0
    assert Manifest((COPY,)).first_feed(COPY.value - 1) == COPY.value - 1


@pytest.mark.parametrize("name", sorted(as_json(RECORD)))
@pytest.mark.parametrize("other", [None, 3, [[1]], {"x": 1}])
def test_what_is_no_record_is_refused(name: str, other: Any) -> None:
    data: dict[str, Any] = {**as_json(RECORD), name: other}
    if name == "plan" and other is None:
        assert from_json(data).manifest.plan is None
        return
    with pytest.raises(JournalDamaged, match="what the journal says of a session cannot be read"):
        from_json(data)
    del data[name]
    with pytest.raises(JournalDamaged):
        from_json(data)


@pytest.mark.parametrize("fields", [{}, {"policy": 3}, {"policy": ["buddy", 1, 1, True], "ahead": 1, "carries": [1]}])
def test_what_a_client_asked_for_that_cannot_be_read_is_refused_and_says_what_to_do(fields: dict[str, Any]) -> None:
    with pytest.raises(JournalDamaged, match="cannot be read") as caught:
        Terms.of(fields)
    assert "jobs folder" in caught.value.next_step
