"""A network whose layers are split over two workers: columns of the first matrix, rows of the second, one sum behind.

Each worker holds half of each matrix.  The hidden features that a worker computes are those that its rows of the second
matrix need, so nothing is sent between the layers (Shoeybi et al., 2019, "Megatron-LM").

python examples/tensor_parallel_mlp.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mesh
import mesh.numpy as mnp
from mesh import Mesh, PartitionSpec, nn
from wire.ir.ops import COLLECTIVES
from wire.sharding.partition import partition

WIDTH, HIDDEN, ROWS, WORKERS = 256, 1024, 32, 2
GRID = mesh.Grid((WORKERS,), ("tp",))


def mlp(up: Any, down: Any, x: Any) -> Any:
    """The network as it is written for one machine: nothing here knows of workers."""
    return nn.gelu(x @ up) @ down


def split(up: Any, down: Any, x: Any) -> Any:
    """The same, and how the matrices are to lie.  All the rest follows from that."""
    return mlp(mesh.shard(up, PartitionSpec(None, "tp")), mesh.shard(down, PartitionSpec("tp")), x)


def exchanged(*args: Any) -> list[str]:
    """What the workers do together, in the program that each of them runs."""
    with mesh.on_grid(GRID):
        program = partition(mesh.trace(split, *args))
    (ranks,) = {node.attrs["body"] for node in program.nodes if node.op == "spmd"}
    return [node.op for node in ranks.nodes if node.op in COLLECTIVES]


def main() -> float:
    rng = np.random.default_rng(0)
    up = rng.normal(0, WIDTH**-0.5, (WIDTH, HIDDEN)).astype(np.float32)
    down = rng.normal(0, HIDDEN**-0.5, (HIDDEN, WIDTH)).astype(np.float32)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    expected = np.asarray(mnp.asarray(mlp(up, down, x)))

    with Mesh.builder().local(WORKERS, engine="cpu").node_timeout(20).build() as m, mesh.on_grid(GRID):
        weights = m.put((up, down))
        plan = m.plan(split, *weights, x)
        found = m.run(split, *weights, x)

    held = [part["weight_bytes"] for part in plan.parts]
    assert held == [(up.nbytes + down.nbytes) // WORKERS] * WORKERS, "each holds its half, and no more"
    assert exchanged(up, down, x) == ["all_reduce"], exchanged(up, down, x)
    error = float(np.abs(found - expected).max())
    assert error < 1e-5, error
    print(f"{WORKERS} workers hold {held[0] / 2**20:.0f} MiB each of {(up.nbytes + down.nbytes) / 2**20:.0f} MiB")
    print(f"one all_reduce per call, and nothing else is exchanged; largest difference from one machine {error:.1e}")
    return error


if __name__ == "__main__":
    main()
