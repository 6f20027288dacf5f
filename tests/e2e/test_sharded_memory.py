"""What training takes of two real workers' memory, as their processes' peaks say: all params each, or a half each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.processes.commands import PATIENT_S
from support.processes.worker_process import children

import mesh.numpy as mnp
from mesh import DataParallel, DistributedTrainer, FullySharded, Mesh, Strategy, optim

WIDTH, LAYERS = 640, 12
PARAM_BYTES = 4 * WIDTH * WIDTH * LAYERS  # 19 MiB, and adam keeps two more of each
X = np.random.default_rng(0).standard_normal((8, WIDTH)).astype(np.float32)


def loss(params: Any, x: Any) -> Any:
    for weights in params:
        x = mnp.tanh(x @ weights)
    return mnp.mean(x**2, axis=1)


def peak_bytes(mesh: Mesh) -> list[int]:
    """The most memory that each worker's engine host had until now."""
    hosts = [pid for node in mesh.nodes for pid in children(node.pid)]
    status = [Path(f"/proc/{pid}/status").read_text() for pid in hosts]
    return [int(text.partition("VmHWM:")[2].split()[0]) << 10 for text in status]


def taken_by(strategy: Strategy) -> int:
    """By how much the larger of two workers grew in three steps of training."""
    params = [np.eye(WIDTH, dtype=np.float32) * 0.5 for _ in range(LAYERS)]
    with Mesh.builder().mesh("shares").local(2, "cpu").node_timeout(PATIENT_S).build() as mesh:
        before = peak_bytes(mesh)
        trainer = DistributedTrainer(loss, params, optimizer=optim.adam(1e-3), strategy=strategy)
        history = trainer.distribute(mesh).fit((X,), epochs=3, batch_size=8)
        assert len(history.losses) == 3
        return max(after - first for after, first in zip(peak_bytes(mesh), before, strict=True))


def test_a_worker_of_a_fully_sharded_training_needs_much_less_memory() -> None:
    whole, share = taken_by(DataParallel(2)), taken_by(FullySharded(2))
    assert whole > 3 * PARAM_BYTES, "params and both moments at least"
    assert share < 0.6 * whole
