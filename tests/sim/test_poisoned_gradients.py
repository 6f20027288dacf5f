"""NaN and infinity in any rank's gradients, in any step: that step is skipped on all, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases.training import first_state, flat_params

import mesh.numpy as mnp
from mesh import DistributedTrainer, Mesh, optim

ROWS, STEPS, RANKS = 16, 2, 2
X = np.random.default_rng(3).normal(size=(ROWS, 8)).astype(np.float32)
Y = np.sin(X[:, :4])


def loss(params: Any, x: Any, y: Any) -> Any:
    """One per row."""
    for layer in params[:-1]:
        x = mnp.tanh(x @ layer["w"] + layer["b"])
    return mnp.mean((x @ params[-1]["w"] + params[-1]["b"] - y) ** 2, axis=1)


def trainer() -> DistributedTrainer:
    return DistributedTrainer(loss, first_state()["layers"], optimizer=optim.adam(1e-2))


@pytest.mark.parametrize("poison", [np.nan, -np.inf], ids=str)
def test_a_step_is_skipped_whichever_rank_and_step_it_is(poison: float) -> None:
    expected = trainer()
    expected.fit([(X, Y)] * (STEPS - 1), epochs=1)
    for rank in range(RANKS):
        for step in range(STEPS):
            bad = Y.copy()  # of the targets: what tanh makes of infinity is finite
            bad[rank * ROWS // RANKS, 0] = poison
            batches = [(X, bad if place == step else Y) for place in range(STEPS)]
            found = trainer()
            with Mesh.builder().mesh("sim").simulate(RANKS).build() as mesh:
                history = found.distribute(mesh).fit(batches, epochs=1)
            assert history.skipped == [step + 1], (rank, step)
            np.testing.assert_allclose(flat_params(found), flat_params(expected), rtol=0, atol=1e-5)
