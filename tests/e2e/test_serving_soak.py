"""A server of models for an hour: mixed requests of six kinds of clients, a fault every few seconds, and somebody who
attacks it.  Every answer is what the model says alone, every request ends, and nothing that lasts grows.

`python tests/e2e/test_serving_soak.py MINUTES [SEED [FOLDER]]`.  As in `test_soak.py`, anything may be killed in the
first half, and in the second half the coordinator, the server, a worker and the clients are not.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from support.processes.serving_soak import SERVER, Replies, ServingSite
from support.processes.soak import COORDINATOR
from support.processes.soak_growth import can_mount, folder_alone, grown, tell_growth

FILES_MAX = 1024  # of each process
EVERY_S = 6.0  # between two faults
SAMPLE_S = 10.0
WARM = 1 / 3  # of the half that is judged
LATE_S = 45.0  # without an answer of one client: nothing more breaks until there is one
HUNG_S = 420.0  # without an answer of one client: longer than any request may take
OLD = (COORDINATOR, "one", SERVER)  # what they hold is judged: clients are no part of the product


def soak(minutes: float, seed: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    samples: list[tuple[float, dict[str, float]]] = []
    done: Counter[str] = Counter()
    with (
        ServingSite(folder, seed, Replies()) as site, (folder / "samples").open("w") as written,
        (folder / "faults").open("w") as told,
    ):  # fmt: skip
        began_s = time.monotonic()
        until_s, over = began_s + minutes * 60, threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_S):
                samples.append((time.monotonic() - began_s, site.sample()))
                print(json.dumps(samples[-1]), file=written, flush=True)

        watching = threading.Thread(target=watch)
        watching.start()
        heard = site.answers
        try:
            next_s = time.monotonic() + EVERY_S
            while time.monotonic() < until_s:
                site.judged = time.monotonic() > began_s + minutes * 30
                waits = {name: round(time.monotonic() - at_s) for name, at_s in heard.last_s.items()}
                hung = {name: wait_s for name, wait_s in waits.items() if wait_s > HUNG_S}
                assert not (hung or site.ended or heard.wrong), (hung, site.ended, heard.wrong)
                late = [name for name, wait_s in waits.items() if wait_s > LATE_S]
                what = f"nothing, since answers are late to {', '.join(late)}" if late else site.fault()
                done[" ".join(what.split()[:2])] += 1
                print(f"{time.monotonic() - began_s:.1f} {what}", file=told, flush=True)
                time.sleep(max(0.0, next_s - time.monotonic()))
                next_s = max(next_s, time.monotonic()) + EVERY_S
        finally:
            over.set()
            watching.join()
        failed = site.finish(HUNG_S)
        assert not (failed or site.ended or heard.wrong), (failed, site.ended, heard.wrong)
        starts = {name: part.starts for name, part in site.parts.items()}
        log_bytes = (folder / f"{SERVER}.log").stat().st_size
    tell(minutes, seed, began_s, done, heard, starts)
    print(f"the server's log: {log_bytes} B")
    old = [(at_s, held) for at_s, held in samples if at_s > minutes * 30 * (1 + WARM)]
    tell_growth(samples, old, OLD)
    assert not (grew := grown(old, OLD)), grew


def tell(minutes: float, seed: int, began_s: float, done: Counter[str], heard: Replies, starts: dict[str, int]) -> None:
    """Print what was done, and what came of it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    core = (used.ru_utime + used.ru_stime) / (time.monotonic() - began_s)
    outcomes: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    longest_s: Counter[str] = Counter()
    for case, found in heard.count.items():
        kind = case.partition(":")[0].removesuffix(", streamed")
        outcomes.update(found)
        kinds[kind].update(found)
        longest_s[kind] = max(longest_s[kind], heard.longest_s[case])
    withheld = done["nothing, since"]
    print(f"{minutes:g} minutes, seed {seed}: {done.total() - withheld} faults, {core:.2f} of a core")
    print(", ".join(f"{count} x {name}" for name, count in sorted(done.items())))
    print(f"{outcomes.total()} requests:", ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    for kind, found in sorted(kinds.items()):
        came = ", ".join(f"{count} {name}" for name, count in found.most_common())
        print(f"{kind}: {came}; the longest {longest_s[kind]:g} s")
    print("starts:", starts)


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="it mounts file systems of its own")
def test_a_server_under_faults_and_attacks_says_what_is_right_and_does_not_grow(tmp_path: Path) -> None:
    words = [sys.executable, __file__, "10", "0", str(tmp_path / "soak")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def main(minutes: str, seed: str = "0", folder: str = "") -> None:
    soak(float(minutes), int(seed), folder_alone(folder, "serving-soak-"))


if __name__ == "__main__":
    main(*sys.argv[1:])
