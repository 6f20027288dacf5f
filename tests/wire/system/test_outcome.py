"""Outcomes: what comes of a question is told at once, and once."""

from __future__ import annotations

from wire.errors import MeshError, NodeLost
from wire.system.outcome import Outcome

Calls = list[tuple[int | None, MeshError | None]]


def asked() -> tuple[Outcome[int], Calls, list[str]]:
    calls: Calls = []
    cancelled: list[str] = []
    outcome: Outcome[int] = Outcome(lambda: cancelled.append("it"))
    outcome.then(lambda value, error: calls.append((value, error)))
    return outcome, calls, cancelled


def test_a_value_is_told_in_the_moment_in_which_it_is_known() -> None:
    outcome, calls, cancelled = asked()
    outcome.set_result(7)
    assert calls == [(7, None)] and outcome.done() and not cancelled


def test_so_is_an_error() -> None:
    outcome, calls, _ = asked()
    error = NodeLost("gone")
    outcome.set_exception(error)
    assert calls == [(None, error)]


def test_what_is_known_already_is_told_to_who_asks_later() -> None:
    outcome: Outcome[int] = Outcome()
    outcome.set_result(7)
    calls: Calls = []
    outcome.then(lambda value, error: calls.append((value, error)))
    assert calls == [(7, None)]


def test_who_cancels_is_told_nothing_and_what_is_asked_hears_of_it() -> None:
    outcome, calls, cancelled = asked()
    outcome.cancel()
    outcome.cancel()
    assert outcome.done() and cancelled == ["it"] and not calls


def test_what_is_known_cannot_be_cancelled() -> None:
    outcome, calls, cancelled = asked()
    outcome.set_result(7)
    outcome.cancel()
    assert not cancelled and len(calls) == 1
