"""A mesh under mixed load, with a fault every 10 s and a full disk for a minute: every answer is right, none is
missing, and nothing that lasts grows.

`python tests/e2e/test_soak.py MINUTES [SEED [FOLDER]]`.  In the first half anything may be killed.  In the second half
faults go on, but the coordinator, a worker and most programs are not killed, so that they grow old enough to show what
they keep: what they hold is sampled every 10 s, and the slope of its line through the last two thirds of that half is
judged.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.processes.soak import COORDINATOR, LASTING, Answers, Site
from support.processes.soak_faults import Soak, few_files
from support.processes.soak_growth import can_mount, folder_alone, grown, judged, tell_growth

EVERY_S = 10.0
FULL_S = 60.0
HUNG_S = 240.0  # without an answer of one kind


def soak(minutes: float, seed: int, folder: Path) -> None:
    few_files()
    ran = Soak(minutes, seed)
    full_s = minutes * 15
    freed_s = full_s + min(FULL_S, minutes * 3)
    with Site(folder, seed, Answers()) as site:

        def fill(at_s: float) -> None:
            if not site.full and full_s <= at_s < freed_s:
                site.fill_disk()
            if site.full and at_s >= freed_s:
                site.free_disk()

        ran.run(site, folder, EVERY_S, HUNG_S, fill)
        answers, starts = site.answers, {name: part.starts for name, part in site.parts.items()}
    ran.tell()
    print("answers, all right:", dict(answers.count), f"and {answers.full} refused while the disk was full")
    print("the longest wait for the next one, s:", dict(answers.longest_s))
    print("starts:", starts)
    tell_growth(ran.samples, ran.late, LASTING)
    assert answers.full > 0, "the disk was never full"
    assert not (grew := grown(ran.late, LASTING)), grew


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
