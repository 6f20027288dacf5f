"""Audits with real workers: the answers of a healthy mesh stand, and what they cost is work, not time-outs."""

from __future__ import annotations

import numpy as np
import pytest
from support.compare import assert_as_promised
from support.processes.commands import PATIENT_S, wait_for
from support.processes.faults import WIDTH, tower, weights

from mesh import Mesh
from mesh.errors import ConfigError


def test_a_healthy_mesh_passes_every_audit_with_the_same_answers() -> None:
    told: list[str] = []
    x = np.random.default_rng(1).standard_normal((64, WIDTH)).astype(np.float32)
    with Mesh.builder().local(3, engine="cpu").node_timeout(PATIENT_S).audit(1.0).build() as mesh:
        expected = mesh.run(tower, weights(1), x, mode="off")
        layers = mesh.put(weights(1))
        for strategy in ("pipeline", "single", "auto", "pipeline"):
            assert_as_promised(strategy, mesh.run(tower, layers, x, strategy=strategy), expected, len(layers))
            told += [event.kind for event in mesh.report().events]
            assert sum(len(worker.parts) for worker in mesh.report().workers.values()) >= 3, "nothing was audited"
        wait_for(lambda: [node.state for node in mesh.nodes] == ["healthy"] * 3)
    assert "planned" in told and not {"wrong", "doubted", "quarantined"} & set(told)


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan")])
def test_a_fraction_is_from_0_to_1(fraction: float) -> None:
    with pytest.raises(ConfigError, match="from 0 to 1"):
        Mesh.builder().audit(fraction)
