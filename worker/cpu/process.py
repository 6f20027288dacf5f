"""How this process uses the machine: one BLAS thread, and memory that stays."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

from threadpoolctl import threadpool_limits

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h
_KEPT_BYTES = 1 << 30


@cache
def one_thread() -> None:
    """Switch numpy's BLAS to one thread, for the life of the process.

    The order of a dot's sums then follows from shapes alone, and workers of one machine do not fight over cores.
    """
    import numpy  # noqa: F401  # loads the library that is limited

    threadpool_limits(1, user_api="blas")


@cache
def keep_memory() -> None:
    """Let malloc keep freed memory: glibc gives arrays back after every operation, and most of an elementwise
    operation's time then goes to page faults.  For processes that do nothing but compute; elsewhere nothing happens."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in (
            (_M_MMAP_THRESHOLD, _KEPT_BYTES),
            (_M_TRIM_THRESHOLD, _KEPT_BYTES),
            (_M_TOP_PAD, 1 << 26),
        ):
            mallopt(option, value)
