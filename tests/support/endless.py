"""Work that nobody gets done: it is there to be cancelled, struck or left behind while a test looks on."""

from __future__ import annotations

from typing import Any

import mesh
import mesh.numpy as mnp


def endless(x: Any, w: Any = None) -> Any:
    """A loop without an end over a square x, by w or by x itself; a cancelled run ends between two turns."""
    by = x if w is None else w
    return mesh.while_loop(lambda value: mnp.max(value) < 2, lambda value: mnp.tanh(value @ by), x)
