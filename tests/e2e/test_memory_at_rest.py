"""A worker that has nothing to do gives the memory back that its work left free."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.processes.commands import wait_for
from support.processes.worker_process import children

import mesh.numpy as mnp
from mesh import Array, Mesh
from wire.limits import MIB

SIDE = 4096  # of a matrix of 64 MiB


def through_large_arrays(x: Array) -> Array:
    """A row of a product of matrices that are neither inputs nor results."""
    matrix = mnp.tanh(x[:, None] * x[None, :])
    return mnp.sort(matrix @ mnp.sin(matrix), axis=0)[0]


def anonymous_bytes(pid: int) -> int:
    return 1024 * int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heaps, as /proc shows them")
def test_an_engine_host_at_rest_gives_memory_back() -> None:
    with Mesh.builder().mesh("at-rest").local(1, "native").build() as mesh:
        (host,) = children(mesh.nodes[0].pid)
        before = anonymous_bytes(host)
        mesh.run(through_large_arrays, np.ones(SIDE, np.float32))
        held = anonymous_bytes(host) - before
        assert held > 64 * MIB, "it keeps some, for what is run next"
        wait_for(lambda: anonymous_bytes(host) - before < held / 2, 120.0)
