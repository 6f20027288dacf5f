"""One node, several addresses: try them side by side and keep the connection that stands first (RFC 8305's way).

An attempt that fails lets the next begin at once, so an address that is out of reach costs nothing, and one that never
answers costs a moment.  While one was not heard of yet, those that failed are tried again: a standby begins to listen
after the coordinator's machine has lost its power.  It knows neither sockets nor who answers.

Not aiohappyeyeballs, which races TCP connections: here an attempt is a WebSocket over TLS.  Its race has one delay for
all attempts, so none has a head start; it cancels those that lost in the middle of their handshake, which the other
side's log would call a stranger's; and it drops the result of one that had just been connected, without closing it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import ConfigError, ConnectFailed, MeshError, NotTrusted
from ..system.tasks import Tasks, unheard

T = TypeVar("T")

HEAD_START_S = 0.25  # of an address that worked before; RFC 8305's own figure
LATE_S = 1.0  # for an attempt that lost to come to its end
AGAIN_S = 0.25  # until one that failed is tried again
STAGGER_S = 0.005  # between others: a cable answers sooner than Wi-Fi, and either sooner than a detour


async def race(
    addresses: Sequence[str],
    connect: Callable[[str], Coroutine[Any, Any, T]],
    discard: Callable[[T], object],
    head_start_s: float = STAGGER_S,
) -> tuple[str, T]:
    """The address that was first, with its connection; those that come too late are given to `discard`.

    The first address has `head_start_s` to itself.  ConnectFailed says what was wrong with every one.
    """
    loop = asyncio.get_running_loop()
    left = list(addresses)
    tasks, running = Tasks(), dict[asyncio.Task[T], str]()
    failures: dict[str, MeshError] = {}
    next_s, wait_s = loop.time(), head_start_s
    again_s: dict[str, float] = {}  # when those that failed are to be tried again
    won: asyncio.Task[T] | None = None
    try:
        while running or any(address not in failures for address in left):
            if left and (not running or loop.time() >= again_s.get(left[0], next_s)):
                address = left.pop(0)
                running[tasks.run("dialling", connect(address), unheard)] = address
                next_s, wait_s = loop.time() + wait_s, STAGGER_S
            patience_s = max(again_s.get(left[0], next_s) - loop.time(), 0.0) if left else None
            done, _ = await asyncio.wait(running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: addresses.index(running[task])):
                if task.exception() is None:
                    won = task
                    return running[task], task.result()
                address, error = running.pop(task), _failure(task)
                failures[address] = error
                if isinstance(error, ConnectFailed) and any(each not in failures for each in running.values()):
                    again_s[address] = loop.time() + AGAIN_S
                    left.append(address)
    finally:
        for task in (loser for loser in running if loser is not won):
            if won is None:
                task.cancel()
            else:  # to its listener, a handshake that breaks off looks like a stranger's
                loop.call_later(LATE_S, task.cancel)
            task.add_done_callback(lambda task: _too_late(task, discard))
    raise _all_failed(failures)


def _failure(task: asyncio.Task[T]) -> MeshError:
    error = task.exception()
    assert isinstance(error, MeshError)
    if type(error) is MeshError and error.__cause__ is not None:
        raise error.__cause__  # a fault of ours, which nobody here can handle
    return error


def _too_late(task: asyncio.Task[T], discard: Callable[[T], object]) -> None:
    if not task.cancelled() and task.exception() is None:
        discard(task.result())


def _all_failed(failures: Mapping[str, MeshError]) -> MeshError:
    """The error if nothing answered: one failure as it is, several as one."""
    if not failures:
        return ConnectFailed("there is no address to dial", next_step="It listens nowhere, so let it dial this node")
    if len(failures) == 1 or all(isinstance(error, ConfigError) for error in failures.values()):
        return next(iter(failures.values()))
    failures = dict(sorted(failures.items()))  # so that the same failures have the same text
    causes = "; ".join(f"{address}: {error.cause or error.message}" for address, error in failures.items())
    next_step = next(error.next_step for error in failures.values() if not isinstance(error, ConfigError))
    if all(isinstance(error, NotTrusted) for error in failures.values()):
        return NotTrusted(f"no node of this mesh is at any of {', '.join(failures)}", cause=causes, next_step=next_step)
    return ConnectFailed(f"no node answers at any of {', '.join(failures)}", cause=causes, next_step=next_step)
