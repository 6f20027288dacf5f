"""Python loads this at the start of every process whose PYTHONPATH names this folder: the process then tells on SIGUSR2
what it holds, as JSON in a file named after its pid.  `support.processes.footprint` asks.

It knows no class of this project but by name, and a process that never hears the signal does nothing differently.
Where ASK_TRACE is set, allocations are traced, and each answer has those that grew since the first.
"""

from __future__ import annotations

import asyncio
import gc
import json
import linecache
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

FOLDER = os.environ.get("ASK_FOLDER", "")
TRACE = int(os.environ.get("ASK_TRACE", "0"))  # frames
GREW_SHOWN = 16
DEVICE_BYTES = {
    "Host": "_resident_bytes",
    "Device": "allocated_bytes",
}  # worker/engine_host/host.py, worker/wgsl/device.py

before: list[tracemalloc.Snapshot] = []


def tell(*_: object) -> None:
    garbage = gc.collect()
    objects = gc.get_objects()
    tasks = Counter(str(each.get_coro()) for each in objects if isinstance(each, asyncio.Task) and not each.done())
    names = Counter(type(each).__qualname__ for each in objects)
    held = [(each, DEVICE_BYTES.get(type(each).__name__, "")) for each in objects]
    answer = {
        "tasks": dict(Counter({_short(text): count for text, count in tasks.items()})),
        "device_bytes": sum(getattr(each, field, 0) for each, field in held if field),
        "blocks": sys.getallocatedblocks(),
        "garbage": garbage,
        "objects": dict(names.most_common(400)),
        "grew": _grew() if TRACE else [],
    }
    path = Path(FOLDER) / f"{os.getpid()}.json"
    writing = path.with_suffix(".writing")
    writing.write_text(json.dumps(answer))
    writing.replace(path)


def _short(text: str) -> str:
    """<coroutine object Daemon._stay_linked at 0x7f...> -> Daemon._stay_linked"""
    return text.removeprefix("<coroutine object ").partition(" at ")[0]


def _grew() -> list[str]:
    ours = [tracemalloc.Filter(False, path) for path in (tracemalloc.__file__, linecache.__file__, __file__)]
    now = tracemalloc.take_snapshot().filter_traces(ours)
    then = list(before)
    before.extend([] if then else [now])
    grown = now.compare_to(then[0], "traceback" if TRACE > 1 else "lineno")[:GREW_SHOWN] if then else []
    return [
        f"{each.size_diff / 1024:+.1f} KiB, {each.count_diff:+d}: {' <- '.join(reversed(each.traceback.format()))}"
        for each in grown
        if each.size_diff > 0
    ]


if FOLDER and hasattr(signal, "SIGUSR2"):
    signal.signal(signal.SIGUSR2, tell)
    if "mesh.commands.worker" in sys.orig_argv:
        sys.argv.append("--no-sandbox")  # an engine host in a sandbox may not write its answer, and would end of that
    if TRACE:
        tracemalloc.start(TRACE)
