"""Runs that take hours, in pieces: `script/test --long NAME --hours H` goes on where the last one stopped.

A run is a row of RUNS: how many of what it wants, and a command that does a batch of it from a seed on.  Counts, seeds
and failures add up in `bench/results/NAME.json`, written after every batch.  Only batches that passed count; one that
failed is kept with the end of its output, the run goes on with the next seeds, and is no success while any is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT_LINES = 400  # kept of a batch that failed: a trace is at its end
FAILURES_KEPT = 20
IN_A_ROW_MAX = 3  # batches that fail: the next one would, too
LAST_LINES = 40  # kept of the newest one that passed: its figures


@dataclass(frozen=True, slots=True)
class Run:
    """`batch` at a time until there are `wanted`; `command(first, count)` are Python's arguments, a word each."""

    what: str
    wanted: int
    batch: int
    command: Callable[[int, int], Sequence[str]]
    seconds_max: float = 3600.0  # a batch that takes longer hangs


RUNS: dict[str, Run] = {
    "simulated-chaos": Run(
        "seeds of random mischief on simulated meshes",
        20_000,
        200,
        lambda first, count: ("tests/sim/test_simulated_chaos.py", str(count), str(first)),
    ),
    "simulated-training": Run(
        "seeds of training under mischief on simulated workers",
        5_000,
        50,
        lambda first, count: ("tests/sim/test_training_chaos.py", str(count), str(first)),
    ),
    "simulated-serving": Run(
        "seeds of requests, texts and sessions under mischief on simulated workers",
        5_000,
        50,
        lambda first, count: ("tests/sim/test_serving_chaos.py", str(count), str(first)),
    ),
    "real-training": Run(
        "rounds of training on worker processes under signals",
        500,
        20,
        lambda first, count: ("tests/e2e/test_training_mischief.py", str(count), str(first)),
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
    "split-brain": Run(
        "seeds of two coordinators and three voters under every partition",
        100_000,
        5_000,
        lambda first, count: ("tests/sim/test_standby_simulated.py", str(count), str(first)),
    ),
    "simulated-coordinator-kills": Run(
        "seeds of ten kills of a simulated coordinator daemon under a session",
        4_000,
        50,
        lambda first, count: ("tests/sim/test_sessions_of_killed_coordinators.py", str(count), str(first)),
    ),
    "lost-machines": Run(
        "machines of a coordinator that lose their power, under training and streams of tokens",
        100,
        4,
        lambda first, count: ("tests/e2e/test_standby_on_a_lan.py", str(count)),
    ),
    "stopped-programs": Run(
        "moments at which programs and daemons were stopped for 1, 3, 10 and 60 s",
        50,
        10,
        lambda first, count: ("tests/e2e/test_stopped_programs.py", str(count), str(first)),
        seconds_max=3 * 3600.0,
    ),
    "lying-members": Run(
        "random sequences of valid messages by lying members, to daemons under load",
        1_000_000,
        5_000,
        lambda first, count: ("tests/e2e/test_lying_members.py", str(count), str(first)),
    ),
    "soak": Run(
        "minutes of mixed load with a fault every 10 s",
        120,
        120,
        lambda first, count: ("tests/e2e/test_soak.py", str(count), str(first)),
        seconds_max=3 * 3600.0,
    ),
    "serving-soak": Run(
        "minutes of mixed requests to a server of models, with a fault every 6 s and attacks",
        60,
        60,
        lambda first, count: ("tests/e2e/test_serving_soak.py", str(count), str(first)),
        seconds_max=2 * 3600.0,
    ),
    "coordinator-kills": Run(
        "coordinators killed at a step of writing their journal",
        1_000,
        100,
        lambda first, count: ("tests/e2e/test_durable_jobs.py", str(count)),
    ),
    "fuzz": Run(
        "damaged inputs for every decoder",
        10_000_000,
        1_000_000,
        lambda first, count: ("tests/wire/ir/test_fuzz.py", str(count), str(first)),
    ),
}


@dataclass(slots=True)
class Tally:
    """What came of a run so far: `count` of it passed, `next` is the first seed that was not tried, `last` what the
    newest batch that passed had to say."""

    count: int = 0
    next: int = 0
    seconds: float = 0.0
    failures: list[dict[str, str]] = field(default_factory=list)
    last: list[str] = field(default_factory=list)

    @staticmethod
    def load(path: Path) -> Tally:
        said = json.loads(path.read_text()) if path.exists() else {}
        return Tally(**{"next": said.get("count", 0), **said})

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        writing = path.with_suffix(".writing")
        writing.write_text(json.dumps(asdict(self), indent=1) + "\n")
        writing.replace(path)


def go_on(name: str, hours: float, results: Path, batch: int = 0) -> int:
    """Batches until the count is reached or the time is over; 1 while a batch that failed is kept.  They may have
    another size than the run's own."""
    run, path = RUNS[name], results / f"{name}.json"
    tally = Tally.load(path)
    until_s, in_a_row = time.monotonic() + hours * 3600, 0
    while tally.count < run.wanted and time.monotonic() < until_s and in_a_row < IN_A_ROW_MAX:
        began_s, count = time.monotonic(), min(batch or run.batch, run.wanted - tally.count)
        words = run.command(tally.next, count)
        passed, output = _batch(words, run.seconds_max)
        tally.seconds = round(tally.seconds + time.monotonic() - began_s, 1)
        tally.next += count
        if passed:
            tally.count += count
            tally.last = output[-LAST_LINES:]
            in_a_row = 0
        else:
            failure = {"command": shlex.join(words), "output": "\n".join(output[-OUTPUT_LINES:])}
            tally.failures = [*tally.failures, failure]
            if len(tally.failures) > FAILURES_KEPT:  # the first ones say most: what follows may come of them
                del tally.failures[FAILURES_KEPT // 2]
            in_a_row += 1
        tally.save(path)
        print(f"{name}: {tally.count} of {run.wanted} {run.what}, {len(tally.failures)} batches failed", flush=True)
    return 1 if tally.failures else 0


def _batch(words: Sequence[str], seconds_max: float) -> tuple[bool, list[str]]:
    """Whether a batch passed, and the lines that it printed; the warnings among them only if it did not."""
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
        said = (hung.stdout or b"").decode(errors="replace")  # bytes, whatever `text` is
        return False, [*said.splitlines(), f"it hung for {seconds_max:g} s"]
    passed = done.returncode == 0
    return passed, (done.stdout if passed else done.stdout + done.stderr).splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=0, help="how many at a time, in place of what the run has")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    return go_on(options.name, options.hours, options.results, options.batch)


if __name__ == "__main__":
    sys.exit(main())
