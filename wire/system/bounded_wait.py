"""Bounded wait: a wait for another process that ends, with an error that names the phase.

The limit counts from the last sign of work, so that what takes long and gets on is not given up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..deadlines import Deadline
from ..errors import DeadlineExceeded

T = TypeVar("T")
ASLEEP_S = 1.0  # a check that comes so late means that this process was held up: the wait begins anew


def never() -> float:
    """No sign of work is known."""
    return -math.inf


async def within(
    deadline: Deadline,
    work: Awaitable[T],
    node: str = "",
    size_bytes: int = 0,
    worked_s: Callable[[], float] = never,
    most: Deadline | None = None,
) -> T:
    """The result of `work`, which is cancelled after the deadline; DeadlineExceeded then, about `node`.

    `worked_s` gives the time of the last sign of work, on the loop's clock; the deadline counts from there.  `most`
    ends the wait whatever it says.
    """
    loop = asyncio.get_running_loop()
    seconds = deadline.of(size_bytes) if deadline.by_size else deadline.seconds
    most_s = math.inf if most is None else most.of(size_bytes)
    began_s = loop.time()

    def due_s() -> float:
        return min(max(began_s, worked_s()) + seconds, began_s + most_s)

    def look(until_s: float) -> None:
        nonlocal began_s
        now = loop.time()
        if now - until_s > ASLEEP_S:
            began_s = now
        if now >= due_s():
            limit.reschedule(now)
        else:
            timers[:] = [loop.call_at(due_s(), look, due_s())]

    timers = [loop.call_at(due_s(), look, due_s())]
    try:
        async with asyncio.timeout(None) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded(
            f"{deadline.phase} took too long: no sign of progress for {min(seconds, most_s):.0f} s",
            node=node,
            next_step="Look at mesh-coord logs and at the log of that worker" if node else "",
        ) from None
    finally:
        timers[0].cancel()
