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
    assert go_on("x", 1.0, tmp_path / "other", 5) == 0
    assert seen.read_text().split()[3:] == ["0+5", "5+2"]


def test_a_batch_that_fails_is_kept_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "batch.py"
    script.write_text(
        "import sys\nif sys.argv[1] == '1': sys.exit('seed 1 broke an invariant')\n"
        "print('seed', sys.argv[1], 'held, says', sys.argv[2])"
    )
    runs = {"x": Run("seeds", 3, 1, lambda first, count: (str(script), str(first), "two words"))}
    monkeypatch.setattr(long_run, "RUNS", runs)
    assert go_on("x", 1.0, tmp_path) == 1
    tally = Tally.load(tmp_path / "x.json")
    assert (tally.count, tally.next) == (3, 4), "what failed does not count, and its seeds are not tried again"
    assert tally.last == ["seed 3 held, says two words"]
    (failure,) = tally.failures
    assert failure == {"command": f"{script} 1 'two words'", "output": "seed 1 broke an invariant"}
    assert go_on("x", 1.0, tmp_path) == 1, "no success while a failure is kept"
    tally.failures.clear()
    tally.save(tmp_path / "x.json")
    assert go_on("x", 1.0, tmp_path) == 0


def test_a_run_whose_batches_all_fail_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its folder was removed: it went on until its time was over."""
    runs = {"x": Run("seeds", 9, 1, lambda first, count: (str(tmp_path / "gone.py"), str(first)))}
    monkeypatch.setattr(long_run, "RUNS", runs)
    assert go_on("x", 1.0, tmp_path) == 1
    assert Tally.load(tmp_path / "x.json").next == long_run.IN_A_ROW_MAX
    for _ in range(8):
        go_on("x", 1.0, tmp_path)
    failures = Tally.load(tmp_path / "x.json").failures
    assert len(failures) == long_run.FAILURES_KEPT
    assert [failures[at]["command"].rpartition(" ")[2] for at in (0, 1, -1)] == ["0", "1", "26"], "the first are kept"


def test_a_batch_that_hangs_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a process may take longer to begin than it has; then it gets more time."""
    assert any(hung_once(tmp_path / str(seconds), monkeypatch, seconds) for seconds in (1, 5, 25))


def hung_once(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> bool:
    """Whether of two batches the one that hangs was kept, with what it said, and the other one was done."""
    folder.mkdir()
    script = folder / "batch.py"
    script.write_text("import sys, time; print('at work', flush=True); sys.argv[1:] == ['0'] and time.sleep(600)")
    runs = {"x": Run("seeds", 1, 1, lambda first, count: (str(script), str(first)), seconds_max=float(seconds))}
    monkeypatch.setattr(long_run, "RUNS", runs)
    assert go_on("x", 0.02, folder) == 1
    tally = Tally.load(folder / "x.json")
    assert all(f"it hung for {seconds} s" in failure["output"] for failure in tally.failures)
    outputs = [failure["output"] for failure in tally.failures]
    return tally.count == 1 and outputs == [f"at work\nit hung for {seconds} s"]


def test_a_tally_without_its_newer_fields_goes_on(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"count": 7, "seconds": 1.0, "failures": []}')
    assert Tally.load(tmp_path / "x.json") == Tally(count=7, next=7, seconds=1.0)


@pytest.mark.parametrize("name", long_run.RUNS)
def test_every_run_names_files_that_are_there(name: str) -> None:
    run = long_run.RUNS[name]
    files = [word for word in run.command(0, run.batch) if word.endswith(".py")]
    assert files and all((long_run.ROOT / file).is_file() for file in files)
    assert 0 < run.batch <= run.wanted
