"""Random mischief on simulated meshes, by seed: every answer right, nothing left, nothing hangs.  With every third seed
threads take time, too.

`PYTHONHASHSEED=0 python tests/sim/test_simulated_chaos.py COUNT [FIRST]` runs that many seeds and reports.
"""

from __future__ import annotations

import sys
import time

import pytest
from support.by_seed import ranges
from support.simulated.simulated import chaos_of_ranks, chaos_run, simulate


@pytest.mark.parametrize("seeds", ranges(3, 2000), ids=str)
def test_every_seed_ends_with_right_answers_and_nothing_left(seeds: range) -> None:
    for seed in seeds:
        transcript = simulate(chaos_run, 2 + seed % 4, seed, slow_threads=seed % 3 == 2)
        assert transcript.startswith(f"seed {seed}, ")


@pytest.mark.parametrize("seeds", ranges(3, 1000), ids=str)
def test_every_seed_of_ranks_ends_with_right_answers_and_nothing_left(seeds: range) -> None:
    for seed in seeds:
        transcript = simulate(chaos_of_ranks, 4 + seed % 3, seed, slow_threads=seed % 3 == 2)
        assert transcript.startswith(f"seed {seed}, ")


def test_a_seed_replays_exactly() -> None:
    assert simulate(chaos_run, 4, 5) == simulate(chaos_run, 4, 5)


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s = time.monotonic()
    for seed in range(first, first + count):
        simulate(chaos_run, 2 + seed % 4, seed, slow_threads=seed % 3 == 2)
    print(f"{count} seeds from {first}, {time.monotonic() - began_s:.0f} s", flush=True)
