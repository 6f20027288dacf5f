"""What calls took by each plan: which calls count, and for how long."""

from __future__ import annotations

from coordinator.workers.call_times import FIRST, FRESH_S, PROGRAMS_MAX, SEEN_MIN, CallTimes

PROGRAM = "mlp"


def called(
    times: CallTimes, seconds: float, count: int = FIRST + SEEN_MIN, candidate: str = "data 2", deployed: int = 1,
    now_s: float = 0.0,
) -> None:  # fmt: skip
    for _ in range(count):
        times.took(PROGRAM, candidate, deployed, seconds, now_s)


def test_a_plan_is_known_after_some_calls_beside_the_first_ones() -> None:
    times = CallTimes()
    called(times, 9.0, FIRST)
    called(times, 0.011, SEEN_MIN - 1)
    assert times.known(PROGRAM, 0.0) == ()
    called(times, 0.011, 1)
    assert times.known(PROGRAM, 0.0) == (("data 2", 0.011),)
    assert times.known("another", 0.0) == ()


def test_a_few_calls_that_were_held_up_change_nothing() -> None:
    times = CallTimes()
    called(times, 0.010)
    called(times, 0.500, 3)
    called(times, 0.0105, 20)
    assert times.known(PROGRAM, 0.0) == (("data 2", 0.010),), "a twentieth is noise"
    called(times, 0.015, 20)
    assert times.known(PROGRAM, 0.0) == (("data 2", 0.015),)


def test_the_first_calls_of_every_deployment_do_not_count() -> None:
    times = CallTimes()
    called(times, 0.010)
    called(times, 0.400, FIRST, deployed=2)
    called(times, 0.010, SEEN_MIN, deployed=2)
    assert times.known(PROGRAM, 0.0) == (("data 2", 0.010),)


def test_a_plan_that_is_not_used_any_more_is_forgotten_after_a_while() -> None:
    times = CallTimes()
    called(times, 0.011)
    called(times, 0.008, candidate="single", deployed=2, now_s=FRESH_S)
    assert times.known(PROGRAM, FRESH_S) == (("data 2", 0.011), ("single", 0.008))
    assert times.known(PROGRAM, FRESH_S + 1) == (("single", 0.008),)


def test_programs_that_were_not_called_for_longest_are_forgotten() -> None:
    times = CallTimes()
    called(times, 0.011)
    for number in range(PROGRAMS_MAX):
        times.took(number, "single", 1, 0.01, 0.0)
    assert times.known(PROGRAM, 0.0) == ()
    called(times, 0.011)
    times.forget()
    assert times.known(PROGRAM, 0.0) == ()
