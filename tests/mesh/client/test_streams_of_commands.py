"""Commands whose output has no place: a full disk, a reader that left, streams that were closed before they began."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.commands import command, environment

from mesh.commands.exit_codes import FAILED, OK, USAGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it has /dev/full")
LIST = ("keys", "list")


def asked(tmp_path: Path, redirection: str, *arguments: str, buffered: bool = True) -> subprocess.CompletedProcess[str]:
    env = environment(tmp_path, PYTHONUNBUFFERED="" if buffered else "1")
    line = ["sh", "-c", f'"$@" {redirection}', "sh", *command("coord", *arguments)]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_is_one_line_and_an_exit_code(tmp_path: Path, buffered: bool) -> None:
    done = asked(tmp_path, ">/dev/full", *LIST, buffered=buffered)
    assert done.stderr == "mesh-coord: the output cannot be written (cause: No space left on device)\n"
    assert done.returncode == FAILED


def test_an_error_that_cannot_be_written_keeps_its_exit_code(tmp_path: Path) -> None:
    done = asked(tmp_path, "2>/dev/full", "keys", "rm", "nothing")
    assert (done.stdout, done.returncode) == ("", USAGE)


def test_a_command_without_stdout_does_its_work(tmp_path: Path) -> None:
    done = asked(tmp_path, ">&-", *LIST)
    assert (done.stderr, done.returncode) == ("", OK)


def test_what_is_for_a_closed_stderr_is_not_among_the_results(tmp_path: Path) -> None:
    done = asked(tmp_path, "2>&-", "keys", "rm", "nothing", "--json")
    assert (done.stdout, done.returncode) == ("", USAGE)


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_left_is_no_error(tmp_path: Path, buffered: bool) -> None:
    done = asked(tmp_path, "| true", *LIST, buffered=buffered)
    assert (done.stderr, done.returncode) == ("", OK)
