"""Progress: what a training run reports of itself, and how it is shown.

A notebook and a terminal get a bar, anything else a line now and then.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

from wire.system.steady_log import steady_logger

from ..util.units import counted, size_text, time_text

log = steady_logger("graph_mesh.training")
LINE_S = 10.0  # between two lines where there is no terminal
FRAME_S = 0.1  # between two changes of a bar


@dataclass(frozen=True, slots=True)
class StepReport:
    """What is known of one step.

    Parameters
    ----------
    step : int
        Its number, from 1.
    epoch : int
        Its epoch, from 0.
    loss : float
        The mean over its rows.
    norm : float
        The global norm of the gradients before they are clipped.
    skipped : bool
        Whether it held NaN or Inf, and so changed nothing.
    rows : int
        The rows of the data in it.
    workers : int
        How many workers computed it.
    sent_bytes : int
        Bytes that its ranks exchanged and were fed.
    shares : mapping of str to int, optional
        Rows of a whole step by worker, with padding; empty if that is not known.

    Examples
    --------
    >>> from mesh.training import StepReport
    >>> report = StepReport(step=1, epoch=0, loss=0.5, norm=1.0, skipped=False, rows=64, workers=2, sent_bytes=100)
    >>> report.loss
    0.5
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
    """What a call of `fit` did.

    Parameters
    ----------
    losses : list of float, optional
        The loss of every step.
    skipped : list of int, optional
        The numbers of steps that held NaN or Inf.
    rows : int, optional
        Rows of the data that were trained on.
    redone : int, optional
        Steps that were done once more, since their state died with its workers.
    seconds : float, optional
        Seconds in all.

    Examples
    --------
    >>> from mesh.training import History
    >>> History([2.0, 1.0], rows=128, seconds=2.0)
    <History: 2 steps, loss 2 to 1, 128 rows in 2 s>
    >>> History(rows=128, seconds=2.0).rows_per_s
    64.0
    """

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
        """Rows per second."""
        return self.rows / self.seconds if self.seconds else 0.0


class Callback:
    """What hears of a run: derive a class and override the methods you need.

    Notes
    -----
    Methods are called in the thread of `fit`; an error in one ends the run, and the state so far is kept.

    Examples
    --------
    >>> from mesh.training import Callback
    >>> class Print(Callback):
    ...     def on_step(self, report):
    ...         print(report.step, report.loss)
    ...     def on_epoch(self, epoch, losses):
    ...         print("epoch", epoch, sum(losses))
    ...     def on_checkpoint(self, step, path):
    ...         print("saved", step)
    ...     def on_workers(self, workers):
    ...         print(workers, "workers")
    >>> callback = Print()
    >>> callback.on_epoch(0, [1.0, 0.5])
    epoch 0 1.5
    >>> callback.on_workers(3)
    3 workers
    """

    def on_step(self, report: StepReport) -> None:
        """Hear that a step is done on all workers, or was skipped on all.

        Parameters
        ----------
        report : StepReport
            The step.

        Examples
        --------
        >>> from mesh.training import StepReport
        >>> report = StepReport(step=1, epoch=0, loss=0.5, norm=1.0, skipped=False, rows=64, workers=2, sent_bytes=100)
        >>> from mesh.training import Callback
        >>> Callback().on_step(report)
        """

    def on_epoch(self, epoch: int, losses: list[float]) -> None:
        """Hear that an epoch is over.

        Parameters
        ----------
        epoch : int
            Its number, from 0.
        losses : list of float
            The losses of its steps.
        """

    def on_checkpoint(self, step: int, path: Any) -> None:
        """Hear that a checkpoint is on disk.

        Parameters
        ----------
        step : int
            Its step.
        path : Path
            Its manifest.

        Examples
        --------
        >>> from mesh.training import Callback
        >>> Callback().on_checkpoint(1, None)
        """

    def on_workers(self, workers: int) -> None:
        """Hear how many workers compute from now on.

        Parameters
        ----------
        workers : int
            Their number; 0 if there are too few, and the run waits.
        """


class Display(Protocol):
    """A place where progress is shown: `show` replaces the line of the latest step, `say` writes one that stays."""

    pause_s: float  # at least, between two lines of steps

    def show(self, done: int, line: str) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Plain lines on stderr, for logs."""

    pause_s = LINE_S

    def show(self, done: int, line: str) -> None:
        self.say(line)

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None: ...


class Nowhere:
    """No place: what it was shown on is gone."""

    pause_s = math.inf

    def show(self, done: int, line: str) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class RichBar:
    """A bar on a terminal, drawn by rich."""

    pause_s = FRAME_S

    def __init__(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True), expand=True)
        self._task = self._bar.add_task("", total=total)

    def show(self, done: int, line: str) -> None:
        from rich.markup import escape

        self._bar.start()
        self._bar.update(self._task, completed=done, description=escape(line))

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


class NotebookBar:
    """A bar in a notebook, drawn by tqdm."""

    pause_s = FRAME_S

    def __init__(self, total: int | None) -> None:
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, unit="step")

    def show(self, done: int, line: str) -> None:
        self._bar.set_description_str(line, refresh=False)
        self._bar.update(done - self._bar.n)

    def say(self, line: str) -> None:
        self._bar.write(line, file=sys.stderr)

    def close(self) -> None:
        self._bar.refresh()
        self._bar.close()


def display_for(total: int | None) -> Display:
    """tqdm's bar in a notebook where tqdm is installed, rich's on a terminal, and lines elsewhere.  Where there is no
    stderr, or a program has put something of its own there that is no file, nothing is shown."""
    try:
        return _display_here(total)
    except Exception as error:  # of a program's own stderr, or of the library that draws
        log.warning("progress is not shown: %s", error)
        return Nowhere()


def _display_here(total: int | None) -> Display:
    if "ipykernel" in sys.modules and find_spec("tqdm") is not None:
        return NotebookBar(total)
    return RichBar(total) if sys.stderr.isatty() else Lines()


class Progress(Callback):
    """Loss, samples per second and bytes per step, shown on stderr or in the notebook.

    Parameters
    ----------
    steps : int or None
        The number of steps of the run, None if it is not known.
    display : Display, optional
        Where progress is shown; `display_for` chooses by default.
    """

    def __init__(self, steps: int | None, display: Display | None = None) -> None:
        self._steps = steps
        self._display = display or display_for(steps)
        self._begun_s = self._shown_s = time.monotonic()
        self._rows = self._done = 0

    def on_step(self, report: StepReport) -> None:
        """Show the step, unless another one was shown just now."""
        self._rows, self._done = self._rows + report.rows, self._done + 1
        now_s = time.monotonic()
        if now_s - self._shown_s < self._display.pause_s and self._done != self._steps:
            return
        self._shown_s = now_s
        rate = self._rows / max(now_s - self._begun_s, 1e-9)
        line = (
            f"step {report.step}, epoch {report.epoch}: loss {report.loss:.4g}, {rate:.0f} samples/s, "
            f"{size_text(report.sent_bytes)}/step, {counted(report.workers, 'worker')}"
        )
        if len({*report.shares.values()}) > 1:
            line += f" ({', '.join(f'{name} {rows}' for name, rows in report.shares.items())} rows)"
        self._tell(lambda: self._display.show(self._done, line))

    def on_workers(self, workers: int) -> None:
        """Say that the run waits, if there are too few workers."""
        if not workers:
            self._tell(lambda: self._display.say("there are too few workers: waiting for more"))

    def close(self) -> None:
        """Show nothing more."""
        self._tell(lambda: self._display.close())

    def _tell(self, show: Callable[[], None]) -> None:
        """Show something; a terminal or a pipe that is gone costs the progress, and not the run."""
        try:
            show()
        except Exception as error:  # whatever it is: rich before 14.1 has errors of its own, beside a program's bar
            self._display = Nowhere()
            log.warning("progress is shown no longer: %s", error)


__all__ = ["Callback", "History", "Progress", "StepReport"]
