"""Zeros at the end of a tensor, which need not travel."""

from __future__ import annotations

import numpy as np

BLOCK = 1 << 12  # bytes that are looked at together


def zeros_behind(data: memoryview) -> int:
    """How many bytes at the end are 0: a multiple of BLOCK, and fewer than there are.

    Where the last block has another byte, no other block is looked at.
    """
    looked = np.frombuffer(data, np.uint8)[(len(data) - 1) % BLOCK + 1 :]  # some bytes are left in any case
    blocks = looked.view(np.uint64).reshape(-1, BLOCK // 8)
    end, step = len(blocks), 1
    while end:
        begin = max(end - step, 0)
        others = np.flatnonzero(blocks[begin:end].any(axis=1))
        if others.size:
            end = begin + int(others[-1]) + 1
            break
        end, step = begin, 2 * step
    return (len(blocks) - end) * BLOCK


def bytes_in_front(size_bytes: int, used_bytes: int) -> int:
    """How many bytes of a tensor travel if all behind the first `used_bytes` are 0."""
    return size_bytes - min(size_bytes - used_bytes, max(size_bytes - 1, 0)) // BLOCK * BLOCK
