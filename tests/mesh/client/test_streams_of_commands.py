"""Commands whose output has no place: a full disk, a reader that left, streams that were closed before they began."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.commands import command, environment

from mesh.commands.exit_codes import FAILED, OK, USAGE
from mesh.util.refusals import refusal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it has /dev/full")
LIST = ("keys", "list")


def asked(
    tmp_path: Path, redirection: str, *arguments: str, buffered: bool = True, **more: str
) -> subprocess.CompletedProcess[str]:
    env = environment(tmp_path, PYTHONUNBUFFERED="" if buffered else "1", **more)
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


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [("--version",), ("--help",), ("nodes", "--help")])
def test_help_and_the_version_are_output_as_any_other(tmp_path: Path, words: tuple[str, ...], buffered: bool) -> None:
    done = asked(tmp_path, ">/dev/full", *words, buffered=buffered)
    assert done.stderr == "mesh-coord: the output cannot be written (cause: No space left on device)\n"
    assert done.returncode == FAILED
    done = asked(tmp_path, "| true", *words, buffered=buffered)
    assert (done.stderr, done.returncode) == ("", OK)


def test_a_wrong_flag_keeps_its_exit_code_where_nothing_can_be_written(tmp_path: Path) -> None:
    done = asked(tmp_path, ">/dev/full", "nothing", buffered=False)
    assert "invalid choice: 'nothing'" in done.stderr and done.returncode == USAGE


def test_what_the_encoding_of_the_output_does_not_have_is_its_code(tmp_path: Path) -> None:
    assert asked(tmp_path, "", "keys", "create", "J\u00f6rg \u673a", PYTHONIOENCODING="utf-8").returncode == OK
    for encoding, shown in (
        ("ascii", "J\\xf6rg \\u673a"),
        ("cp1252", "J\u00f6rg \\u673a"),
        ("utf-8", "J\u00f6rg \u673a"),
    ):
        env = environment(tmp_path, PYTHONIOENCODING=encoding)
        done = subprocess.run(command("coord", *LIST), env=env, capture_output=True, timeout=120, check=False)
        assert (done.stderr, done.returncode) == (b"", OK)
        assert shown in done.stdout.decode(encoding)


def test_ranks_whose_lines_have_no_place_end_with_one_line(tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text("print('a line')")
    done = asked(tmp_path, ">/dev/full", "launch", "-n", "1", str(script))
    assert done.stderr == "mesh-coord: the output cannot be written (cause: No space left on device)\n"
    assert done.returncode == FAILED


@pytest.mark.parametrize("words", [("logs", ""), ("status", ""), ("nodes", "pause", "\udcff"), ("cancel", "x" * 257)])
def test_what_is_no_name_is_refused_before_anybody_is_asked(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = asked(tmp_path, "", *words)
    assert "is no name: one has 1 to 256 characters" in done.stderr and done.returncode == USAGE


def test_lines_for_a_model_that_are_no_text_are_named(tmp_path: Path) -> None:
    env = environment(tmp_path, PYTHONIOENCODING="utf-8:strict")
    chat = command("coord", "chat", "tiny", "--url", "http://127.0.0.1:1")
    done = subprocess.run(chat, env=env, input=b"a\xff\n", capture_output=True, timeout=120, check=False)
    assert b"stdin is no text" in done.stderr and b"Traceback" not in done.stderr and done.returncode == USAGE


@pytest.mark.parametrize("words", [("nodes",), ("serve", "--no-mdns"), ("promote",)])
def test_a_folder_that_the_system_refuses_is_one_line_and_an_exit_code(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As one that is root's, since a command was once run with sudo; no name is so long for any user."""
    done = asked(tmp_path, "", *words, XDG_STATE_HOME=str(tmp_path / ("x" * 300)))
    assert done.stderr.startswith("mesh-coord: the system refuses what this command needs (cause: [Errno 36]"), done
    assert done.stderr.count("\n") == 1
    assert (done.stdout, done.returncode) == ("", USAGE)


def test_what_is_another_users_is_not_called_a_limit() -> None:
    assert "Make it yours again" in str(refusal("a file", PermissionError(13, "Permission denied")))
    assert "ulimit" in str(refusal("a file", OSError(24, "Too many open files")))
