"""Keys of jax.random: threefry2x32, with the counters that JAX 0.5 and later use (jax_threefry_partitionable)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wire.ir.dtypes import U32, U64

from ... import numpy as mnp
from ...core.array import Array, apply, literal
from ...numpy.promotion import cast
from .rows import Equation, Row

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry2x32(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Twenty rounds of a key u32 (2,) over counters.  Salmon et al., SC 2011."""
    first, second = key[..., 0], key[..., 1]
    keys = (first, second, first ^ second ^ literal(_PARITY, U32))
    x, y = high + keys[0], low + keys[1]
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = x + y
            y = apply("shl", y, literal(turn, U32)) | apply("shr", y, literal(32 - turn, U32))
            y = y ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + literal(group + 1, U32)
    return x, y


def _words(keys: Array, shape: Sequence[int]) -> tuple[Array, Array]:
    """Both words at the counters 0, 1, 2, ... of an array of this shape, for each key."""
    count = math.prod(shape)
    counters = mnp.reshape(apply("iota", shape=(count,), dtype="u32", axis=0), tuple(shape))
    aligned = mnp.reshape(keys, (*keys.shape[:-1], *[1] * len(shape), 2))
    return threefry2x32(aligned, mnp.zeros_like(counters), counters)


def _seeded(data: Array) -> Array:
    """The key of a number: its high word (0 for 32 bits, -1 does not spread) and its low word."""
    low, wide = cast(data, U32), data.type.dtype.itemsize == 8
    high = cast(apply("shr", data, literal(32, data.type.dtype)), U32) if wide else mnp.zeros_like(low)
    return mnp.stack([high, low], axis=-1)


def _random_bits(equation: Equation, keys: Array) -> Array:
    high, low = _words(keys, equation.ints("shape"))
    if equation["bit_width"] == 64:
        return apply("shl", cast(high, U64), literal(32, U64)) | cast(low, U64)
    return cast(high ^ low, equation.type.dtype)


def _split(equation: Equation, key: Array) -> Array:
    high, low = _words(key, equation.ints("shape"))
    return mnp.stack([high, low], axis=-1)


def _fold_in(equation: Equation, key: Array, data: Array) -> Array:
    pair = _seeded(data)
    high, low = threefry2x32(key, pair[..., 0], pair[..., 1])
    return mnp.stack([high, low], axis=-1)


def _threefry(equation: Equation, first: Array, second: Array, high: Array, low: Array) -> Sequence[Array]:
    return list(threefry2x32(mnp.stack(mnp.broadcast_arrays(first, second), axis=-1), high, low))


ROWS: dict[str, Row] = {
    "random_bits": _random_bits,
    "random_clone": lambda equation, key: key,
    "random_fold_in": _fold_in,
    "random_seed": lambda equation, seed: _seeded(seed),
    "random_split": _split,
    "random_unwrap": lambda equation, key: key,
    "random_wrap": lambda equation, key: key,
    "threefry2x32": _threefry,
}
