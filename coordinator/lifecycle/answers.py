"""Answers: gives callers results that have to be put together first, in a thread if they are large.

A copy of gigabytes takes a second, for which the event loop would stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from wire.errors import MeshError
from wire.system.tasks import Tasks, as_error
from wire.transfer.content_exchange import OFF_LOOP_BYTES

T = TypeVar("T")
Made = tuple[int, Callable[[], T]]  # how many bytes are copied for something, and what does it, in whatever thread


def give(tasks: Tasks, future: asyncio.Future[T] | None, what: str, prepare: Callable[[], Made[T]]) -> None:
    """Give the caller the result of `prepare`, or its error.  `prepare` is called now: it notes all that
    is needed, which may be let go after that."""
    if future is None or future.done():
        return
    try:
        size_bytes, make = prepare()
        if size_bytes <= OFF_LOOP_BYTES:
            future.set_result(make())
            return
    except Exception as fault:
        future.set_exception(as_error(f"{what} failed", fault))
        return

    async def made() -> None:
        answer = await asyncio.to_thread(make)
        if not future.done():
            future.set_result(answer)

    def failed(error: MeshError) -> None:
        if not future.done():
            future.set_exception(error)

    making = tasks.run(what, made(), failed)
    making.add_done_callback(lambda ended: future.cancel() if ended.cancelled() else None)
