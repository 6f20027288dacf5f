"""A coordinator daemon's log: events in, lines out."""

from __future__ import annotations

import logging

from coordinator.workers.log_lines import LogLines
from wire.protocol.reports import Event


def said(log: LogLines, kind: str, node: str, text: str, idle: bool = True) -> list[str]:
    return [line for _, line in log.lines(Event(0.0, kind, node, text, 0), idle)]


def test_a_death_says_who_how_and_where_the_work_went_and_a_return_is_one_line() -> None:
    log = LogLines()
    assert said(log, "joined", "anna", "joined") == ["anna joined"]
    assert said(log, "planned", "", "1 of 1 workers", idle=False) == [], "plans without a death are for jobs' logs"
    assert said(log, "suspect", "anna", "silent for 0.5 s", idle=False) == ["anna is suspect: silent for 0.5 s"]
    assert said(log, "dead", "anna", "the connection ended", idle=False) == ["anna is gone: the connection ended"]
    assert said(log, "dead", "bert", "silent for 1.5 s", idle=False) == ["bert is gone: silent for 1.5 s"]
    assert said(log, "planned", "", "2 of 2 workers", idle=False) == ["the work of anna, bert goes on: 2 of 2 workers"]
    assert said(log, "planned", "", "2 of 2 workers", idle=False) == []
    assert said(log, "healthy", "anna", "joined again") == ["anna is back"]
    assert said(log, "healthy", "anna", "refuted the suspicion") == ["anna answers again"]


def test_a_death_that_interrupts_nothing_says_so() -> None:
    log = LogLines()
    assert said(log, "dead", "anna", "the connection ended") == [
        "anna is gone: the connection ended; no work was in flight"
    ]
    assert said(log, "planned", "", "1 of 1 workers", idle=False) == [], "that is another program's plan"


def test_who_leaves_because_it_was_asked_to_is_no_warning() -> None:
    log = LogLines()
    for _ in range(2):
        said(log, "joined", "anna", "joined")
        asked = Event(0.0, "leaving", "anna", "asked to stop by SIGINT", 0)
        left = Event(0.0, "dead", "anna", "left: asked to stop by SIGINT", 0)
        assert [level for event in (asked, left) for level, _ in log.lines(event, True)] == [logging.INFO] * 2
    said(log, "joined", "anna", "joined")
    assert log.lines(Event(0.0, "dead", "anna", "the connection ended", 0), True)[0][0] == logging.WARNING


def test_a_stuck_worker_and_its_devices_are_told_and_progress_is_not() -> None:
    log = LogLines()
    assert said(log, "stuck", "anna", "a part takes far too long") == ["anna is stuck: a part takes far too long"]
    assert said(log, "ran", "anna", "part 0") == said(log, "deployed", "anna", "1 part") == []
