"""What is recorded after a call waits until no caller does, keeps its order, and runs soon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from coordinator.runtime.deferred_updates import SOON_S, DeferredUpdates
from mesh.simulation.loop import VirtualLoop
from wire.bounds import DEFERRED_UPDATES


def simulate(scenario: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        await scenario()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_an_update_waits_until_the_next_call_was_sent_or_for_a_moment() -> None:
    async def scenario() -> None:
        ran: list[int] = []
        updates = DeferredUpdates()
        updates.add(lambda: ran.append(1))
        updates.add(lambda: ran.append(2))
        assert not ran
        updates.flush()
        assert ran == [1, 2]
        updates.add(lambda: ran.append(3))
        await asyncio.sleep(2 * SOON_S)
        assert ran == [1, 2, 3]

    simulate(scenario)


def test_many_that_wait_run_at_once() -> None:
    async def scenario() -> None:
        ran: list[int] = []
        updates = DeferredUpdates()
        for number in range(DEFERRED_UPDATES.most):
            assert not ran
            updates.add(partial(ran.append, number))
        assert ran == [*range(DEFERRED_UPDATES.most)]

    simulate(scenario)


def test_one_that_fails_keeps_no_other_from_running(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        ran: list[int] = []
        updates = DeferredUpdates()
        updates.add(lambda: 1 // 0)
        updates.add(lambda: ran.append(2))
        updates.flush()
        assert ran == [2] and "recording what a worker did failed" in caplog.text

    simulate(scenario)
