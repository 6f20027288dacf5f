"""Functions of blocks on real workers, a rank on each: what they give in one process, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.cases.shard_cases import CASES, Case
from support.processes.commands import PATIENT_S

import mesh
import mesh.numpy as mnp
from mesh import Mesh

SOME = ("mlp-loss", "scan", "cond", "all_to_all", "several-results", "all_reduce-prod-over-both")


@pytest.fixture(scope="module")
def four() -> Iterator[Mesh]:
    """A mesh of four cpu workers."""
    made = Mesh.builder().mesh("ranks").local(4, "cpu").node_timeout(PATIENT_S).build()
    yield made
    made.close()


def check(four: Mesh, case: Case) -> None:
    """The values and the gradients, of f64 so that the order of a sum does not show."""
    fn, point = case.mapped, case.point()

    def loss(*args: Any) -> Any:
        return sum((mnp.sum(mnp.sin(each)) for each in fn(*args)), start=mnp.zeros((), dtype="float64"))

    step = mesh.value_and_grad(loss, argnums=tuple(range(len(point))))
    for program in (lambda *args: tuple(fn(*args)), step):
        found = mesh.tree.leaves(four.run(program, *point))
        plan = four.plan(program, *point)
        assert "ranks of the grid" in str(plan), "it was not shared out"
        for each, right in zip(found, mesh.tree.leaves(program(*point)), strict=True):
            np.testing.assert_allclose(np.asarray(each), np.asarray(right), 1e-12, 1e-12)


@pytest.mark.parametrize("name", SOME)
def test_ranks_on_workers_give_what_one_process_does(four: Mesh, name: str) -> None:
    check(four, CASES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(SOME)))
def test_all_cases_on_workers(four: Mesh, name: str) -> None:
    check(four, CASES[name])
