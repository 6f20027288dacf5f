"""Matrices on workers: what factors them is beside the GPU of the same machine, and a singular one harms nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.processes.commands import PATIENT_S

import mesh
import mesh.numpy as mnp
from mesh import Mesh

RNG = np.random.default_rng(0)
X = RNG.standard_normal((96, 64)).astype(np.float32)
W = RNG.standard_normal((64, 48)).astype(np.float32)


def whitened(x: Any, w: Any) -> tuple[Any, Any]:
    """Layers around factors of what they give."""
    hidden = mnp.tanh(x @ w)
    u, s, vh = mnp.linalg.svd(hidden, full_matrices=False)
    ridge = mnp.linalg.solve(hidden.mT @ hidden + mnp.eye(48), hidden.mT)
    return mnp.tanh(u @ vh) * s.sum(), ridge @ hidden


@pytest.mark.long
@needs_adapter
def test_beside_a_gpu_the_cpu_engine_of_the_same_machine_factors() -> None:
    with Mesh.builder().local(1, engine="wgsl").node_timeout(PATIENT_S).build() as one:
        plan = str(one.plan(whitened, X, W))
        found = one.run(whitened, X, W)
    assert "computes svd on f32 on cpu, because its wgsl device cannot" in plan
    assert "wgsl" in plan.partition("computes")[0], "the layers stay on the device"
    for one_result, wanted in zip(found, mesh.evaluate(whitened, X, W), strict=True):
        np.testing.assert_allclose(one_result, wanted, 1e-3, 1e-3 * np.abs(wanted).max())


def test_a_singular_matrix_is_an_answer_and_the_worker_goes_on() -> None:
    with Mesh.builder().local(1, engine="cpu").node_timeout(PATIENT_S).build() as one:
        singular, regular = np.zeros((2, 3, 3)), np.broadcast_to(np.eye(3), (2, 3, 3))
        some = np.stack([singular[0], regular[0]])
        for given, none in ((singular, [True, True]), (some, [True, False]), (regular, [False, False])):
            found = np.asarray(one.run(lambda x: mnp.linalg.inv(mnp.linalg.cholesky(x)), given))
            assert [bool(np.isnan(each).all()) for each in found] == none
            assert [bool(np.isnan(each).any()) for each in found] == none
            assert len(one.report().generations) == 1, "nothing failed on the way"
