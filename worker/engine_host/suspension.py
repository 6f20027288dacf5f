"""Suspension of runs in an engine host: one thread computes at a time, and a suspended run keeps its own.

The thread of a run that is suspended waits, with all that it has computed so far.  A new thread goes on with the
daemon's messages in its place, until one of them resumes the run: then that thread ends, and the run's goes on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from wire.errors import OutOfMemory

from ..engine.host_messages import STOP_BYTES

SUSPEND = 1 << 63  # beside the number of a run in the stop cell: the run is to be suspended, not to end


def suspend_mark(run: int) -> bytes:
    """What the stop cell holds while a run is to be suspended."""
    return (run | SUSPEND).to_bytes(STOP_BYTES, "little")


class Suspension:
    """The suspended runs of an engine host.  `serve` takes messages until `resume` returns True."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._waiting: dict[int, threading.Event] = {}

    def suspend(self, run: int, say: Callable[[], None]) -> None:
        """Wait, in the thread of a run, until it is resumed.  Messages are taken meanwhile, after `say`, which tells
        the daemon.  A run for which there is no further thread goes on."""
        said, resumed = threading.Event(), threading.Event()
        try:
            threading.Thread(target=self._serve_after, args=(said,), name=f"after run {run}", daemon=True).start()
        except RuntimeError as error:
            print(f"a run is not suspended: {error}", file=sys.stderr, flush=True)
            return
        self._waiting[run] = resumed
        say()
        said.set()
        resumed.wait()  # the daemon resumes it, or ends this process

    def _serve_after(self, said: threading.Event) -> None:
        said.wait()
        self._serve()

    def resume(self, run: int) -> bool:
        """Whether the run was suspended: its thread goes on, and the caller's is to take no more messages."""
        resumed = self._waiting.pop(run, None)
        if resumed is not None:
            resumed.set()
        return resumed is not None


@dataclass(frozen=True, slots=True)
class Figures:
    """A time, and what the engine has moved until then; or the difference of two."""

    at_s: float = 0.0
    readback_s: float = 0.0
    uploaded_bytes: int = 0
    readback_bytes: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.at_s + other.at_s,
            self.readback_s + other.readback_s,
            self.uploaded_bytes + other.uploaded_bytes,
            self.readback_bytes + other.readback_bytes,
        )

    def __sub__(self, other: Figures) -> Figures:
        return Figures(
            self.at_s - other.at_s,
            self.readback_s - other.readback_s,
            self.uploaded_bytes - other.uploaded_bytes,
            self.readback_bytes - other.readback_bytes,
        )


class Interrupts:
    """What a run asks now and then: whether it is to stop, and where it can be suspended, whether it is to be.

    `suspend` takes the run's number and returns when it is resumed, with what passed meanwhile: the sum is `away`.  A
    run without it is not suspended.
    """

    def __init__(self, cell: memoryview, run: int, suspend: Callable[[int], Figures] | None) -> None:
        self.away = Figures()
        self._cell, self._run, self._suspend = cell, run, suspend
        self._stop, self._mark = run.to_bytes(STOP_BYTES, "little"), suspend_mark(run)

    def __call__(self) -> bool:
        return self._cell == self._stop

    def suspend(self, settle: Callable[[], object] | None) -> None:
        """Come here where the run can be suspended (`protocol.interrupted`)."""
        if self._suspend is not None and self._cell == self._mark:
            if settle is not None:
                settle()
            self.away += self._suspend(self._run)


class NoRoomYet(OutOfMemory):
    """The memory that suspended runs take is what is lacking."""
