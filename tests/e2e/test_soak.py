"""A mesh under mixed load, with a fault every 10 s and a full disk for a minute: every answer is right, none is
missing, and nothing that lasts grows.

`python tests/e2e/test_soak.py MINUTES [SEED [FOLDER]]`.  In the first half anything may be killed.  In the second half
faults go on, but the coordinator, a worker and most programs are not killed, so that they grow old enough to show what
they keep: what they hold is sampled every 10 s, and the slope of its line through the last two thirds of that half is
judged.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.processes.soak import COORDINATOR, LASTING, Answers, Site
from support.processes.soak_growth import can_mount, folder_alone, grown, judged, tell_growth

FILES_MAX = 1024  # of each process
EVERY_S = 10.0
FULL_S = 60.0
WARM = 1 / 3  # of the half that is judged: who was killed last has to grow to its size
LATE_S = 45.0  # without an answer of one kind: nothing more breaks until there is one, on a machine with much to do
HUNG_S = 240.0  # without an answer of one kind


def soak(minutes: float, seed: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    samples: list[tuple[float, dict[str, float]]] = []
    done: Counter[str] = Counter()
    began_s = time.monotonic()
    until_s, over = began_s + minutes * 60, threading.Event()
    with (
        Site(folder, seed, Answers()) as site, (folder / "samples").open("w") as written,
        (folder / "faults").open("w") as told,
    ):  # fmt: skip

        def watch() -> None:
            while not over.wait(EVERY_S):
                samples.append((time.monotonic() - began_s, site.sample()))
                print(json.dumps(samples[-1]), file=written, flush=True)

        watching = threading.Thread(target=watch)
        watching.start()
        half_s, full_s = began_s + minutes * 30, began_s + minutes * 15
        freed_s = full_s + min(FULL_S, minutes * 3)
        try:
            next_s = time.monotonic() + EVERY_S
            while time.monotonic() < until_s:
                site.judged = time.monotonic() > half_s
                if not site.full and full_s <= time.monotonic() < freed_s:
                    site.fill_disk()
                if site.full and time.monotonic() >= freed_s:
                    site.free_disk()
                waits = {name: round(time.monotonic() - at_s) for name, at_s in site.answers.last_s.items()}
                hung = {name: wait_s for name, wait_s in waits.items() if wait_s > HUNG_S}
                assert not (hung or site.ended or site.answers.wrong), (hung, site.ended, site.answers.wrong)
                what = "nothing, since answers are late" if max(waits.values()) > LATE_S else site.fault()
                done[" ".join(what.split()[:2])] += 1
                print(f"{time.monotonic() - began_s:.1f} {what}", file=told, flush=True)
                time.sleep(max(0.0, next_s - time.monotonic()))
                next_s = max(next_s, time.monotonic()) + EVERY_S
        finally:
            over.set()
            watching.join()
        failed = site.finish(HUNG_S)
        answers = site.answers
        assert not (failed or site.ended or answers.wrong), (failed, site.ended, answers.wrong)
        starts = {name: part.starts for name, part in site.parts.items()}
    late = [(at_s, held) for at_s, held in samples if at_s > minutes * 30 * (1 + WARM)]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    core = (used.ru_utime + used.ru_stime) / (time.monotonic() - began_s)
    withheld = done["nothing, since"]
    print(f"{minutes:g} minutes, seed {seed}: {done.total() - withheld} faults, {core:.2f} of a core")
    print(", ".join(f"{count} x {name}" for name, count in sorted(done.items())))
    print("answers, all right:", dict(answers.count), f"and {answers.full} refused while the disk was full")
    print("the longest wait for the next one, s:", dict(answers.longest_s))
    print("starts:", starts)
    tell_growth(samples, late, LASTING)
    assert answers.full > 0, "the disk was never full"
    assert not (grew := grown(late, LASTING)), grew


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="it mounts file systems of its own")
def test_nothing_is_wrong_missing_or_growing_under_a_fault_every_ten_seconds(tmp_path: Path) -> None:
    words = [sys.executable, __file__, "20", "0", str(tmp_path / "soak")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_grows_is_found() -> None:
    steady = dict.fromkeys(judged(LASTING), 1000.0)
    chance = np.random.default_rng(0)
    flat = [(10.0 * place, {n: v + chance.uniform(0, 500) for n, v in steady.items()}) for place in range(200)]
    files = f"{COORDINATOR} files"
    for _, held in flat:  # files come and go by a few, not by hundreds as KiB do: their bound is tighter
        held.update((name, 40.0 + float(chance.integers(6))) for name in held if name.endswith("files"))
    assert not grown(flat, LASTING)
    leaks = [(at_s, {**held, "one KiB": held["one KiB"] + 8 * at_s}) for at_s, held in flat]
    assert grown(leaks, LASTING).keys() == {"one KiB"}
    opens = [(at_s, {**held, files: held[files] + at_s / 200}) for at_s, held in flat]
    assert grown(opens, LASTING).keys() == {files}


def main(minutes: str, seed: str = "0", folder: str = "") -> None:
    soak(float(minutes), int(seed), folder_alone(folder, "soak-"))


if __name__ == "__main__":
    main(*sys.argv[1:])
