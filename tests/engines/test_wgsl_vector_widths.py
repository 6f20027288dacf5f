"""Mesa's software driver computes with the widest vectors of the processor, and its kernels are right at each width.

The driver reads the width once per process, so each case is a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.adapter import adapters, needs_adapter

PROGRAM = """
import numpy as np
import mesh
from mesh import nn
from worker.wgsl.engine import WgslEngine

def attend(q, k, v):
    return nn.scaled_dot_product_attention(q, k, v)

def with_gradients(q, k, v, g):
    out, pull = mesh.vjp(attend, q, k, v)
    return out, *pull(g)

rng = np.random.default_rng(0)
arrays = [rng.standard_normal((1, 20, 4)).astype(np.float32) for _ in range(4)]
engine = WgslEngine()
made = engine.run(engine.compile(mesh.trace(with_gradients, *arrays)), arrays)

q, k, v, g = (array.astype(np.float64) for array in arrays)
scale = 4**-0.5
powers = np.exp(q @ k.swapaxes(1, 2) * scale)
shares = powers / powers.sum(-1, keepdims=True)
of_shares = g @ v.swapaxes(1, 2)
of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdims=True)) * scale
right = [shares @ v, of_scores @ k, of_scores.swapaxes(1, 2) @ q, shares.swapaxes(1, 2) @ g]
print(engine._device.profile.subgroup, max(np.abs(a - b).max() for a, b in zip(made, right, strict=True)))
"""


def of_the_processor() -> int:
    """Elements of the widest vector of this processor that Mesa makes use of."""
    info = Path("/proc/cpuinfo")
    return 16 if info.exists() and "avx512dq" in info.read_text().split() else 8


@needs_adapter
@pytest.mark.skipif(not any("llvmpipe" in row.adapter for row in adapters()), reason="no Mesa software driver")
@pytest.mark.parametrize(("asked", "lanes"), [("", of_the_processor()), ("256", 8)])
def test_the_width_of_vectors_is_the_processors_unless_it_is_set(asked: str, lanes: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LP_NATIVE_VECTOR_WIDTH"}
    environment |= {"LP_NATIVE_VECTOR_WIDTH": asked} if asked else {}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    found, error = ran.stdout.split()
    assert int(found) == lanes
    assert float(error) < 1e-5
