"""How many bytes at the end of a tensor are zeros."""

from __future__ import annotations

import numpy as np
import pytest

from wire.transfer.zeros import BLOCK, bytes_in_front, zeros_behind


@pytest.mark.parametrize(
    ("size", "used", "zeros"),
    [
        (0, 0, 0),
        (1, 0, 0),
        (BLOCK, 0, 0),
        (BLOCK + 1, 1, BLOCK),
        (BLOCK + 1, 2, 0),
        (9 * BLOCK, 9 * BLOCK, 0),
        (9 * BLOCK, 8 * BLOCK, BLOCK),
        (9 * BLOCK, 8 * BLOCK + 1, 0),
        (9 * BLOCK, 3 * BLOCK - 5, 6 * BLOCK),
        (100 * BLOCK + 12, 12, 100 * BLOCK),
        (100 * BLOCK + 12, 0, 100 * BLOCK),
    ],
)
def test_whole_blocks_of_zeros_at_the_end_are_counted(size: int, used: int, zeros: int) -> None:
    data = np.zeros(size, np.uint8)
    data[used - 1 : used] = 1
    assert zeros_behind(memoryview(data)) == zeros


def test_what_is_left_has_every_other_byte() -> None:
    rng = np.random.default_rng(3)
    for _ in range(500):
        size = int(rng.integers(1, 12 * BLOCK))
        data = np.zeros(size, np.uint8)
        used = int(rng.integers(0, size + 1))
        data[:used] = rng.integers(0, 2, used)
        left = size - zeros_behind(memoryview(data))
        last = int(data.nonzero()[0][-1]) + 1 if data.any() else 0
        assert max(last, 1) <= left and (left - last < BLOCK or left <= BLOCK), (size, used)


def test_a_negative_zero_is_none() -> None:
    data = np.zeros(4 * BLOCK, np.float32)
    data[-1] = -0.0
    assert zeros_behind(memoryview(data).cast("B")) == 0


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 7])
def test_what_travels_is_known_from_what_is_used(size: int) -> None:
    for used in {0, 1, size // 3, size - BLOCK, size - 1, size} & {*range(size + 1)}:
        data = np.zeros(size, np.uint8)
        data[:used] = 1
        assert bytes_in_front(size, used) == size - zeros_behind(memoryview(data)), used
