"""Values that passes know: constants with one value, and what changes nothing under a reduction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wire.ir.dtypes import DType, dtype_named
from wire.ir.graph import Node


def splat_bits(node: Node) -> int | None:
    """The bits of every element of an inline const, or None where elements differ.

    They are those of the register: f16 and bf16 are given as the f32 of equal value, bool as 0 or 1.
    """
    if node.op != "const" or "data" not in node.attrs:
        return None
    dtype = dtype_named(node.attrs["dtype"])
    data: bytes = node.attrs["data"]
    first = data[: dtype.itemsize]
    if not data or data != first * (len(data) // dtype.itemsize):
        return None
    value = np.frombuffer(first, dtype.numpy)
    wide = value.astype(np.float32) if dtype.name in ("f16", "bf16") else value
    return int.from_bytes(wide.tobytes(), "little")


def identity_of(op: str, dtype: DType) -> Any:
    """The value that changes nothing under this reduction."""
    if op in ("reduce_sum", "reduce_prod"):
        return 0 if op == "reduce_sum" else 1
    lowest = op == "reduce_max"
    if dtype.kind == "b":
        return not lowest
    if dtype.kind == "f":
        return -math.inf if lowest else math.inf
    info = np.iinfo(dtype.numpy)
    return info.min if lowest else info.max
