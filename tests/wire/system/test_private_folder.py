"""Folders for this user's eyes: who else may change what is above them, as a table of modes and owners."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from wire.errors import ConfigError
from wire.system.private_folder import check_private, private_folder, user_name, weakness

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has access lists instead of modes")
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give folders to another user"
)
NOBODY = 65534


@posix
def test_what_is_made_is_this_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "state" / "mesh" / "worker")
    finally:
        os.umask(before)
    for folder in (made, made.parent, made.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    assert private_folder(made) == made, "it is there already"


@posix
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o700, ""),
        (0o755, ""),
        (0o1777, ""),  # as /tmp: everybody keeps to their own entries
        (0o777, "can be written to by every user"),
        (0o757, "can be written to by every user"),
        (0o722, "can be written to by every user"),
    ],
)
def test_a_folder_above_that_others_can_change_is_refused(tmp_path: Path, mode: int, said: str) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    if not said:
        private_folder(above / "own")
        return
    with pytest.raises(ConfigError, match=rf"{re.escape(str(above))} {said}.*chmod go-w"):
        private_folder(above / "own")
    assert weakness(above / "own").startswith(str(above))


@needs_root
def test_a_folder_of_another_user_is_refused_wherever_it_stands_above(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    with pytest.raises(ConfigError, match=rf"{theirs} belongs to user {user_name(NOBODY)}"):
        private_folder(theirs / "a" / "own")


@needs_root
def test_a_link_is_followed_and_both_ways_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "good").mkdir(0o700)
    (tmp_path / "open" / "real").mkdir(0o700)
    (tmp_path / "good" / "link").symlink_to(tmp_path / "open" / "real")
    check_private(tmp_path / "good" / "link")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match=rf"{tmp_path / 'open'} can be written"):
        check_private(tmp_path / "good" / "link")


@needs_root
def test_a_group_with_others_in_it_is_not_ones_own(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    os.chown(shared, -1, 4321)
    with pytest.raises(ConfigError, match=r"can be written to by group 4321"):
        private_folder(shared / "own")
    os.chown(shared, -1, os.getegid())
    private_folder(shared / "own")


def test_what_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot make the folder .*--state-dir"):
        private_folder(tmp_path / "file" / "below")
