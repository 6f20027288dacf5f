"""Profile: where the time of training went, by worker.

MESH_PROFILE=1 tells it on stderr when `fit` ends; MESH_PROFILE=2 also writes a Chrome trace, `mesh-trace.json` in the
working folder or where MESH_TRACE says, for chrome://tracing or ui.perfetto.dev.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LEVELS = ("0", "1", "2")
TIMES = ("compute_s", "wait_s", "exchange_s", "rest_s")  # of a span; the rest is messages


class Profile:
    """Spans of steps, as sessions have them; nothing unless MESH_PROFILE asks for it."""

    def __init__(self) -> None:
        asked = os.environ.get("MESH_PROFILE", "0")
        self._level = int(asked) if asked in LEVELS else 0
        self._spans: list[Any] = []

    def take(self, spans: Iterable[Any]) -> None:
        """What a session did that ends now."""
        if self._level:
            self._spans += spans

    def tell(self) -> None:
        """Say it, where it was asked for."""
        if self._level:
            print("\n".join(table(self._spans)), file=sys.stderr, flush=True)
        if self._level > 1:
            path = Path(os.environ.get("MESH_TRACE", "mesh-trace.json"))
            path.write_text(json.dumps({"traceEvents": list(events(self._spans))}))
            print(f"a trace of {len(self._spans)} steps of workers is in {path}", file=sys.stderr, flush=True)


def table(spans: Iterable[Any]) -> list[str]:
    """Means per step of each worker."""
    by_worker: dict[str, list[Any]] = {}
    for span in spans:
        by_worker.setdefault(span.worker, []).append(span)
    titles = "".join(f"{title:>12}" for title in ("compute ms", "inputs ms", "exchange ms", "messages ms"))
    lines = [f"{'worker':20} {'steps':>6}{titles} {'in B':>9} {'out B':>9}"]
    for worker, mine in sorted(by_worker.items()):
        count = len(mine)
        times = [sum(getattr(span, name) for span in mine) * 1e3 / count for name in TIMES]
        sizes = [sum(getattr(span, name) for span in mine) // count for name in ("bytes_in", "bytes_out")]
        means = "".join(f"{each:12.2f}" for each in times)
        lines.append(f"{worker:20} {count:6}{means} {sizes[0]:9} {sizes[1]:9}")
    return lines


def events(spans: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """A span as Chrome has them, microseconds: waiting for inputs, then computing and exchanging."""
    for span in spans:
        waited_s = span.began_s + span.wait_s
        pieces = (("inputs", span.began_s, waited_s), (f"step {span.step}", waited_s, span.ended_s))
        for name, began_s, ended_s in pieces:
            yield {
                "name": name,
                "ph": "X",
                "pid": span.worker,
                "tid": "steps",
                "ts": began_s * 1e6,
                "dur": max(0.0, ended_s - began_s) * 1e6,
                "args": {"compute_ms": span.compute_s * 1e3, "bytes_in": span.bytes_in, "bytes_out": span.bytes_out},
            }
