"""Waits between attempts: spread evenly, growing up to a cap, for ever."""

from __future__ import annotations

import random

from wire.link.reconnect import Backoff


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
