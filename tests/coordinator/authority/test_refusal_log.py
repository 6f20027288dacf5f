"""What strangers do is written down once each, and never so often that it fills a disk."""

from __future__ import annotations

import random

from coordinator.authority.refusal_log import ALL, ORIGIN, REMEMBERED, REPEATED_S, RefusalLog

DAY_S = 86400.0


def test_each_thing_is_told_at_once_and_its_repetitions_once_an_hour_with_their_number() -> None:
    seen = RefusalLog()
    assert [seen.record("10.0.0.1", what, 0.0) for what in ("used", "expired", "used", "used")] == [0, 0, None, None]
    assert seen.record("10.0.0.2", "used", 1.0) == 2, "another machine does the same"
    assert seen.record("10.0.0.1", "used", REPEATED_S - 1) is None
    assert seen.record("10.0.0.1", "used", REPEATED_S) == 1


def test_one_origin_gets_so_many_lines_and_leaves_room_for_others() -> None:
    seen = RefusalLog()
    told = [seen.record("10.0.0.1", f"thing {number}", 0.0) for number in range(1000)]
    assert told == [0] * ORIGIN.lines + [None] * (1000 - ORIGIN.lines)
    assert seen.record("10.0.0.2", "thing", 0.0) == 1000 - ORIGIN.lines
    assert seen.record("10.0.0.1", "later", ORIGIN.every_s) == 0


def test_a_network_of_64_bits_is_one_origin_and_this_machine_is_none() -> None:
    seen = RefusalLog()
    neighbours = [seen.record(f"2001:db8::{number:x}", f"thing {number}", 0.0) for number in range(100)]
    assert neighbours.count(None) == 100 - ORIGIN.lines
    assert None not in [seen.record("127.0.0.1", f"thing {number}", 0.0) for number in range(50)]


def test_a_flood_of_a_day_from_anywhere_about_anything_fills_no_disk() -> None:
    seen, rng = RefusalLog(), random.Random(1)
    told = [
        seen.record(f"10.{rng.randrange(256)}.{rng.randrange(256)}.1", str(number), number * DAY_S / 50_000)
        for number in range(50_000)
    ]
    lines = [untold for untold in told if untold is not None]
    assert len(lines) <= ALL.lines + DAY_S / ALL.every_s
    assert len(lines) + sum(lines) >= 50_000 - 50, "what is not told is counted"
    assert len(seen._origins) <= REMEMBERED and len(seen._done) <= REMEMBERED


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    seen = RefusalLog()
    assert seen.record("10.0.0.1", "used", 1e6) == 0
    assert seen.record("10.0.0.1", "used", 1e6 - DAY_S) == 0
