"""What an engine host writes to stderr is logged, but no driver fills the log or holds up the daemon by complaining."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from wire.bounds import HOST_LINES
from worker.config import WorkerConfig
from worker.engine.host_messages import STOP_BYTES, Open
from worker.engine_host.host_client import HostProcess
from worker.engine_host.stderr_lines import LAST_LINES_MAX, LINE_BYTES_MAX, MINUTE_S, StderrLines

FLOOD = """
import os
os.write(2, b"before it\\n")
for _ in range(50):
    os.write(2, b"a driver complains\\n" * 1000)
os.write(2, b"the last words")
os._exit(3)
"""


def test_lines_come_whole_and_in_order() -> None:
    said = StderrLines()
    assert said.take(b"one\ntwo\nth", 0.0) == ["one", "two"]
    assert said.take(b"ree\n\xff\n", 0.1) == ["three", "\ufffd"]
    assert said.take(b"x" * 9000 + b"\nrest", 0.2) == ["x" * LINE_BYTES_MAX]
    assert said.end() == ["rest"] and said.end() == []


def test_of_too_many_in_a_minute_the_rest_is_counted_and_the_last_are_kept() -> None:
    said = StderrLines(lines_max=3)
    assert said.take(b"1\n2\n", 0.0) == ["1", "2"]
    assert said.take(b"3\n4\n5\n", 1.0) == ["3"]
    assert said.take(b"6\n7", 2.0) == []
    assert said.take(b"\n8\n9\n", MINUTE_S) == ["(3 lines were left out here)", "7", "8", "9"]
    assert said.take(b"10\n11\n12\n13", MINUTE_S + 1.0) == []
    assert said.end() == ["10", "11", "12", "13"]
    flooded = StderrLines(lines_max=1)
    flooded.take(b"x\n" * 1000, 0.0)
    told, *last = flooded.end()
    assert (told, last) == (f"({999 - LAST_LINES_MAX} lines were left out here)", ["x"] * LAST_LINES_MAX)


async def test_a_host_that_complains_without_end_fills_no_log_and_its_last_words_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path)
    opening = Open(
        device="cpu", memory_bytes=0, threads=1, cache_dir=folder, measured_dir=folder, shared_dir=folder,
        stop_file="", parent_pid=os.getpid(), beat_s=1.0, trace="", worker="w", readable=(), sandboxed=False,
    )  # fmt: skip
    cell, command = memoryview(bytearray(STOP_BYTES)), [sys.executable, "-c", FLOOD]
    lost: list[object] = []
    host = HostProcess(opening, cell, WorkerConfig(), lambda *_: None, lambda *told: lost.append(told), command)
    await host.start()
    try:
        await host.exited.wait()
        while "the last words" not in caplog.text:
            await asyncio.sleep(0.01)
    finally:
        host.close()
    lines = [record.getMessage() for record in caplog.records if "engine host" in record.getMessage()]
    assert lines[0].endswith(": before it")
    assert lines[-1].endswith(": the last words")
    assert any("lines were left out here" in line for line in lines)
    assert len(lines) <= HOST_LINES.most + 2 * (LAST_LINES_MAX + 1)
