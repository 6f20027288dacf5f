"""What a coordinator does for a heartbeat of everybody grows as the number of workers does, and no faster."""

from __future__ import annotations

import pytest
from support.simulated.crowd import heartbeat_round

CALLS_PER_BEAT_MAX = 8  # five for the beat; looks at deadlines, which go over all workers, are the rest
ROUNDS = 10  # a deadline is looked at once in some rounds, by a small crowd in one of them


@pytest.mark.parametrize("many", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_a_beat_costs_the_same_in_a_crowd(many: int) -> None:
    few = heartbeat_round(8, ROUNDS, probing=False)
    crowd = heartbeat_round(many, ROUNDS, probing=False)
    assert few.calls >= few.workers, "everybody was heard"
    assert crowd.calls / crowd.workers <= 1.5 * few.calls / few.workers
    assert crowd.calls / crowd.workers <= CALLS_PER_BEAT_MAX
