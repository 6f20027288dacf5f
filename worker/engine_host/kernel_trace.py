"""Kernel trace: when each kernel of an engine host ran, as a file that Perfetto and chrome://tracing load.

The file is whole after every flush: what is new is written over its last line, which closes the list again.  It is in
the trace event format, with times in microseconds of `time.perf_counter`, which on Linux and macOS all processes of a
machine share.  A lane of the engine, such as a thread, is a thread of the trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wire.bounds import TRACE_WAITS
from wire.limits import MIB
from wire.units import size_text

from ..engine.kernel_rows import KernelRow, Key, Span

BYTES_MAX = 64 * MIB  # of a file: some 400,000 kernels, which viewers still load
HEAD, BETWEEN, TAIL = b'{"traceEvents": [\n', b",\n", b"\n]}\n"
WAITING_BYTES_MAX = TRACE_WAITS.most  # one run may have millions of events
OPS_MAX = 8  # in a kernel's name


class KernelTrace:
    """A trace in the file `path` of the kernels that run; `process` is what viewers call it.

    What a disk refuses costs the trace, and nothing else.
    """

    def __init__(self, path: Path, process: str, bytes_max: int = BYTES_MAX) -> None:
        self.full = False  # there is no room for more, or the disk refused
        self._path = path
        self._bytes_max = bytes_max
        self._rows: dict[Key, tuple[str, Mapping[str, Any]]] = {}
        self._lanes: dict[str, int] = {}
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._end = 0  # where the tail begins
        self._event({"name": "process_name", "ph": "M", "args": {"name": process}})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            self._write(HEAD + self._waiting.pop() + TAIL, 0)
        except OSError as error:
            self._stop(f"kernels cannot be traced to {path}: {error.strerror}")
        else:
            _say(f"kernels are traced to {path.absolute()}, up to {size_text(bytes_max)}")

    def know(self, rows: Sequence[KernelRow], ops: Mapping[int, str], graph: bytes) -> None:
        """Kernels that may run from now on: their graph's hash, and its ops by node, as far as they are known."""
        for number, row in enumerate(rows):
            nodes = [node for node in row.nodes if node in ops]
            kinds = list(dict.fromkeys(ops[node] for node in nodes))
            shown = " ".join([*kinds[:OPS_MAX], *(["..."] if len(kinds) > OPS_MAX else [])])
            name = row.name if row.name.endswith(shown) else f"{row.name}: {shown}"
            figures = {"flops": row.flops, "read_bytes": row.read_bytes, "written_bytes": row.written_bytes}
            arguments = {
                "kernel": number,
                "nodes": [node for node in row.nodes if node in ops],
                **figures,
                "graph": graph.hex()[:16],
            }
            self._rows.update(dict.fromkeys(row.keys, (name, arguments)))

    def __call__(self, span: Span) -> None:
        """A kernel ran."""
        if self.full:
            return
        name, arguments = self._rows.get(span.key, ("kernel", {}))
        times = {"ts": span.began_s * 1e6, "dur": (span.ended_s - span.began_s) * 1e6}
        self._event({"name": name, "ph": "X", "tid": self._lane(span.lane), **times, "args": arguments})
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the events that wait, as far as there is room."""
        if not self._waiting or self.full:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        room = self._bytes_max - self._end - len(TAIL)
        count = used = 0
        for event in waiting:
            used += len(BETWEEN) + len(event)
            if used > room:
                break
            count += 1
        try:
            if count:
                self._write(BETWEEN + BETWEEN.join(waiting[:count]) + TAIL, self._end)
        except OSError as error:
            self._close_list()
            self._stop(f"the trace {self._path} ends here: {error.strerror}")
        if count < len(waiting):
            self._stop(f"the trace {self._path} is full: later kernels are not in it")

    def _lane(self, lane: str) -> int:
        if lane not in self._lanes:
            number = self._lanes[lane] = len(self._lanes) + 1
            self._event({"name": "thread_name", "ph": "M", "tid": number, "args": {"name": lane}})
        return self._lanes[lane]

    def _event(self, event: Mapping[str, Any]) -> None:
        self._waiting.append(json.dumps({"pid": os.getpid(), "tid": 0, **event}).encode())
        self._waiting_bytes += len(self._waiting[-1])

    def _write(self, data: bytes, at: int) -> None:
        os.lseek(self._file, at, os.SEEK_SET)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._end = at + len(data) - len(TAIL)

    def _close_list(self) -> None:
        """Leave the file as it was before a write that failed half-way, over the tail: the disk has those bytes."""
        with contextlib.suppress(OSError):
            os.lseek(self._file, self._end, os.SEEK_SET)
            os.write(self._file, TAIL)
            os.ftruncate(self._file, self._end + len(TAIL))

    def _stop(self, why: str) -> None:
        self.full = True
        self._waiting.clear()
        _say(why)


def _say(text: str) -> None:
    """The daemon logs it."""
    print(text, file=sys.stderr, flush=True)
