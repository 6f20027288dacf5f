"""Coded inference on real workers that are killed: the example, and a layer that is larger than any worker's memory."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes.commands import PATIENT_S

from mesh import Coding, Mesh, errors, nn

EXAMPLE = Path(__file__).parents[2] / "examples" / "coded_inference.py"


def test_the_example_runs_and_asserts_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "largest relative error" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_layer_larger_than_any_worker_survives_a_death_and_moves_the_lost_share_only() -> None:
    chance = np.random.default_rng(0)
    layer = nn.Linear(chance.standard_normal((2050, 1024)).astype(np.float32))
    x = chance.standard_normal((4, 1024)).astype(np.float32)
    expected = np.asarray(layer(x))
    size = np.asarray(layer.weight).nbytes
    mesh = Mesh.builder().local(4, "cpu", max_memory=int(0.75 * size)).node_timeout(PATIENT_S).build()

    def right(found: Any) -> bool:
        return bool(np.abs(np.asarray(found) - expected).max() <= 1e-4 * np.abs(expected).max())

    try:
        with pytest.raises(errors.PlacementError, match="no plan fits"):
            mesh.run(lambda layer, x: layer(x), mesh.put(layer), x)
        coding = Coding(mesh, 3, 2, workers=[f"local-{number}" for number in range(3)])
        coded = coding.layers(layer)
        assert coded.share_bytes == size // 2 and right(coded(x))
        os.kill(next(node.pid for node in mesh.nodes if node.name == "local-1"), signal.SIGKILL)
        assert right(coded(x))
        while "local-1" in coding.healthy():
            time.sleep(0.05)
        moved = []
        submit = mesh.submit

        def recorded(*args: Any, **options: Any) -> Any:
            moved.append(submit(*args, **options))
            return moved[-1]

        mesh.submit = recorded  # type: ignore[method-assign]
        assert coding.repair() == {1: "local-3"}
        assert right(coded(x))
        assert sum(job.report().weight_bytes_moved for job in moved) == coded.share_bytes
    finally:
        mesh.close()
