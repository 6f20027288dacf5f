"""A server of models for an hour: mixed requests of six kinds of clients, a fault every few seconds, and somebody who
attacks it.  Every answer is what the model says alone, every request ends, and nothing that lasts grows.

`python tests/e2e/test_serving_soak.py MINUTES [SEED [FOLDER]]`.  As in `test_soak.py`, anything may be killed in the
first half, and in the second half the coordinator, the server, a worker and the clients are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.processes.serving_soak import HUNG_S, SERVER, Replies, ServingSite
from support.processes.soak import COORDINATOR
from support.processes.soak_faults import WARM, Soak, few_files
from support.processes.soak_growth import can_mount, folder_alone, grown, judged, tell_growth

EVERY_S = 6.0  # between two faults
JUDGED = "one"  # the worker that is
OLD = (COORDINATOR, JUDGED, SERVER)  # what they hold is judged: clients are no part of the product
RESTS, RESTS_MIN = 8, 3  # of a long run, and of a short one
ALONE_S = 120.0  # in which the worker gets every model


def soak(minutes: float, seed: int, folder: Path) -> None:
    few_files()
    with ServingSite(folder, seed, Replies()) as site:
        ran, rests = Soak(minutes, seed), Rests(site, minutes)
        ran.run(site, folder, EVERY_S, HUNG_S, rests.look)
        starts = {name: part.starts for name, part in site.parts.items()}
        log_bytes = (folder / f"{SERVER}.log").stat().st_size
    ran.tell()
    tell(site.answers)
    print("starts:", starts)
    print(f"the server's log: {log_bytes} B")
    tell_growth(ran.samples, ran.late, OLD)
    print("at rest:")
    tell_growth(ran.samples, rests.samples, OLD)
    assert len(rests.samples) >= RESTS_MIN, "too few rests to judge by"
    assert not (grew := grown(rests.samples, OLD)), grew


class Rests:
    """What they hold at rest, which is judged.

    Under load a worker may have either model, and a server holds bodies of 100 MB for a moment.  A line through such
    samples rises or falls by more than the bound.  A worker keeps the weights and kernels of models that it had before,
    up to its limit.  So every model is on it once before it is judged.
    """

    def __init__(self, site: ServingSite, minutes: float) -> None:
        self.samples: list[tuple[float, Mapping[str, float]]] = []
        self._site, self._judged_s = site, minutes * 60 / 2
        self._warm_s = self._judged_s * WARM
        self._every_s = (self._judged_s - self._warm_s) / RESTS
        self._next_s = self._judged_s + self._warm_s
        self._alone = False

    def look(self, at_s: float) -> None:
        """Do what is due, before a fault at `at_s` from the beginning."""
        if at_s > self._judged_s and not self._alone:
            self._alone = True
            self._site.leave_alone(JUDGED, min(ALONE_S, self._warm_s / 2))
        if at_s > self._next_s:
            began_s = time.monotonic()
            held = self._site.at_rest()
            at_s += time.monotonic() - began_s
            self.samples.append((at_s, held))
            self._next_s = max(self._next_s + self._every_s, at_s)
            print(f"at rest at {at_s:.0f} s:", json.dumps({name: held[name] for name in judged(OLD)}), flush=True)


def tell(heard: Replies) -> None:
    """Print what came of the requests, by kind."""
    outcomes: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    longest_s: Counter[str] = Counter()
    for case, found in heard.count.items():
        kind = case.partition(":")[0].removesuffix(", streamed")
        outcomes.update(found)
        kinds[kind].update(found)
        longest_s[kind] = max(longest_s[kind], heard.longest_s[case])
    print(f"{outcomes.total()} requests:", ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    for kind, found in sorted(kinds.items()):
        came = ", ".join(f"{count} {name}" for name, count in found.most_common())
        print(f"{kind}: {came}; the longest {longest_s[kind]:g} s")


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
