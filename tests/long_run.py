"""Runs that take hours, in pieces: `script/test --long NAME --hours H` goes on where the last one stopped.

A run is a row of RUNS: how many of what it wants, and a command that does a batch of it from a seed on.  Counts, seeds
and failures add up in `bench/results/NAME.json`, written after every batch; a failed batch is kept with the end of its
output, and the run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT_LINES = 400  # kept of a batch that failed: a trace is at its end
FAILURES_KEPT = 20


@dataclass(frozen=True, slots=True)
class Run:
    """`batch` at a time until there are `wanted`; `command(first, count)` are Python's arguments."""

    what: str
    wanted: int
    batch: int
    command: Callable[[int, int], Sequence[str]]
    seconds_max: float = 3600.0  # a batch that takes longer hangs


def _pytest(test: str) -> Callable[[int, int], Sequence[str]]:
    return lambda first, count: ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "long or not long", test)


RUNS: dict[str, Run] = {
    "simulated-chaos": Run(
        "seeds of random mischief on simulated meshes",
        20_000,
        200,
        lambda first, count: ("tests/sim/test_simulated_chaos.py", str(count), str(first)),
    ),
    "simulated-crowd": Run(
        "hours of 1,000 simulated nodes with 5 % of them going every minute",
        1,
        1,
        lambda first, count: ("tests/sim/test_simulated_crowd.py", "1000", str(count)),
        seconds_max=6 * 3600.0,
    ),
    "real-faults": Run(
        "workers killed and stopped in the phases of a call",
        2_000,
        80,
        lambda first, count: ("tests/e2e/test_faults.py", str(count // 8)),
    ),
    "coordinator-kills": Run(
        "coordinators killed at a step of writing their journal",
        1_000,
        100,
        lambda first, count: ("tests/e2e/test_durable_jobs.py", str(count)),
    ),
    "fuzz": Run(
        "damaged graphs and messages for the decoders",
        10_000_000,
        2_200_000,
        _pytest("tests/pure/test_fuzz_graph.py tests/pure/test_fuzz_messages.py"),
    ),
}


@dataclass(slots=True)
class Tally:
    """What came of a run so far."""

    count: int = 0
    seconds: float = 0.0
    failures: list[dict[str, str]] = field(default_factory=list)

    @staticmethod
    def load(path: Path) -> Tally:
        return Tally(**json.loads(path.read_text())) if path.exists() else Tally()

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        writing = path.with_suffix(".writing")
        writing.write_text(json.dumps(asdict(self), indent=1) + "\n")
        writing.replace(path)


def go_on(name: str, hours: float, results: Path) -> int:
    """Batches until the count is reached or the time is over; 1 if any batch ever failed."""
    run, path = RUNS[name], results / f"{name}.json"
    tally = Tally.load(path)
    until_s = time.monotonic() + hours * 3600
    while tally.count < run.wanted and time.monotonic() < until_s:
        began_s, count = time.monotonic(), min(run.batch, run.wanted - tally.count)
        words = [word for text in run.command(tally.count, count) for word in text.split()]
        failed = _batch(words, run.seconds_max)
        tally.seconds += time.monotonic() - began_s
        if failed:
            tally.failures = [*tally.failures, {"command": " ".join(words), "output": failed}][-FAILURES_KEPT:]
        tally.count += count
        tally.save(path)
        print(f"{name}: {tally.count} of {run.wanted} {run.what}, {len(tally.failures)} batches failed", flush=True)
    return 1 if tally.failures else 0


def _batch(words: Sequence[str], seconds_max: float) -> str:
    """The end of what a batch that failed has printed, "" of one that did not."""
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired as hung:
        return f"it hung for {seconds_max:g} s\n{hung.stdout or ''}"
    if done.returncode == 0:
        return ""
    return "\n".join((done.stdout + done.stderr).splitlines()[-OUTPUT_LINES:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    return go_on(options.name, options.hours, options.results)


if __name__ == "__main__":
    sys.exit(main())
