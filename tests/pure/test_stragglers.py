"""Who is slower than measured, judged by what parts took."""

from __future__ import annotations

import pytest

from coordinator.stragglers import FORGIVE_S, SEEN_MIN, SLOWNESS_MAX, Stragglers

A, B, C = ("a", 0), ("b", 0), ("c", 0)


def after(times: int, **took_s: float) -> Stragglers:
    """What is known after every device ran what was to take 100 ms, so many times."""
    made = Stragglers()
    for _ in range(times):
        for node, seconds in took_s.items():
            made.ran((node, 0), 0.1 * made.slowness((node, 0)), seconds, 0.0)
    return made


@pytest.mark.parametrize(("times_slower", "slowness"), [(1.0, 1), (1.3, 1), (2.0, 2), (3.0, 4), (10.0, 8), (1e4, 64)])
def test_a_device_slower_than_others_is_a_straggler(times_slower: float, slowness: float) -> None:
    seen = after(20, a=0.1, b=0.1, c=0.1 * times_slower)
    assert [seen.slowness(site) for site in (A, B, C)] == [1, 1, slowness]
    assert slowness <= SLOWNESS_MAX


def test_one_slow_run_is_an_accident() -> None:
    seen = after(5, a=0.1, b=0.1)
    assert not seen.ran(A, 0.1, 1.0, 0.0) and not seen.ran(A, 0.1, 0.1, 0.0)
    assert seen.slowness(A) == 1


def test_a_cost_model_that_errs_on_everybody_makes_nobody_a_straggler() -> None:
    assert not list(after(20, a=0.5, b=0.5, c=0.6).slow())


def test_a_lone_device_is_judged_by_its_prediction_with_some_patience() -> None:
    assert after(5, a=0.25).slowness(A) == 1
    assert after(5, a=0.8).slowness(A) == 4


def test_what_takes_no_time_says_nothing() -> None:
    seen = after(5, a=0.1, b=0.1)
    assert not any(seen.ran(C, 0.0001, 0.0015, 0.0) for _ in range(9))


def test_a_device_that_is_well_again_is_trusted_again() -> None:
    seen = after(5, a=0.1, b=0.8)
    assert seen.slowness(B) == 8
    assert any(seen.ran(B, 0.8, 0.1, 1.0) for _ in range(SEEN_MIN))
    assert seen.slowness(B) == 1


def test_a_device_without_work_is_forgiven_by_halves() -> None:
    seen = after(5, a=0.1, b=0.8)
    assert not seen.forgive(FORGIVE_S - 1)
    assert seen.forgive(FORGIVE_S) and seen.slowness(B) == 4
    assert not seen.forgive(FORGIVE_S + 1)
    assert seen.forgive(2 * FORGIVE_S) and seen.forgive(3 * FORGIVE_S) and seen.slowness(B) == 1
    assert not seen.forgive(9 * FORGIVE_S)


def test_a_node_that_begins_anew_is_nobodys_straggler() -> None:
    seen = after(5, a=0.1, b=0.8)
    seen.forget("b")
    assert seen.slowness(B) == 1
