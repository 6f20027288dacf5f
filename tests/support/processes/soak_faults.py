"""The loop of both soaks: faults at a steady rate while programs ask a site, and samples of what its processes hold."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FILES_MAX = 1024  # of each process
SAMPLE_S = 10.0
WARM = 1 / 3  # of the half that is judged: who was killed last has to grow to its size
LATE_S = 45.0  # without an answer to one program: nothing more breaks until there is one, on a machine with much to do


class Answered(Protocol):
    """What programs said."""

    last_s: dict[str, float]  # when each had an answer
    wrong: list[str]


class Soaked(Protocol):
    """Processes that are asked, and may be broken."""

    judged: bool  # whether what lasts is not killed any more
    ended: list[str]  # processes that ended by themselves

    @property
    def answers(self) -> Answered: ...

    def fault(self) -> str: ...

    def sample(self) -> dict[str, float]: ...

    def finish(self, within_s: float) -> list[str]: ...


@dataclass(slots=True)
class Soak:
    """`samples` are (seconds from the beginning, what is held then by name); `done` counts faults by kind."""

    minutes: float
    seed: int
    began_s: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def run(
        self, site: Soaked, folder: Path, every_s: float, hung_s: float, also: Callable[[float], None] = lambda _: None
    ) -> None:
        """A fault every `every_s`; `also` is called before each with the seconds from the beginning.

        AssertionError if an answer is wrong, a process ends by itself, or a program waits longer than `hung_s`.
        """
        over = threading.Event()
        with (folder / "samples").open("w") as written, (folder / "faults").open("w") as told:

            def watch() -> None:
                while not over.wait(SAMPLE_S):
                    self.samples.append((time.monotonic() - self.began_s, site.sample()))
                    print(json.dumps(self.samples[-1]), file=written, flush=True)

            watching = threading.Thread(target=watch)
            watching.start()
            try:
                next_s = time.monotonic() + every_s
                while (at_s := time.monotonic() - self.began_s) < self.minutes * 60:
                    site.judged = at_s > self.minutes * 30
                    also(at_s)
                    now_s = time.monotonic()
                    waits = {name: now_s - last_s for name, last_s in site.answers.last_s.items()}
                    hung = {name: wait_s for name, wait_s in waits.items() if wait_s > hung_s}
                    self._check(site, [f"{name}: no answer for {wait_s:.0f} s" for name, wait_s in hung.items()])
                    late = [name for name, wait_s in waits.items() if wait_s > LATE_S]
                    what = f"nothing, since answers are late to {', '.join(late)}" if late else site.fault()
                    self.done[" ".join(what.split()[:2])] += 1
                    print(f"{at_s:.1f} {what}", file=told, flush=True)
                    time.sleep(max(0.0, next_s - time.monotonic()))
                    next_s = max(next_s, time.monotonic()) + every_s
            finally:
                over.set()
                watching.join()
        self._check(site, site.finish(hung_s))

    def _check(self, site: Soaked, failed: list[str]) -> None:
        found = [*failed, *site.ended, *site.answers.wrong]
        assert not found, "\n".join(found)

    @property
    def late(self) -> list[tuple[float, Mapping[str, float]]]:
        """The samples by which growth is judged."""
        return [(at_s, held) for at_s, held in self.samples if at_s > self.minutes * 30 * (1 + WARM)]

    def tell(self) -> None:
        """Print how long it was, and what broke."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        core = (used.ru_utime + used.ru_stime) / (time.monotonic() - self.began_s)
        faults = self.done.total() - self.done["nothing, since"]
        print(f"{self.minutes:g} minutes, seed {self.seed}: {faults} faults, {core:.2f} of a core")
        print(", ".join(f"{count} x {name}" for name, count in sorted(self.done.items())))


def few_files() -> None:
    """Let each process of a soak have few open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
