"""User code: functions of a program that are called in a thread, or for somebody who waits for a future.

Futures take a StopIteration and a CancelledError for words of their own: a StopIteration cannot be set at all, so that
whoever waits would wait for ever.  A plain `next()` of an iterator that is over raises one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def called(work: Callable[..., T], *args: Any) -> T:
    """Call a function of a program; what futures would take for their own comes as a RuntimeError."""
    try:
        return work(*args)
    except (StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError) as left:
        raise RuntimeError(f"a function of the program raised {left!r}") from left


async def called_in_thread(work: Callable[..., T], *args: Any) -> T:
    """Call a function of a program in a thread, as `called` does."""
    return await asyncio.to_thread(called, work, *args)
