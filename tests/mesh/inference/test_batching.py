"""Which requests are computed together, and when."""

from __future__ import annotations

import inspect
import random
from dataclasses import fields
from typing import Any

import pytest

from mesh.inference import AsyncInferenceServer, InferenceServer, Options
from mesh.inference.replies import Request
from mesh.inference.request_batcher import Batcher, Waiting
from mesh.models.model import Model


def batcher(**other: float) -> Batcher:
    return Batcher(**{"rows_max": 4, "wait_s": 1.0, "queue_max": 10, "batches_max": 2, **other})  # type: ignore[arg-type]


def numbers(batch: list[Waiting]) -> list[int]:
    return [each.number for each in batch]


def test_a_batch_waits_for_more_until_it_is_full_or_its_time_is_up() -> None:
    machine = batcher()
    machine.add(Waiting(0, "a", 1, 0.0))
    machine.add(Waiting(1, "a", 2, 0.5))
    assert machine.take(0.9) == [] and machine.next_deadline() == 1.0
    machine.add(Waiting(2, "a", 1, 0.9))
    assert numbers(machine.take(0.9)) == [0, 1, 2], "four rows are a batch"
    machine.add(Waiting(3, "a", 1, 1.0))
    assert machine.take(1.9) == [] and numbers(machine.take(2.0)) == [3]
    assert machine.next_deadline() is None


def test_kinds_are_apart_and_one_does_not_hold_up_the_other() -> None:
    machine = batcher()
    machine.add(Waiting(0, "a", 1, 0.0))
    for number in range(1, 5):
        machine.add(Waiting(number, "b", 1, 0.1))
    assert numbers(machine.take(0.2)) == [1, 2, 3, 4] and numbers(machine.waiting.values()) == [0]  # type: ignore[arg-type]


def test_a_request_larger_than_a_batch_is_one_by_itself() -> None:
    machine = batcher()
    machine.add(Waiting(0, "a", 9, 0.0))
    machine.add(Waiting(1, "a", 1, 0.0))
    assert numbers(machine.take(0.0)) == [0] and machine.take(0.0) == []


def test_no_more_are_under_way_than_may_be_and_what_waits_gathers() -> None:
    machine = batcher(batches_max=1)
    for number in range(6):
        machine.add(Waiting(number, "a", 1, 0.0))
    assert numbers(machine.take(0.0)) == [0, 1, 2, 3] and machine.take(9.0) == [] and machine.next_deadline() is None
    assert machine.leave(4) and not machine.leave(0)
    machine.done()
    assert numbers(machine.take(9.0)) == [5]


def test_a_small_queue_refuses_nobody_while_a_batch_can_be_begun() -> None:
    machine = batcher(queue_max=1)
    for number in range(5):
        assert not machine.full
        machine.add(Waiting(number, "a", 1, 0.0))
    assert numbers(machine.take(0.0)) == [0, 1, 2, 3] and machine.take(0.0) == [] and not machine.full
    machine.add(Waiting(5, "b", 1, 0.0))
    assert machine.take(0.0) == [], "one waits, and one more may"
    machine.add(Waiting(6, "c", 1, 0.0))
    assert numbers(machine.take(0.0)) == [4], "more wait than may: the oldest is not made to wait for company"
    assert machine.full and machine.leave(5) and machine.full and machine.leave(6) and not machine.full
    machine.add(Waiting(7, "a", 1, 0.0))
    assert machine.full and machine.take(9.0) == []
    machine.done()
    assert not machine.full and numbers(machine.take(9.0)) == [7]


@pytest.mark.parametrize("seed", range(10))
def test_everybody_is_served_once_in_time_and_in_order_of_their_kind(seed: int) -> None:
    rng = random.Random(seed)
    machine, now, served, running = batcher(), 0.0, list[Waiting](), 0
    coming = [Waiting(number, rng.choice("ab"), rng.randint(1, 3), 0.0) for number in range(50)]
    while coming or machine.waiting:
        if coming and not machine.full and rng.random() < 0.7:
            first = coming.pop(0)
            machine.add(Waiting(first.number, first.kind, first.rows, now))
        while batch := machine.take(now):
            assert len({each.kind for each in batch}) == 1
            assert len(batch) == 1 or sum(each.rows for each in batch) <= machine.rows_max
            served += batch
            running += 1
        if running and rng.random() < 0.6:
            machine.done()
            running -= 1
        now += rng.uniform(0, 0.6)
    assert sorted(numbers(served)) == list(range(50))
    for kind in "ab":
        assert numbers([each for each in served if each.kind == kind]) == sorted(
            each.number for each in served if each.kind == kind
        )


@pytest.mark.parametrize("server", [InferenceServer, AsyncInferenceServer])
def test_options_stand_in_the_signatures_with_their_defaults(server: Any) -> None:
    def keywords(call: Any) -> dict[str, Any]:
        parameters = inspect.signature(call).parameters.values()
        assert not any(each.kind is each.VAR_KEYWORD for each in parameters)
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}

    assert keywords(server.load_model) == {each.name: each.default for each in fields(Options)}
    asked = {each.name: each.default for each in fields(Request)}
    assert asked.items() <= keywords(server.generate).items()
    assert asked.items() <= keywords(Model.generate).items()
