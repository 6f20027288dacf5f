"""Threefry2x32 as a program: the words of `random_bits` for many keys at once.

The op itself takes one key.  Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"; 20 rounds.
"""

from __future__ import annotations

import math

from wire.ir.dtypes import U32

from .. import numpy as mnp
from ..core.array import Array, apply, literal

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def random_bits(keys: Array, shape: tuple[int, ...]) -> Array:
    """`random_bits` of `shape` for each of `keys` (n, 2): (n, *shape)."""
    first, second = keys[:, 0:1], keys[:, 1:2]
    schedule = (first, second, first ^ second ^ _word(PARITY))
    counter = apply("iota", shape=(1, math.prod(shape)), dtype="u32", axis=1)
    left, right = schedule[0], counter + schedule[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            left = left + right
            right = _rotated(right, rotation) ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + (schedule[(group + 2) % 3] + _word(group + 1))
    return mnp.reshape(left, (keys.shape[0], *shape))


def _rotated(words: Array, by: int) -> Array:
    return (words << _word(by)) | (words >> _word(32 - by))


def _word(value: int) -> Array:
    return literal(value, U32)
