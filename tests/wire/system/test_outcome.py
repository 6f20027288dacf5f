"""Outcomes: what comes of a question is told at once, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from wire.errors import MeshError, NodeLost
from wire.system.outcome import Outcome, PromptFuture

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


def endings(future: PromptFuture[int]) -> list[Callable[[], object]]:
    return [lambda: future.set_result(7), lambda: future.set_exception(NodeLost("gone")), future.cancel]


@pytest.mark.parametrize("ending", range(3))
def test_a_prompt_future_tells_one_at_once_and_others_in_the_next_turn(ending: int) -> None:
    async def scenario() -> None:
        future: PromptFuture[int] = PromptFuture()
        told: list[str] = []
        future.add_done_callback(lambda _: told.append("others"))
        future.then(lambda done: told.append("one" if done is future and done.done() else "nobody"))
        endings(future)[ending]()
        assert told == ["one"]
        await asyncio.wait([future])
        assert told == ["one", "others"]
        future.then(lambda _: told.append("who asks later"))
        assert told[-1] == "who asks later"
        assert future.cancelled() == (ending == 2) and (future.cancelled() or bool(future.exception()) == (ending == 1))

    asyncio.run(scenario())


def test_a_prompt_future_that_was_cancelled_before_is_told_once() -> None:
    async def scenario() -> None:
        future: PromptFuture[int] = PromptFuture()
        told: list[object] = []
        future.then(told.append)
        waiting = asyncio.ensure_future(asyncio.wait_for(future, 60))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert told == [future] and future.cancelled() and not future.cancel()

    asyncio.run(scenario())
