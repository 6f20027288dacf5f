"""Arrays that begin at a cache line, as vector registers want it: numpy's own begin at a quarter of one, and where they
begin in the middle, every load and store of a vector takes two lines.  A matrix product took 1.1 times as long.

Large arrays begin at a page.  A load waits for a store shortly before it whose address ends in the same bits (Intel 64
and IA-32 Architectures Optimization Reference Manual, "4-KByte memory aliasing").  Of arrays that lie one behind the
other in the heap, each begins a line further in its page, so that each load of a loop meets the store of the turn
before: a layer norm took 2.8 times as long.  Where all of them begin at a page, it meets a store that is a page older.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wire.ir.types import HostArray

LINE_BYTES, PAGE_BYTES = 64, 4096
LARGE_BYTES = 1 << 17  # a page is a thirtieth of it
SMALL_BYTES = 1 << 15  # it costs a microsecond, which takes longer than what the lines of a smaller one take


_byte_of: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


class _Memory(np.ndarray[Any, Any]):
    """Bytes of an array, and as many more as what it begins at a multiple of."""


def multiple_of(size: int) -> int:
    """What the address of an array of so many bytes is a multiple of."""
    return LINE_BYTES if size < LARGE_BYTES else PAGE_BYTES


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> HostArray:
    """An array of these axes and this dtype, whose values may be anything."""
    size = math.prod(shape) * dtype.itemsize
    if size < SMALL_BYTES:
        return np.empty(shape, dtype)
    multiple = multiple_of(size)
    memory = _Memory(size + multiple, np.uint8)
    return np.ndarray(shape, dtype, memory, -address(memory) % multiple)


def address(array: HostArray) -> int:
    """The address of an array's first element, in a third of the time that numpy takes to say it if one may write to
    the array."""
    flags = array.flags
    if flags.writeable and flags.c_contiguous and array.size and array.dtype.isbuiltin == 1:  # bf16 is not
        return ctypes.addressof(_byte_of(array))
    return array.ctypes.data


def is_all_of(array: HostArray, memory: HostArray) -> bool:
    """Whether an array shows all that another one owns, of whose memory it is a view."""
    return array.nbytes == memory.nbytes - (multiple_of(array.nbytes) if type(memory) is _Memory else 0)
