"""The file of a kernel trace: whole after every flush, bounded, and no fault of a run where a disk refuses it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from worker.engine.kernel_rows import KernelRow, Span
from worker.engine_host.kernel_trace import WAITING_BYTES_MAX, KernelTrace

ROW = KernelRow("row", (3, 4), 64, 32, 300, ((1, 0),))


def made(path: Path, bytes_max: int = 1 << 20) -> KernelTrace:
    trace = KernelTrace(path, "anna, native", bytes_max)
    trace.know([ROW], {3: "exp", 4: "reduce_sum"}, bytes(32))
    return trace


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def test_it_is_whole_after_every_flush(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    trace = made(path)
    assert [event["name"] for event in events(path)] == ["process_name"]
    for number in range(1, 4):
        trace(Span((1, 0), "thread 0", number, number + 0.5))
        trace.flush()
        found = [event for event in events(path) if event["ph"] == "X"]
        assert [event["ts"] for event in found] == [1e6 * at for at in range(1, number + 1)]
    assert found[0]["name"] == "row: exp reduce_sum" and found[0]["dur"] == 500_000
    assert found[0]["args"]["nodes"] == [3, 4] and found[0]["args"]["flops"] == 300
    assert [event["args"]["name"] for event in events(path) if event["ph"] == "M"] == ["anna, native", "thread 0"]


def test_it_grows_to_its_bound_and_says_that_it_is_full(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, most = tmp_path / "trace.json", 2_000
    trace = made(path, most)
    for number in range(100):
        trace(Span((1, 0), "thread 0", number, number + 0.5))
        trace.flush()
    assert trace.full and path.stat().st_size <= most
    kept = [event["ts"] for event in events(path) if event["ph"] == "X"]
    assert kept == [1e6 * at for at in range(len(kept))] and 0 < len(kept) < 100
    said = capfd.readouterr().err
    assert f"kernels are traced to {path}, up to" in said and said.count("is full: later kernels are not in it") == 1


def test_what_one_run_tells_does_not_collect_in_memory(tmp_path: Path) -> None:
    path, count = tmp_path / "trace.json", 3 * WAITING_BYTES_MAX // 128
    trace = made(path, 1 << 30)
    for number in range(count):
        trace(Span((1, 0), "thread 0", number, number + 0.5))
    written = path.stat().st_size
    trace.flush()
    assert path.stat().st_size - written <= WAITING_BYTES_MAX + 1_000, "the last ones waited"
    assert [event["ts"] for event in events(path) if event["ph"] == "X"] == [1e6 * at for at in range(count)]


def test_a_disk_that_refuses_costs_the_trace_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    trace = made(tmp_path / "file" / "trace.json")
    trace(Span((1, 0), "thread 0", 1.0, 2.0))
    trace.flush()
    assert trace.full
    assert "kernels cannot be traced to" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no files")
def test_a_disk_that_is_full_in_the_middle_of_a_write_leaves_what_was_there_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import resource

    path = tmp_path / "trace.json"
    trace = made(path)
    trace(Span((1, 0), "thread 0", 1.0, 2.0))
    trace.flush()
    before, limits = events(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    trace(Span((1, 0), "thread 0", 2.0, 3.0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        trace.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert trace.full and events(path) == before
    assert "ends here" in capfd.readouterr().err
