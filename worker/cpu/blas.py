"""One-thread BLAS: the order of a dot's sums then follows from shapes alone, and workers do not fight over cores."""

from __future__ import annotations

from functools import cache

from threadpoolctl import threadpool_limits


@cache
def one_thread() -> None:
    """Switch numpy's BLAS to one thread, for the life of the process."""
    import numpy  # noqa: F401  # loads the library that is limited

    threadpool_limits(1, user_api="blas")
