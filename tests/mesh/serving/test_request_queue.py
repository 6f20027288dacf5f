"""The queue of a model: fair between clients, bounded, and honest about how long it takes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mesh.inference.settings import GREEDY
from mesh.serving.admission import Admission
from mesh.serving.answer import TextRequest
from mesh.serving.api_error import ApiError
from mesh.serving.request_queue import RequestQueue
from mesh.serving.served_embedding import ServedEmbedding
from mesh.serving.served_text import ServedText


def test_clients_take_turns_whoever_has_asked_for_most() -> None:
    queue = RequestQueue(1, 100)
    begun = queue.add(0, "crowd")
    for number in range(1, 6):
        assert queue.add(number, "crowd") == []
    assert queue.add(6, "single") == []
    assert queue.add(7, "other") == []
    order = list(begun)
    while queue.running:
        order += queue.leave(order[-1], 1.0)
    assert order == [0, 1, 6, 7, 2, 3, 4, 5]


def test_who_leaves_while_it_waits_takes_no_turn() -> None:
    queue = RequestQueue(1, 10)
    queue.add(0, "a")
    queue.add(1, "b")
    queue.add(2, "b")
    assert queue.leave(1) == []
    assert queue.waiting == 1
    assert queue.leave(0, 1.0) == [2]
    assert queue.leave(2, 1.0) == []
    assert not queue.lines


def test_the_time_to_wait_follows_what_requests_took() -> None:
    queue = RequestQueue(2, 10)
    assert queue.retry_after_s == 1
    for number in range(20):
        queue.add(number, "a")
        queue.leave(number, 8.0)
    for number in range(20, 26):
        queue.add(number, "a")
    assert queue.retry_after_s == pytest.approx(8.0 * 5 / 2, abs=1)
    queue.mean_s = 1e9
    assert queue.retry_after_s == 60


async def test_a_full_queue_refuses_with_the_time_to_wait() -> None:
    admission = Admission(1, 2)
    first = await admission.turn("a")
    waiting = [asyncio.create_task(admission.turn("a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as caught:
        await admission.turn("b")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert admission.waiting == 1
    first.end()
    first.end()  # once only
    second = await waiting[1]
    assert admission.running == 1
    second.end()
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_full_queue_refuses_before_anything_is_done_for_the_request() -> None:
    admission = Admission(1, 0)
    turn = await admission.turn("a")
    text, embedding = (cast(Any, kind.__new__(kind)) for kind in (ServedText, ServedEmbedding))
    for served in (text, embedding):  # it has nothing else, neither a tokenizer nor a model
        served.successor, served.admission = None, admission
    for asked in (text.begin(TextRequest(("Hello",), GREEDY), "b"), embedding.embed(["Hello"], "b")):
        with pytest.raises(ApiError) as caught:
            await asked
        assert caught.value.status == 429
    turn.end()
