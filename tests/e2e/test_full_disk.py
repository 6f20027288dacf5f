"""A disk that is really full: the journal refuses, keeps what it acknowledged, and goes on once there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.small_disk import fill, small_disk

from coordinator.jobs.journal import Entry, Journal
from wire.errors import NotDurable

FILLER = bytes(2_000_000)
BODY = bytes(5000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "3m") as mounted:
        yield mounted


def write_until_refused(journal: Journal, first: int) -> list[str]:
    """The jobs that were acknowledged."""
    sure = []
    for number in range(first, first + 1000):
        try:
            journal.write([Entry(f"{number}", "ended", BODY)])
        except NotDurable as refusal:
            told = str(refusal)
            assert "cannot be written" in told and "Make room" in told
            return sure
        sure.append(f"{number}")
    raise AssertionError("the disk never filled up")


def test_a_full_disk_is_told_and_costs_nothing_that_was_acknowledged(disk: Path) -> None:
    folder, filler = disk / "jobs", disk / "filler"
    journal, _ = Journal.open(folder)
    filler.write_bytes(FILLER)
    sure = write_until_refused(journal, 0)
    assert len(sure) > 5
    with pytest.raises(NotDurable):
        journal.write([Entry("more", "ended", BODY)])
    filler.unlink()
    sure += write_until_refused(journal, 1000)
    assert any(int(job) >= 1000 for job in sure), "there was room again"
    journal.close()


def test_what_was_acknowledged_before_a_disk_was_full_is_there_when_it_has_room_again(disk: Path) -> None:
    folder, filler = disk / "jobs", disk / "filler"
    filler.write_bytes(FILLER)
    journal, _ = Journal.open(folder)
    sure = write_until_refused(journal, 0)
    journal.close()
    filler.unlink()
    again, entries = Journal.open(folder)
    assert {entry.job for entry in entries} >= set(sure)
    again.close()


def test_a_start_on_a_full_disk_says_so_and_alters_nothing(disk: Path) -> None:
    folder, filler = disk / "jobs", disk / "filler"
    journal, _ = Journal.open(folder)
    journal.write([Entry("a", "ended", BODY)])
    journal.close()
    fill(filler)
    with pytest.raises(NotDurable, match="No space left on device"):
        Journal.open(folder)
    filler.unlink()
    again, entries = Journal.open(folder)
    assert [entry.job for entry in entries] == ["a"]
    again.close()
