"""A program whose calls of a mesh are interrupted at any moment, again and again, as by Ctrl-C.

    python -m support.processes.interrupted_calls WORKERS COUNT SECONDS

It ends after COUNT interrupts, or sooner after SECONDS.  It says how many there were, and then whether the mesh still
answers and is closed.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from mesh import Mesh

X = np.ones(20_000, np.float32)
HANGS_S = 120.0  # for what takes far less


class Interrupts:
    """KeyboardInterrupt in the main thread, `count` times."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self._random = random.Random(seed)
        signal.signal(signal.SIGALRM, self._interrupt)

    def within(self, call: Callable[[], object]) -> None:
        """Call again and again until the next one, which finalizers may swallow."""
        before = self.count
        try:
            signal.setitimer(signal.ITIMER_REAL, self._random.uniform(0.0005, 0.006))
            while self.count == before:
                call()
        except KeyboardInterrupt:
            pass

    def _interrupt(self, *_: object) -> None:
        self.count += 1
        raise KeyboardInterrupt


def main(workers: int, count: int, seconds: float) -> None:
    """Interrupt calls of every kind, and end as a program does."""
    interrupts = Interrupts(7)
    mesh = Mesh.builder().local(workers, engine="cpu").build() if workers else Mesh.builder().build()
    called = mesh.compile(lambda x: x * 2 + 1, X)
    session = mesh.session(lambda state, x: (state + x, state), X[:8], X[:8], mode="off")
    kinds: list[Callable[[], object]] = [
        lambda: called(X),
        lambda: mesh.submit(lambda x: x + 1, X[:8], mode="off").result(HANGS_S),
        lambda: session.step(X[:8]).result(HANGS_S),
        lambda: list(mesh.as_completed([session.step(X[:8]), session.step(X[:8])])),
        lambda: mesh.nodes,
    ]
    until_s = time.monotonic() + seconds
    while interrupts.count < count and time.monotonic() < until_s:
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        interrupts.within(kinds[interrupts.count % len(kinds)])
    print("interrupted", interrupts.count, flush=True)
    for ask in (lambda: print("answers", called(X)[0], session.step(X[:8]).result() is not None), mesh.close):
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        ask()
    print("threads", sum(thread.name == "mesh" for thread in threading.enumerate()), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
