"""Packed weights on real workers: counted packed, sent packed, and the results of the process itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.cases.gguf_files import IDS, write_model
from support.processes.commands import PATIENT_S, until_they_work

import mesh
from mesh import Mesh
from mesh.errors import PlacementError

TOKENS = IDS.astype(np.int32)
LARGE = {"width": 512, "inner": 1024, "layers": 8, "heads": 8, "kv_heads": 4}
ROOM_BYTES = 30 << 20


def test_a_model_of_4_bits_loads_where_float16_has_no_room(tmp_path: Path) -> None:
    for kind in ("F16", "Q4_0"):
        write_model(tmp_path / f"{kind}.gguf", "llama", kind, **LARGE)
    half, packed = (mesh.load(tmp_path / f"{kind}.gguf") for kind in ("F16", "Q4_0"))
    sizes = [sum(array.nbytes for array in model.weights.values()) for model in (half, packed)]
    assert sizes[0] > ROOM_BYTES > 2 * sizes[1]
    wanted = np.asarray(packed(TOKENS))
    with Mesh.builder().mesh("packed").local(1, max_memory=ROOM_BYTES).node_timeout(PATIENT_S).build() as workers:
        with pytest.raises(PlacementError):
            workers.run(half, TOKENS)
        found = until_they_work(workers, 1, partial(workers.run, packed, TOKENS))
        moved = workers.report().weight_bytes_moved
        said = packed.generate([3, 4, 5], max_new_tokens=4, ends=(), mesh=workers)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    assert moved <= 1.01 * sizes[1], "what is sent is packed"
    assert said == packed.generate([3, 4, 5], max_new_tokens=4, ends=())


def test_packed_layers_and_experts_are_cut_over_three_workers(tmp_path: Path) -> None:
    write_model(tmp_path / "k.gguf", "llama", "Q4_K", width=256, inner=256, layers=2)
    write_model(tmp_path / "experts.gguf", "llama", "Q5_0", experts=4)
    with Mesh.builder().mesh("packed-3").local(3).node_timeout(PATIENT_S).build() as workers:
        for name in ("k", "experts"):
            model = mesh.load(tmp_path / f"{name}.gguf")
            wanted = np.asarray(model(TOKENS))
            found = until_they_work(workers, 3, partial(workers.run, model, TOKENS, strategy="pipeline"))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
