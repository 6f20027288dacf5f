"""Training under random mischief, by seed: every row once, the weights of an undisturbed run, and nothing left.

`PYTHONHASHSEED=0 python tests/sim/test_training_chaos.py COUNT [FIRST] [WAY]` runs that many seeds and reports.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial

import pytest
from support.by_seed import asked, run_seeds
from support.simulated.training_chaos import Trial

HANGS_S = 240.0  # of real time: no seed takes so long


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 300), marks=pytest.mark.long)], ids=str)
def test_every_seed_ends_as_it_should(seeds: range) -> None:
    for seed in seeds:
        assert "sim-0 starts" in Trial(seed).run()


def ends_of(seed: int, only: str) -> Counter[str]:
    trial = Trial(seed, only)
    trial.run()
    return trial.ends


if __name__ == "__main__":
    count, first, way = asked()
    sys.exit(run_seeds(count, first, partial(ends_of, only=way), HANGS_S))
