"""A command that is forked is as one that a new interpreter runs, which is started where it could differ."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.commands import Forked, command, daemon, environment, may_fork, run, wait_for
from support.processes.forked_hosts import hosts_of
from support.processes.worker_process import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux only")


@pytest.mark.parametrize("words", [("nodes",), ("plan", "missing.wire"), ("keys", "--help"), ("no-verb",)])
def test_it_prints_and_returns_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert may_fork(env)
    forked = run("coord", *words, env=env, cwd=tmp_path)
    anew = subprocess.run(
        command("coord", *words), env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (forked.returncode, forked.stdout, forked.stderr) == (anew.returncode, anew.stdout, anew.stderr)


def test_it_is_a_process_of_its_own_that_a_signal_ends(tmp_path: Path) -> None:
    words = ("serve", "--port", "0", "--no-mdns")
    with daemon("coord", *words, env=environment(tmp_path), log=tmp_path / "log") as started:
        assert isinstance(started.process, Forked)
        assert started.process.pid == started.ready["pid"] != os.getpid()
        assert started.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            started.process.wait(0.0)
        assert started.stop(signal.SIGKILL) == started.process.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    "more", [{"PYTHONPATH": "elsewhere"}, {"OPENBLAS_CORETYPE": "another"}, {"TMPDIR": "/var/tmp"}]
)
def test_what_imports_may_read_needs_a_new_interpreter(more: dict[str, str], tmp_path: Path) -> None:
    assert not may_fork(environment(tmp_path, **more))
    assert may_fork(environment(tmp_path, MESH_NAME="mine", LOGNAME="somebody"))


def test_so_does_what_a_child_would_inherit(tmp_path: Path) -> None:
    """A limit on files, or another mask of files, holds for commands too."""
    import resource

    env = environment(tmp_path)
    assert may_fork(env)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, before[1]))
    try:
        assert not may_fork(env)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    mask = os.umask(0o027)
    try:
        assert mask == 0o027 or not may_fork(env)
    finally:
        os.umask(mask)
    assert may_fork(env)


def test_an_engine_host_is_forked_and_ends_with_its_daemon(tmp_path: Path) -> None:
    words = ("--port", "0", "--no-mdns", "--device", "cpu", "--name", "w")
    with daemon("worker", *words, env=environment(tmp_path), log=tmp_path / "log") as started:
        (host,) = children(started.process.pid)
        assert hosts_of(started.process.pid) == [host]
        assert started.stop(signal.SIGKILL) == -signal.SIGKILL
        wait_for(lambda: not Path(f"/proc/{host}").exists())
        wait_for(lambda: not hosts_of(started.process.pid))
