"""Long runs add up over sessions, and keep what failed."""

from __future__ import annotations

from pathlib import Path

import long_run
import pytest
from long_run import Run, Tally, go_on


def test_a_run_goes_on_where_it_stopped_and_ends_at_its_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    code = "import sys; open(sys.argv[1],'a').write(sys.argv[2]+'\\n')"
    script = tmp_path / "batch.py"
    script.write_text(code)
    runs = {"x": Run("things", 7, 3, lambda first, count: (str(script), str(seen), f"{first}+{count}"))}
    monkeypatch.setattr(long_run, "RUNS", runs)
    assert go_on("x", 0.0, tmp_path) == 0 and not seen.exists(), "no time, no batch"
    assert go_on("x", 1.0, tmp_path) == 0
    assert seen.read_text().split() == ["0+3", "3+3", "6+1"]
    assert go_on("x", 1.0, tmp_path) == 0
    assert len(seen.read_text().split()) == 3, "the count is reached"


def test_a_batch_that_fails_is_kept_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "batch.py"
    script.write_text("import sys\nif sys.argv[1] == '1': sys.exit('seed 1 broke an invariant')")
    runs = {"x": Run("seeds", 3, 1, lambda first, count: (str(script), str(first)))}
    monkeypatch.setattr(long_run, "RUNS", runs)
    assert go_on("x", 1.0, tmp_path) == 1
    tally = Tally.load(tmp_path / "x.json")
    assert tally.count == 3 and len(tally.failures) == 1
    assert "seed 1 broke an invariant" in tally.failures[0]["output"] and tally.failures[0]["command"].endswith(" 1")


@pytest.mark.parametrize("name", long_run.RUNS)
def test_every_run_names_files_that_are_there(name: str) -> None:
    run = long_run.RUNS[name]
    words = [word for text in run.command(0, run.batch) for word in text.split()]
    files = [word for word in words if word.endswith(".py")]
    assert files and all((long_run.ROOT / file).is_file() for file in files)
    assert 0 < run.batch <= run.wanted
