"""Profiler: where the time of training went, by worker.

MESH_PROFILE=1 tells it on stderr when `fit` ends; MESH_PROFILE=2 also writes a Chrome trace, `mesh-trace.json` in the
working folder or where MESH_TRACE says, for chrome://tracing or ui.perfetto.dev.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wire.system.steady_log import steady_logger

from ..util.units import counted

if TYPE_CHECKING:
    from .worker_group import WorkerGroup

log = steady_logger("graph_mesh.training")
LEVELS = ("0", "1", "2")
TIMES = {
    "compute": "compute_s", "readback": "readback_s", "inputs": "wait_s", "exchange": "exchange_s",
    "encode": "encode_s", "messages": "rest_s",
}  # fmt: skip  # title and attribute of a span
BYTES = {
    "in B": "bytes_in", "out B": "bytes_out", "ranks B": "sent_bytes", "upload B": "uploaded_bytes",
    "read B": "readback_bytes",
}  # fmt: skip


class Profile:
    """The spans of steps, as sessions have them; nothing unless MESH_PROFILE asks for them."""

    def __init__(self) -> None:
        asked = os.environ.get("MESH_PROFILE", "0")
        self._level = int(asked) if asked in LEVELS else 0
        self._spans: list[Any] = []

    def watch(self, group: WorkerGroup) -> None:
        """Have a group that begins now keep the spans of all its steps, as many as there may be."""
        if self._level:
            group.profile()

    def take(self, group: WorkerGroup) -> None:
        """Keep the spans of a group that ends now."""
        if self._level:
            self._spans += group.spans

    def tell(self) -> None:
        """Write what was asked for; where that cannot be, as on a full disk, the run is done all the same."""
        try:
            if self._level:
                print("\n".join(table(self._spans)), file=sys.stderr, flush=True)
            if self._level > 1:
                path = Path(os.environ.get("MESH_TRACE", "mesh-trace.json"))
                path.write_text(json.dumps({"traceEvents": list(events(self._spans))}))
                steps = counted(len(self._spans), "step")
                print(f"a trace of {steps} of workers is in {path}", file=sys.stderr, flush=True)
        except (OSError, ValueError) as error:  # ValueError: stderr was closed
            log.warning("where the time of training went cannot be told: %s", error)


def table(spans: Iterable[Any]) -> list[str]:
    """The lines of a table of means per step, one line per worker."""
    by_worker: dict[str, list[Any]] = {}
    for span in spans:
        by_worker.setdefault(span.worker, []).append(span)
    titles = "".join(f"{title + ' ms':>12}" for title in TIMES) + "".join(f" {title:>9}" for title in BYTES)
    lines = [f"{'worker':20} {'steps':>6}{titles}"]
    for worker, mine in sorted(by_worker.items()):
        count = len(mine)
        times = [sum(getattr(span, name) for span in mine) * 1e3 / count for name in TIMES.values()]
        sizes = [sum(getattr(span, name) for span in mine) // count for name in BYTES.values()]
        means = "".join(f"{time:12.2f}" for time in times) + "".join(f" {size:9}" for size in sizes)
        lines.append(f"{worker:20} {count:6}{means}")
    return lines


def events(spans: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """The events of spans as Chrome has them, in microseconds: waiting for inputs, then the step and its parts.

    Parts of a step are sums: computing, reading back and exchanging take turns.
    """
    for span in spans:
        waited_s = span.began_s + span.wait_s
        figures = {f"{title}_ms": getattr(span, name) * 1e3 for title, name in TIMES.items()}
        figures |= {name: getattr(span, name) for name in BYTES.values()}
        yield _event(span, "inputs", span.began_s, waited_s, figures)
        yield _event(span, f"step {span.step}", waited_s, span.ended_s, figures)
        shares = {title: getattr(span, name) for title, name in TIMES.items() if title != "inputs"}
        whole_s = max(span.ended_s - waited_s, 0.0)
        scale = min(1.0, whole_s / (sum(shares.values()) or 1.0))  # devices of one worker compute at the same time
        at_s = waited_s
        for title, share_s in shares.items():
            if share_s > 0:
                yield _event(span, title, at_s, at_s + share_s * scale, figures)
                at_s += share_s * scale


def _event(span: Any, name: str, began_s: float, ended_s: float, figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": span.worker,
        "tid": "steps",
        "ts": began_s * 1e6,
        "dur": max(0.0, ended_s - began_s) * 1e6,
        "args": figures,
    }
