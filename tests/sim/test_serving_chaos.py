"""Requests, texts and sessions under random mischief, by seed: right answers or errors that say why, and nothing left.

`PYTHONHASHSEED=0 python tests/sim/test_serving_chaos.py COUNT [FIRST] [WAY]` runs that many seeds and reports.
"""

from __future__ import annotations

import faulthandler
import sys
import time
import traceback
from collections import Counter

import pytest
from support.serving_chaos import Trial

HANGS_S = 240.0  # of real time: no seed takes so long


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 300), marks=pytest.mark.long)], ids=str)
def test_every_seed_ends_as_it_should(seeds: range) -> None:
    for seed in seeds:
        assert "sim-0 starts" in Trial(seed).run()


def main(count: int, first: int, only: str) -> int:
    began_s, failed, ends = time.monotonic(), list[int](), Counter[str]()
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        trial = Trial(seed, only)
        try:
            trial.run()
        except BaseException as error:
            failed.append(seed)
            print(f"--- seed {seed} {trial.told}", flush=True)
            traceback.print_exception(error)
        ends.update(trial.ends)
        if seed % 25 == 24:
            print(f"... {seed + 1 - first} seeds, {time.monotonic() - began_s:.0f} s, {len(failed)} failed", flush=True)
    for words, often in ends.most_common():
        print(f"{often:6} {words}")
    print(f"{count} seeds from {first}, {time.monotonic() - began_s:.0f} s; failed: {failed}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, " ".join(sys.argv[3:])))
