"""Gather: waits for several things at once, with one error for everything that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from wire.errors import ConnectFailed, MeshError

T = TypeVar("T")


async def gather_all(work: Sequence[Awaitable[T]]) -> list[T]:
    """Every result once all have ended.  One failure is raised as it is, several as one ConnectFailed that names
    each."""
    results = await asyncio.gather(*work, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if len(failures) == 1 or not isinstance(failure, MeshError):
            raise failure
    if failures:
        raise _together([failure for failure in failures if isinstance(failure, MeshError)])
    return [result for result in results if not isinstance(result, BaseException)]


def _together(failures: Sequence[MeshError]) -> ConnectFailed:
    """One error for several failures; a cause that they share stands in it once."""
    first = failures[0]
    one = all((failure.cause, failure.next_step) == (first.cause, first.next_step) for failure in failures)
    texts = [failure.message if one else str(failure) for failure in failures]
    shared = {"cause": first.cause, "next_step": first.next_step} if one else {}
    return ConnectFailed(f"{len(failures)} nodes failed: {'; '.join(texts)}", **shared)
