"""Promises of a simulated coordinator that dies at any step of its disk, by seed: none is forgotten, none kept twice.

`PYTHONHASHSEED=0 python tests/sim/test_simulated_jobs.py COUNT [FIRST]` runs that many seeds and reports.
"""

from __future__ import annotations

import sys
import time

import pytest
from support.simulated_jobs import simulate_durable


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 500), marks=pytest.mark.long)], ids=str)
def test_what_was_accepted_is_answered_once_whatever_happens(seeds: range) -> None:
    for seed in seeds:
        transcript, lives = simulate_durable(2 + seed % 3, seed)
        assert lives > 1 and f"begins life {lives}" in transcript


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s, total = time.monotonic(), 0
    for seed in range(first, first + count):
        total += simulate_durable(2 + seed % 3, seed)[1]
    print(f"{count} seeds from {first}, {total} lives, {time.monotonic() - began_s:.0f} s", flush=True)
