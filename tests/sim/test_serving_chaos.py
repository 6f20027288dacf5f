"""Requests, texts and sessions under random mischief, by seed: right answers or errors that say why, and nothing left.

`PYTHONHASHSEED=0 python tests/sim/test_serving_chaos.py COUNT [FIRST] [WAY]` runs that many seeds and reports.
"""

from __future__ import annotations

import sys

import pytest
from support.by_seed import ranges, run_trials
from support.simulated.serving_chaos import Trial


@pytest.mark.parametrize("seeds", ranges(2, 300), ids=str)
def test_every_seed_ends_as_it_should(seeds: range) -> None:
    for seed in seeds:
        assert "sim-0 starts" in Trial(seed).run()


if __name__ == "__main__":
    sys.exit(run_trials(Trial))
