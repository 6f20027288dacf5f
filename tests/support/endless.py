"""Work that no machine gets done while a test looks on: it is there to be cancelled, struck or left behind."""

from __future__ import annotations

from typing import Any

import mesh.numpy as mnp

LAYERS = 5_000
SIDE = 1024  # 2.1 GFLOP a layer, so that all of them take the fastest core there is more than a minute


def endless(x: Any) -> Any:
    """Some ten TFLOP of a square of at most SIDE, each op short enough that a cancelled run ends soon."""
    for axis in (0, 1):
        x = mnp.concatenate([x] * (SIDE // x.shape[axis]), axis=axis) if x.shape[axis] < SIDE else x
    for _ in range(LAYERS):
        x = mnp.tanh(x @ x) * 0.5
    return x
