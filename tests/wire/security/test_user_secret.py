"""The user secret on disk: made once, by whoever comes first, and believed only where nobody else can read it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wire.errors import ConfigError
from wire.security.user_secret import SECRET_BYTES, SECRET_FILE, SECRET_FOLDER, new_secret, user_secret

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has access lists instead of modes")
ASK = "from wire.security.user_secret import user_secret; print(user_secret().hex())"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "graph-mesh" / SECRET_FOLDER / SECRET_FILE


@posix
def test_it_is_made_when_it_is_needed_and_stays(file: Path) -> None:
    secret = user_secret()
    assert len(secret) == SECRET_BYTES and user_secret() == secret == file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    file.unlink()
    assert user_secret() != secret


def test_many_processes_that_need_it_first_have_the_same(file: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", ASK]
    started = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    told = {process.communicate(timeout=120)[0].strip() for process in started}
    assert told == {file.read_bytes().hex()}


def test_where_there_is_no_place_for_it_the_advice_is_one_that_moves_it(file: Path) -> None:
    file.parents[2].write_bytes(b"no folder")
    with pytest.raises(ConfigError, match="cannot make the folder") as raised:
        user_secret()
    assert "XDG_STATE_HOME" in raised.value.next_step and "--state-dir" not in raised.value.next_step


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o666])
def test_one_that_others_could_read_is_not_believed(file: Path, mode: int) -> None:
    user_secret()
    file.chmod(mode)
    with pytest.raises(ConfigError, match=r"is not this user's alone.*Remove it"):
        user_secret()


@posix
def test_one_that_another_user_put_there_is_not_believed(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    user_secret()
    os.chown(file, 65534, -1)
    with pytest.raises(ConfigError, match="is not this user's alone"):
        user_secret()


@posix
def test_a_link_in_its_place_is_not_followed(file: Path, tmp_path: Path) -> None:
    user_secret()
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot read"):
        user_secret()


@pytest.mark.parametrize("content", [b"", b"short", b"x" * (SECRET_BYTES + 1)])
def test_a_damaged_one_is_named(file: Path, content: bytes) -> None:
    user_secret()
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is damaged.*a new one is made"):
        user_secret()


def test_new_ones_differ() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
