"""What processes hold: memory, threads, open files; and what they say themselves of their tasks and device memory.

Processes started within `asking` (and this one, after it) answer `Asked.tell`.  Linux only: it reads /proc.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.processes.worker_process import opened_by

ROOT = Path(__file__).resolve().parents[3]
SITE = Path(__file__).with_name("asked")
TELL_S = 120.0
AGAIN_S = 5.0  # Python notes a signal that comes just before a system call only after it
MEMORY_FOLDER = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Footprint:
    """One process as its system sees it; `files` are open ones by kind: socket, pipe, anon_inode or file."""

    rss_kib: int
    anonymous_kib: int  # of it, what is no file: heap and stacks
    threads: int
    files: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process as it sees itself."""

    tasks: Mapping[str, int]  # not done, by coroutine
    device_bytes: int
    blocks: int  # Python's own allocations
    objects: Mapping[str, int]  # those the garbage collector knows, by type
    garbage: int  # what it just collected
    grew: Sequence[str] = field(default=())  # where ASK_TRACE is set


def footprint(pid: int) -> Footprint:
    rollup = dict(_rows(Path(f"/proc/{pid}/smaps_rollup")))
    status = dict(_rows(Path(f"/proc/{pid}/status")))
    return Footprint(_number(rollup["Rss"]), _number(rollup["Anonymous"]), _number(status["Threads"]), open_files(pid))


def open_files(pid: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for path in opened_by(pid):
        kinds["file" if path.startswith("/") else path.partition(":")[0]] += 1
    return kinds


def shared_files(pids: Sequence[int]) -> int:
    """Files in the shared-memory directories that these processes own; each holds its lock open."""
    owned = {
        Path(path).parent for pid in pids for path in opened_by(pid) if path.startswith(f"{MEMORY_FOLDER}/graph-mesh-")
    }
    return sum(len(names) for folder in owned for _, _, names in os.walk(folder))


def files_in(folder: Path) -> Counter[str]:
    """How many files lie below a folder, by the folder they are in."""
    return Counter({str(Path(at).relative_to(folder)): len(names) for at, _, names in os.walk(folder) if names})


def per_job(jobs: Sequence[int], amounts: Sequence[float], stretches: Sequence[int]) -> float:
    """The slope, with the least squares, of straight lines through these points, one for each stretch and all as steep.

    `stretches` has a number for every point, the same for those of one stretch.
    """
    above = below = 0.0
    for stretch in set(stretches):
        points = [(x, y) for x, y, of in zip(jobs, amounts, stretches, strict=True) if of == stretch]
        mean_x, mean_y = (sum(each) / len(points) for each in zip(*points, strict=True))
        above += sum((x - mean_x) * (y - mean_y) for x, y in points)
        below += sum((x - mean_x) ** 2 for x, _ in points)
    return above / below


@dataclass(frozen=True, slots=True)
class Asked:
    """Asks processes what they hold."""

    folder: Path

    def tell(self, pid: int) -> ProcessReport:
        answer = self.folder / f"{pid}.json"
        answer.unlink(missing_ok=True)
        deadline_s = time.monotonic() + TELL_S
        asked_s = -math.inf
        while not answer.exists():
            now_s = time.monotonic()
            assert now_s < deadline_s, f"process {pid} says nothing"
            if now_s > asked_s + AGAIN_S:
                _signal(pid)
                asked_s = now_s
            time.sleep(0.01)
        said: dict[str, Any] = json.loads(answer.read_text())
        return ProcessReport(**said)


@contextmanager
def asking(folder: Path, trace: int = 0) -> Iterator[Asked]:
    """Processes started in here, and their children, can be asked; this one too."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join((str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")))
    changed = {"PYTHONPATH": paths, "ASK_FOLDER": str(folder), "ASK_TRACE": str(trace)}
    were = {name: os.environ.get(name) for name in changed}
    handler = signal.getsignal(signal.SIGUSR2)
    os.environ.update(changed)
    try:
        _load_here()
        yield Asked(folder)
    finally:
        signal.signal(signal.SIGUSR2, handler)
        for name, value in were.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _signal(pid: int) -> None:
    if pid == os.getpid():  # its main thread has to notice, and it may be in a system call
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
    else:
        os.kill(pid, signal.SIGUSR2)


def _load_here() -> None:
    spec = importlib.util.spec_from_file_location("asked_here", SITE / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip()


def _number(text: str) -> int:
    return int(text.split()[0])
