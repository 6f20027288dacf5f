"""Two clocks tell whether a machine slept, a process stood still, or nothing happened."""

from __future__ import annotations

from wire.link.sleep_detector import SleepDetector


def test_it_says_whether_the_machine_slept_or_the_process_alone_stood_still() -> None:
    waking = SleepDetector()
    clocks = ((0, 1000), (1, 1001), (2, 4602), (3, 4603), (34, 4634))
    assert [(bool(waking.tick(*clock)), waking.slept) for clock in clocks] == [
        (False, False), (False, False), (True, True), (False, False), (True, False),
    ]  # fmt: skip


def reasons(*clocks: tuple[float, float]) -> list[str]:
    waking = SleepDetector()
    return [waking.tick(*clock) for clock in clocks]


def test_ordinary_ticks_mean_nothing() -> None:
    assert reasons((0, 1000), (1.0, 1001.0), (2.1, 1002.1), (3.0, 1003.4)) == [""] * 4


def test_a_wall_clock_that_ran_ahead_means_sleep() -> None:
    assert reasons((0, 1000), (1, 1001), (2, 4602), (3, 4603)) == ["", "", "this machine slept for 3600 s", ""]


def test_a_long_gap_of_both_means_that_the_process_stood_still() -> None:
    assert reasons((0, 1000), (31, 1031), (32, 1032)) == ["", "this process stood still for 31 s", ""]


def test_a_clock_that_is_set_back_is_nothing() -> None:
    assert reasons((0, 1000), (1, 400), (2, 401)) == ["", "", ""]
