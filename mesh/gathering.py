"""Waiting for several things at once, and one error for everything that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from wire.errors import ConnectFailed, MeshError

T = TypeVar("T")


async def gather_all(work: Sequence[Awaitable[T]]) -> list[T]:
    """Every result once all have ended; a single failure as it is, several as one ConnectFailed that names each."""
    results = await asyncio.gather(*work, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if len(failures) == 1 or not isinstance(failure, MeshError):
            raise failure
    if failures:
        raise ConnectFailed(f"{len(failures)} nodes failed: " + "; ".join(str(failure) for failure in failures))
    return [result for result in results if not isinstance(result, BaseException)]
