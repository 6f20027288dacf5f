"""The file of what a voter promised: it comes back as it was, and one that is damaged is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from wire.errors import ConfigError, ProtocolError
from wire.standby.configuration import Ballot, Configuration, Record
from wire.standby.in_messages import answered_of, asked_of, vote_of, voted_of
from wire.standby.standby_file import STANDBY_FILE, Remembered, StandbyFile
from wire.standby.voter import Answered, Asked, Stage

KNOWN = Configuration(4, frozenset({"a", "b"}), (frozenset({"a", "b", "c"}), frozenset({"a", "b", "d"})))
RECORD = Record(Ballot(5, "b"), Ballot(3, "a"), KNOWN)
PEERS = {"a": ("10.0.0.2:7100",)}


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    file = StandbyFile(tmp_path)
    assert not file.exists and file.remembered == Remembered()
    file.change(record=RECORD)
    file.change(epochs=(7, 9), peers=PEERS)
    again = StandbyFile(tmp_path)
    assert again.exists and again.remembered == Remembered(RECORD, (7, 9), PEERS)


@pytest.mark.parametrize("damage", ["", "{}", '{"format": 2}', '{"format": 1, "record": 3}', "[1]"])
def test_one_that_is_damaged_is_refused(tmp_path: Path, damage: str) -> None:
    (tmp_path / STANDBY_FILE).write_text(damage)
    with pytest.raises(ConfigError, match=STANDBY_FILE):
        StandbyFile(tmp_path)


@pytest.mark.parametrize("stage", Stage)
def test_a_vote_is_the_same_after_its_way(stage: Stage) -> None:
    asked = Asked(stage, Ballot(5, "b"), KNOWN if stage is Stage.ACCEPT else None)
    assert asked_of(vote_of(asked), "b") == asked
    answer = Answered(stage, asked.ballot, "c", True, RECORD)
    assert answered_of(asked, voted_of(answer), "c") == answer


@pytest.mark.parametrize("asked", [Asked(Stage.WOULD, Ballot(5, "b")), Asked(Stage.ACCEPT, Ballot(5, "a"))])
def test_nobody_asks_for_another_or_for_nothing(asked: Asked) -> None:
    with pytest.raises(ProtocolError, match="in one's own name"):
        asked_of(vote_of(asked), "a")
