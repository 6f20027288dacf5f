"""What a peer said is shown so that it neither reaches a terminal as it is nor is taken for a line of its own."""

from __future__ import annotations

import json
import logging
from collections import Counter

import pytest

from mesh.commands import exit_codes
from mesh.commands.tables import _print_rich, print_table
from wire.errors import NodeLost
from wire.system.log_ring import LogRing
from wire.text import printable, printable_lines

EVIL = "\x1b[2J\x1b]0;PWNED\x07bad\n17:00:00 INFO forged \x9b31m"
SHOWN = "\\x1b[2J\\x1b]0;PWNED\\x07bad\\n17:00:00 INFO forged \\x9b31m"


def test_what_prints_is_left_alone() -> None:
    for text in ("", "desk", "Schreibtisch für Anna", "机器", 'a "b"', "back\\slash"):
        assert printable(text) == printable_lines(text) == text


def test_control_characters_and_line_breaks_are_escaped() -> None:
    assert printable(EVIL) == SHOWN
    assert printable_lines(EVIL).split("\n") == [SHOWN.partition("\\n")[0], "    " + SHOWN.partition("\\n")[2]]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_has_one_line_for_what_was_said(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    ring = LogRing(as_json)
    ring.emit(logging.LogRecord("graph_mesh", logging.WARNING, "", 0, "%s: left", (EVIL,), None))
    ring.close()
    (line,) = ring.lines
    said = capsys.readouterr().err
    assert "\x1b" not in line + said and "\x9b" not in line + said
    if as_json:
        assert json.loads(said)["message"] == f"{EVIL}: left"
    else:
        assert [part.startswith("    ") for part in said.splitlines()] == [False, True]


def test_a_narrow_terminal_shows_all_of_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ("a3jdga6f", "worker, untrusted", "[fd00:0:1234:5678:9abc:def0:1234:5678]:38761")
    for columns in (10, 40, 80):  # the first has no room for eight columns
        monkeypatch.setenv("COLUMNS", str(columns))
        header = ("id", "role", "address", *("more" for _ in range(5 if columns == 10 else 0)))
        _print_rich(header, [(*row, *header[len(row) :])])
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= columns for line in lines)
        shown = "".join(lines)
        assert Counter(shown.replace(" ", "")) >= Counter("".join(row).replace(" ", ""))


def test_tables_and_errors_of_commands_show_it_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "state"), [(EVIL, "healthy")])
    error = NodeLost(f"it said {EVIL}", node=EVIL)
    error.log_lines = (EVIL,)

    def fails() -> int:
        raise error

    exit_codes.run_command("mesh-coord", fails)
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err and "\x9b" not in shown.out + shown.err
    assert SHOWN in shown.err
