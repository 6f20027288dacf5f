"""Flags of a worker that cannot be, each one line and an exit code; and more threads than there are cores."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from support.processes.commands import environment, run

import mesh
from mesh.commands import exit_codes
from wire.errors import ConfigError
from wire.limits import THREADS_MAX
from worker.cpu import engine
from worker.cpu.engine import fastest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--threads", f"{THREADS_MAX + 1}"), "Give 1 to 1024"),
        (("--threads", "0"), "Give 1 to 1024"),
        (("--device", "\udcff"), "is no name"),
        (("--kernel-dir", "\udcff"), "is not UTF-8. Name another one: --kernel-dir DIR"),
        (("--cache-dir", "\udcff"), "is not UTF-8. Name another one: --kernel-dir DIR"),
    ],
)
def test_what_cannot_be_is_said_before_a_host_starts(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    env = environment(tmp_path, MESH_NAME="flags")
    done = run("worker", "--no-mdns", "--port", "0", *words, env=env, cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (exit_codes.USAGE, True), done.stderr


def test_a_program_is_told_the_same_of_threads() -> None:
    with pytest.raises(ConfigError, match="at most 1024 threads"):
        mesh.Mesh.builder().local(1, threads=THREADS_MAX + 1)


def test_threads_beyond_the_cores_make_nothing_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0.0, 6.0)  # of processor time, six for each call
    monkeypatch.setattr(time, "process_time", lambda: next(seconds))
    monkeypatch.setattr(engine, "core_count", lambda: 3)
    assert [fastest(lambda: None, threads) for threads in (1, 2, 3, 300)] == [6.0, 3.0, 2.0, 2.0]
