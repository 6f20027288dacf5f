"""The table of who may send what to whom: every message has its row, and says who may send it."""

from __future__ import annotations

from typing import get_args

import pytest

from wire.link.guard import BY_ROLE, WANTED
from wire.protocol.messages import (
    AnyMessage,
    Beat,
    BlobStream,
    Deploy,
    FetchBlob,
    Message,
    Push,
    SubmitJob,
)
from wire.protocol.permissions import ANSWERS, LINKS, MEANING, TABLE, Receiver, Relation, Way, senders

MESSAGES = get_args(AnyMessage)
ROWS = [(way, message, row) for way, rows in TABLE.items() for message, row in rows.items()]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_has_a_row_or_is_an_answer_only(message: type[Message]) -> None:
    assert any(message in rows for rows in TABLE.values()) != (message in ANSWERS)


def test_no_row_is_of_something_else() -> None:
    assert {message for _, message, _ in ROWS} | ANSWERS == set(MESSAGES)
    assert TABLE.keys() == set(Way)


@pytest.mark.parametrize(("way", "message", "row"), ROWS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_row_names_who_sends_it_to_whom(way: Way, message: type[Message], row: dict[Receiver, object]) -> None:
    assert row and all(row.values()), "a receiver that takes it from nobody is left out"
    for receiver in row:
        found = senders(receiver, way, message)
        assert found and set(found) <= set(Relation) and len(set(found)) == len(found)


def test_every_relation_is_said_in_words_and_used() -> None:
    assert MEANING.keys() == WANTED.keys() == set(Relation) >= BY_ROLE.keys()
    assert {relation for _, _, row in ROWS for relations in row.values() for relation in relations} == set(Relation)


@pytest.mark.parametrize(
    ("receiver", "way", "message", "expected"),
    [
        (Receiver.WORKER, Way.REQUEST, Deploy, (Relation.OWNER,)),
        (Receiver.WORKER, Way.NOTIFICATION, Push, (Relation.SOURCE,)),
        (Receiver.WORKER, Way.REQUEST, SubmitJob, ()),
        (Receiver.COORDINATOR, Way.NOTIFICATION, Beat, (Relation.WORKER,)),
        (Receiver.COORDINATOR, Way.REQUEST, Beat, ()),
        (Receiver.CLIENT, Way.REQUEST, FetchBlob, (Relation.COORDINATOR,)),
        (Receiver.STANDBY, Way.STREAM, BlobStream, (Relation.ASKED,)),
    ],
)
def test_who_may_send_it(receiver: Receiver, way: Way, message: type[Message], expected: tuple[Relation, ...]) -> None:
    assert senders(receiver, way, message) == expected


def test_workers_take_no_links_from_clients() -> None:
    assert {"worker": {"worker", "coordinator"}} == LINKS
