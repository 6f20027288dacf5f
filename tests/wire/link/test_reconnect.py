"""Waits between attempts: spread evenly, growing up to a cap, for ever; failures that come in turns are logged once."""

from __future__ import annotations

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from wire.errors import ConnectFailed
from wire.link.reconnect import Backoff, stay_linked
from wire.timeouts import DEFAULT_TIMEOUTS


async def test_failures_that_come_in_turns_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    """Two coordinators of which one refuses and one is gone would fill the log of a worker, day after day."""
    whys = itertools.cycle(["reset by peer", "refused"])
    tried, enough = itertools.count(1), asyncio.Event()

    async def reach(addresses: Any) -> Any:
        if next(tried) == 10:
            enough.set()
        raise ConnectFailed(f"no node answers at {addresses[0]}", cause=next(whys))

    endpoint: Any = SimpleNamespace(chance=lambda: 0.0, timeouts=DEFAULT_TIMEOUTS, reach=reach, links={})
    with caplog.at_level("INFO", "graph_mesh.transport"):
        trying = asyncio.create_task(stay_linked(endpoint, lambda: ["anna:7100"]))
        await asyncio.wait_for(enough.wait(), 60)
        trying.cancel()
    assert len(caplog.records) == 2


def test_the_bound_doubles_up_to_the_cap_and_stays() -> None:
    backoff = Backoff(lambda: 1.0, first_s=0.2, cap_s=2.0)
    assert [backoff.next_s() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_success_starts_again() -> None:
    backoff = Backoff(lambda: 1.0, first_s=0.2, cap_s=2.0)
    for _ in range(5):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 0.2


def test_a_crowd_spreads_over_the_whole_wait() -> None:
    chance = random.Random(7)
    crowd = [Backoff(chance.random, first_s=1.0, cap_s=2.0) for _ in range(1000)]
    waits = sorted(backoff.next_s() for backoff in crowd)
    assert waits[0] < 0.01 and waits[-1] > 0.99
    assert 0.45 < sum(waits) / 1000 < 0.55
