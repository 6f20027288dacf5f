"""Arrays that begin at a cache line, as vector registers want it: numpy's own begin at a quarter of one, and where they
begin in the middle, every load and store of a vector takes two lines.  A matrix product took 1.1 times as long."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wire.ir.types import HostArray

LINE_BYTES = 64
SMALL_BYTES = 1 << 15  # it costs a microsecond, which takes longer than what the lines of a smaller one take


_byte_of: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


class _Memory(np.ndarray[Any, Any]):
    """Bytes of an array, and a line's more."""


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> HostArray:
    """An array of these axes and this dtype, whose values may be anything."""
    size = math.prod(shape) * dtype.itemsize
    if size < SMALL_BYTES:
        return np.empty(shape, dtype)
    memory = _Memory(size + LINE_BYTES, np.uint8)
    return np.ndarray(shape, dtype, memory, -address(memory) % LINE_BYTES)


def address(array: HostArray) -> int:
    """The address of an array's first element, in a third of the time that numpy takes to say it if one may write to
    the array."""
    flags = array.flags
    if flags.writeable and flags.c_contiguous and array.size and array.dtype.isbuiltin == 1:  # bf16 is not
        return ctypes.addressof(_byte_of(array))
    return array.ctypes.data


def is_all_of(array: HostArray, memory: HostArray) -> bool:
    """Whether an array shows all that another one owns, of whose memory it is a view."""
    return array.nbytes == memory.nbytes - (LINE_BYTES if type(memory) is _Memory else 0)
