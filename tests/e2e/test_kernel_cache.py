"""Kernels on the disk of a real worker: found again after a restart, and replaced where a caller forces it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.adapter import needs_adapter
from support.processes.commands import PATIENT_S

import mesh.numpy as mnp
from mesh import Mesh

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def work(x: Any) -> Any:
    return mnp.tanh(x @ x.T) * 3


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Each program's file: which one it is, and what is in it."""
    return {path: (path.stat().st_ino, path.read_bytes()) for path in folder.glob("kernels/wgsl/*.json")}


@needs_adapter
def test_a_restarted_worker_reads_its_kernels_and_force_replaces_them(tmp_path: Path) -> None:
    kept: dict[Path, tuple[int, bytes]] = {}
    for start in range(2):
        builder = Mesh.builder().mesh("kernels").local(1, engine="wgsl", cache_dir=tmp_path).node_timeout(PATIENT_S)
        with builder.build() as mesh:
            found = mesh.run(work, X)
            (worker,) = mesh.report().workers.values()
            assert (worker.kernels_compiled, worker.kernels_cached) == (1, start)
            kept = kept or files(tmp_path)
            assert kept and files(tmp_path).items() >= kept.items(), "nothing was written anew"
            if start == 1:
                again = mesh.compile(work, X, force=True)(X)
                (worker,) = mesh.report().workers.values()
                assert (worker.kernels_compiled, worker.kernels_cached) == (1, 0)
                np.testing.assert_array_equal(again, found)
    replaced = {path for path, now in files(tmp_path).items() if path in kept and now[0] != kept[path][0]}
    assert len(replaced) == 1
    assert {path: now[1] for path, now in files(tmp_path).items() if path in kept} == {p: k[1] for p, k in kept.items()}
