"""Progress: what a training run reports of itself, and how it is shown.  On a terminal there is a bar, elsewhere a line
now and then, and nothing when nobody asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..util.byte_sizes import counted, size_text, time_text

LINE_S = 10.0  # between two lines where there is no terminal
FRAME_S = 0.1
BAR_CHARS = 20


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: `loss` is the mean over its rows and `norm` that of its gradients, before they are clipped.

    A `skipped` step held NaN or Inf and changed nothing.  `sent_bytes` are what its ranks exchange and are fed.  Of a
    whole step each worker has so many rows by now, padding too, as `shares` has it; empty where that is not known.
    """

    step: int
    epoch: int
    loss: float
    norm: float
    skipped: bool
    rows: int
    workers: int
    sent_bytes: int
    shares: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, repr=False)
class History:
    """What `fit` did: `losses` of all steps, the numbers of those that were `skipped`, and seconds in all; `redone`
    steps were done once more, since the state after them died with its workers."""

    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    rows: int = 0
    redone: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        losses = f", loss {self.losses[0]:.4g} to {self.losses[-1]:.4g}" if self.losses else ""
        done = f"{counted(len(self.losses), 'step')}{losses}, {counted(self.rows, 'row')} in {time_text(self.seconds)}"
        return f"<History: {done}{f', {len(self.skipped)} skipped' if self.skipped else ''}>"

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


class Callback:
    """What can be heard of a run; every method may be overridden, and is called in the thread of `fit`."""

    def on_step(self, report: StepReport) -> None:
        """A step is done on all workers, or was skipped on all."""

    def on_epoch(self, epoch: int, losses: list[float]) -> None:
        """An epoch is over; the losses of its steps."""

    def on_checkpoint(self, step: int, path: Any) -> None:
        """A checkpoint is on disk."""

    def on_workers(self, workers: int) -> None:
        """So many compute from now on; 0: there are too few, and the run waits for more."""


class Progress(Callback):
    """Samples per second and bytes per step on stderr, of `steps` in all if that is known."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._begun_s = self._told_s = time.monotonic()
        self._rows = self._done = 0
        self._drawn = sys.stderr.isatty()

    def on_step(self, report: StepReport) -> None:
        """Show it, unless something was shown just now."""
        self._rows, self._done = self._rows + report.rows, self._done + 1
        now_s = time.monotonic()
        if now_s - self._told_s < (FRAME_S if self._drawn else LINE_S) and self._done != self._steps:
            return
        self._told_s = now_s
        rate = self._rows / max(now_s - self._begun_s, 1e-9)
        line = (
            f"step {report.step}, epoch {report.epoch}: loss {report.loss:.4g}, {rate:.0f} samples/s, "
            f"{size_text(report.sent_bytes)}/step, {counted(report.workers, 'worker')}"
        )
        if len({*report.shares.values()}) > 1:
            line += f" ({', '.join(f'{name} {rows}' for name, rows in report.shares.items())} rows)"
        if self._drawn:
            print(f"\r{self._bar()}{line}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def on_workers(self, workers: int) -> None:
        """Say why nothing goes on."""
        if not workers:
            self.close()
            print("there are too few workers: waiting for more", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing more will be shown."""
        if self._drawn and self._done:
            print(file=sys.stderr)

    def _bar(self) -> str:
        if not self._steps:
            return ""
        full = min(BAR_CHARS, BAR_CHARS * self._done // self._steps)
        return f"[{'#' * full}{'.' * (BAR_CHARS - full)}] "


__all__ = ["Callback", "History", "Progress", "StepReport"]
