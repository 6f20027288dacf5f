"""The file of what a voter promised: it comes back as it was, and one that is damaged is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from wire.errors import ConfigError, ProtocolError
from wire.standby.configuration import Ballot, Configuration, Record
from wire.standby.in_messages import answered_of, asked_of, vote_of, voted_of
from wire.standby.standby_file import PEERS_MAX, STANDBY_FILE, Remembered, StandbyFile
from wire.standby.voter import Answered, Asked, Stage

KNOWN = Configuration(4, frozenset({"a", "b"}), (frozenset({"a", "b", "c"}), frozenset({"a", "b", "d"})))
RECORD = Record(Ballot(5, "b"), Ballot(3, "a"), KNOWN)
PEERS = {"a": ("10.0.0.2:7100",)}


async def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    file = StandbyFile(tmp_path)
    assert not file.exists and file.remembered == Remembered()
    await file.change(record=RECORD)
    await file.change(epochs=(7, 9), peers=PEERS)
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


async def test_of_too_many_peers_the_oldest_that_do_not_count_go(tmp_path: Path) -> None:
    """A standby that is taken down has another node take its place: it is not dialled for ever."""
    file = StandbyFile(tmp_path)
    await file.change(record=RECORD)
    for name in ("b", "old", *(f"n{number}" for number in range(PEERS_MAX - 2))):
        await file.met(name, (f"{name}:7100",))
    assert len(file.remembered.peers) == PEERS_MAX and "old" in file.remembered.peers
    for name in ("n0", "new", "newer"):
        await file.met(name, (f"{name}:7101",))
    assert [*file.remembered.peers] == ["b", *(f"n{number}" for number in range(1, PEERS_MAX - 2)), "new", "newer"]
    assert StandbyFile(tmp_path).remembered == file.remembered, (
        "b has every acknowledged entry, and may have taken over"
    )
