"""A file lock: one process holds it, whatever becomes of the holder and of those that were forked from it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.source import ROOT

from wire.errors import ConfigError
from wire.system.file_lock import FileLock

HOLDS = """
import sys
from pathlib import Path
from wire.system.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.try_acquire()
print("held", flush=True)
sys.stdin.read()
"""
FORKS = """
import os, sys
from pathlib import Path
from wire.system.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.try_acquire()
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
lock.release()
"""


def started(program: str, path: Path) -> subprocess.Popen[str]:
    """A process that has printed its first line."""
    command = [sys.executable, "-P", "-c", program, str(path)]
    pipe, env = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env, text=True)
    assert process.stdout is not None and process.stdout.readline()
    return process


def held(path: Path) -> bool:
    """Whether anybody holds the lock."""
    lock = FileLock(path)
    free = lock.try_acquire()
    lock.release()
    return not free


def test_one_holds_it_until_it_releases_it_from_whatever_thread(tmp_path: Path) -> None:
    one, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert one.try_acquire() and not other.try_acquire()
    other.release()
    assert not other.try_acquire(), "who does not hold it releases nothing"
    thread = threading.Thread(target=one.release)
    thread.start()
    thread.join()
    assert other.try_acquire()
    other.release()


def test_only_its_owner_may_open_the_file(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"):
        assert (tmp_path / "lock").stat().st_mode & 0o077 == 0


def test_a_process_that_is_killed_frees_it_and_who_waits_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder, got = started(HOLDS, path), threading.Event()

    def wait() -> None:
        with FileLock(path):
            got.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    assert held(path) and not got.wait(0.1)
    holder.send_signal(signal.SIGKILL)
    assert got.wait(60)
    waiter.join()
    holder.communicate()
    assert not held(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_does_not_go_on_holding_what_its_parent_released(tmp_path: Path) -> None:
    parent = started(FORKS, tmp_path / "lock")
    try:
        assert parent.wait(60) == 0
        assert not held(tmp_path / "lock"), "a process of the user's, such as one that loads data, would keep it"
    finally:
        parent.communicate()


@pytest.mark.parametrize("waiting", [True, False])
def test_where_no_lock_can_be_an_error_says_so_and_nothing_is_made(tmp_path: Path, waiting: bool) -> None:
    (tmp_path / "file").touch()
    for folder in ("missing", "file"):
        lock = FileLock(tmp_path / folder / "lock")
        with pytest.raises(ConfigError, match="cannot open the lock file"):
            lock.__enter__() if waiting else lock.try_acquire()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(sys.platform == "win32", reason="it has no flock")
def test_a_file_system_without_locks_is_an_error_also_for_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems have none: to go on as if the lock were held would be two that hold it."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConfigError, match="No locks available"):
        FileLock(tmp_path / "lock").__enter__()


def test_who_waits_for_too_long_is_told_which_lock_it_is(tmp_path: Path) -> None:
    holder = FileLock(tmp_path / "lock")
    assert holder.try_acquire()
    with pytest.raises(ConfigError, match=r"another process has held the lock .*lock for 0.05 s") as told:
        FileLock(tmp_path / "lock", 0.05).__enter__()
    assert "Ctrl-Z" in told.value.next_step
    holder.release()
    with FileLock(tmp_path / "lock", 0.05):
        assert held(tmp_path / "lock")
