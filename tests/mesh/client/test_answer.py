"""Answers: threads wait for them, however often, and whoever tells one waits for nobody."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from mesh.core.answer import Answer


def test_all_that_wait_have_it_once_it_is_told() -> None:
    answer: Answer[int] = Answer()
    had: list[int] = []

    def wait() -> None:
        assert answer.wait(120)
        had.append(answer.result())

    waiting = [threading.Thread(target=wait) for _ in range(8)]
    for thread in waiting[:6]:
        thread.start()
    answer.tell(3)
    for thread in waiting[6:]:
        thread.start()
    for thread in waiting:
        thread.join(120)
    assert had == [3] * 8
    assert answer.wait() and answer.wait(0) and answer.result() == 3, "as often as anybody asks"


def test_one_that_waits_no_longer_leaves_nothing() -> None:
    answer: Answer[None] = Answer()
    for _ in range(3):
        assert not answer.wait(0) and not answer.done()
    assert not answer._calls
    answer.tell(None)
    assert answer.wait(0)


def test_threads_that_begin_to_wait_while_it_is_told_all_have_it() -> None:
    for _ in range(300):
        answer: Answer[None] = Answer()
        waiting = [threading.Thread(target=answer.wait) for _ in range(3)]
        waiting.insert(1, threading.Thread(target=answer.tell, args=(None,)))
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join(60)
            assert not thread.is_alive()


def test_calls_are_made_once_in_the_order_of_asking_and_at_once_where_it_is_known() -> None:
    answer: Answer[int] = Answer()
    calls: list[str] = []
    for name in "ab":
        answer.then(lambda name=name: calls.append(name))  # type: ignore[misc]
    answer.tell(1)
    answer.then(lambda: calls.append("c"))
    assert calls == ["a", "b", "c"]
    with pytest.raises(AssertionError, match="known already"):
        answer.tell(2)


def test_an_error_is_raised_as_often_as_anybody_asks_and_does_not_keep_itself() -> None:
    class Own(TimeoutError):
        """One that can be watched."""

    answer: Answer[int] = Answer()
    answer.fail(Own("its own"))
    for _ in range(2):
        with pytest.raises(TimeoutError, match="its own"):
            answer.result()
    error = answer.error()
    assert isinstance(error, Own)
    gone = weakref.ref(error)
    gc.disable()
    try:
        del answer, error
        assert gone() is None
    finally:
        gc.enable()


def test_a_future_of_a_loop_ends_in_what_is_told_in_another_thread() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        told, failed, cancelled, late = Answer[int](), Answer[int](), Answer[int](), Answer[int]()
        futures = [answer.future(loop) for answer in (told, failed, cancelled, late)]
        for work in (lambda: told.tell(4), lambda: failed.fail(KeyError("no")), cancelled.cancel):
            await asyncio.to_thread(work)
        assert await futures[0] == 4
        with pytest.raises(KeyError):
            await futures[1]
        with pytest.raises(asyncio.CancelledError):
            await futures[2]
        futures[3].cancel()
        late.tell(5)
        await asyncio.sleep(0)
        assert futures[3].cancelled() and late.result() == 5

    asyncio.run(scenario())


def test_a_loop_that_is_closed_is_not_told() -> None:
    loop, answer = asyncio.new_event_loop(), Answer[int]()
    future = answer.future(loop)
    loop.close()
    answer.tell(1)
    assert not future.done()
