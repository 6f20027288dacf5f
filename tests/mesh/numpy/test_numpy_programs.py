"""Random programs over mesh.numpy give what the same programs over numpy give, bit for bit, and refuse what it does."""

from __future__ import annotations

import pytest
from support.cases.numpy_programs import STEPS, check, random_program


def test_random_programs_equal_numpy() -> None:
    done, refused = set(), 0
    for seed in range(400):
        outcome = check(random_program(seed))
        done |= {step.name for step in outcome.done}
        refused += outcome.refused
    assert done == STEPS.keys()
    assert refused > 400


@pytest.mark.long
@pytest.mark.parametrize("first", range(10_000, 40_000, 1000))
def test_many_random_programs_equal_numpy(first: int) -> None:
    for seed in range(first, first + 1000):
        check(random_program(seed))
