"""A model comes from the hub once for a whole mesh: workers have its weights from each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hub import Hub, folder_files
from support.processes.commands import PATIENT_S, until_they_work

import mesh
import mesh.numpy as mnp
from mesh import Mesh

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "huggingface"


def test_three_workers_have_a_model_that_was_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(3, 50, (6, 8)).astype(np.int32)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)  # which the library wants even for plain HTTP
    with Hub({"org/gpt2": folder_files(GOLDEN / "gpt2")}) as hub:
        monkeypatch.setenv("MESH_MODELS", str(tmp_path))
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        model = mesh.load("org/gpt2")
        wanted, size = np.asarray(model(ids)), sum(array.nbytes for array in model.weights.values())
        with Mesh.builder().mesh("hub").local(3).node_timeout(PATIENT_S).build() as workers:
            found = until_they_work(workers, 3, partial(workers.run, model, ids, strategy="data"))
            shares = [worker.weight_bytes for worker in workers.report().workers.values()]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert hub.ranges("model.safetensors") == [""], "the file was asked for once"
    moved = sum(share["socket"] + share["shared"] for share in shares)
    assert len(shares) == 3 and moved >= 2.9 * size, "each worker has all weights"
    assert sum(share["client"] for share in shares) <= 1.1 * size, "two of them have theirs from another worker"


def test_workers_have_large_weights_from_each_other_too() -> None:
    weights = {f"w{each}": np.full((1024, 1024), each, np.float32) for each in range(6)}  # 4 MiB each
    x = np.ones((3, 1024), np.float32)

    def sums(params: Any, x: Any) -> Any:
        return sum((mnp.sum(x @ params[name], axis=1) for name in weights), mnp.zeros(3, np.float32))

    with Mesh.builder().mesh("large").local(3, engine="cpu").node_timeout(PATIENT_S).build() as workers:
        found = until_they_work(workers, 3, partial(workers.run, sums, workers.put(weights), x, strategy="data"))
        shares = [worker.weight_bytes for worker in workers.report().workers.values()]
    np.testing.assert_array_equal(found, np.full(3, 1024 * 1024 * 15, np.float32))
    assert sum(share["client"] for share in shares) <= 1.1 * sum(each.nbytes for each in weights.values())
