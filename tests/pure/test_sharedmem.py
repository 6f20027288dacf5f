"""Files in memory that change owner: what another process may make us open and delete, and what happens at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from wire import sharedmem
from wire.errors import BlobCorrupt, BlobMissing, ProtocolError
from wire.sharedmem import SharedDir, readable, remove, take


def test_a_taken_file_belongs_to_the_taker(tmp_path: Path) -> None:
    made = SharedDir.create(tmp_path)
    name = made.write([b"abc", b"def"])
    with pytest.raises(BlobCorrupt, match="6 bytes, expected 5"):
        take(made.path, name, 5)
    view = take(made.path, name, 6)
    made.close()
    assert bytes(view) == b"abcdef"


def test_what_went_away_with_its_process_is_missing_and_need_not_be_removed(tmp_path: Path) -> None:
    made = SharedDir.create(tmp_path)
    name = made.write([b"abc"])
    assert readable(str(made.path))
    made.close()
    assert not readable(str(made.path))
    remove(made.path, name)
    with pytest.raises(BlobMissing, match="is gone"):
        take(made.path, name, 3)


@pytest.mark.parametrize("name", ["", "lock", "../secret", "a" * 31, "A" * 32, "0" * 33, "/etc/passwd"])
def test_only_names_of_our_making_are_opened_or_removed(tmp_path: Path, name: str) -> None:
    made = SharedDir.create(tmp_path)
    (tmp_path / "secret").write_bytes(b"abc")
    for use in (lambda: take(made.path, name, 3), lambda: remove(made.path, name)):
        with pytest.raises(ProtocolError, match="is not the name of a shared file"):
            use()
    with pytest.raises(ProtocolError, match="is not a shared-memory directory"):
        take(tmp_path, "0" * 32, 3)
    assert (tmp_path / "secret").exists()
    made.close()


def test_a_directory_that_is_being_made_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = sharedmem._hold

    def sweep_first(lock: int) -> bool:
        monkeypatch.setattr(sharedmem, "_hold", hold)
        assert SharedDir.sweep(tmp_path) == 0
        return hold(lock)

    monkeypatch.setattr(sharedmem, "_hold", sweep_first)
    made = SharedDir.create(tmp_path)
    assert made.write([b"abc"]) and SharedDir.sweep(tmp_path) == 0
    made.close()
    assert not list(tmp_path.iterdir())
