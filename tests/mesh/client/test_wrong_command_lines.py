"""A command line that is wrong is one line on stderr, as every other mistake: what is wrong, and where help is."""

from __future__ import annotations

import pytest

from mesh.commands import coord, worker
from mesh.commands.exit_codes import USAGE


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("mesh-coord", "the following arguments are required: VERB. See mesh-coord --help"),
        ("mesh-coord nodes --watsh", "unrecognized arguments: --watsh. See mesh-coord --help"),
        ("mesh-coord chat", "the following arguments are required: MODEL. See mesh-coord chat --help"),
        ("mesh-coord keys rm", "the following arguments are required: ID. See mesh-coord keys rm --help"),
        (
            "mesh-coord serve-model m --port 70000",
            "argument --port: '70000' is no port. Write a number from 0 to 65535. See mesh-coord serve-model --help",
        ),
        (
            "mesh-worker --port 80x",
            "argument --port: '80x' is no port. Write a number from 0 to 65535. See mesh-worker --help",
        ),
        ("mesh-worker --threads many", "argument --threads: invalid int value: 'many'. See mesh-worker --help"),
    ],
)
def test_a_wrong_command_line_is_one_line(line: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *words = line.split()
    parser = {"mesh-coord": coord.parser, "mesh-worker": worker.parser}[command]()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith(f": {error}\n")
