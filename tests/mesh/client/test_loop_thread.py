"""The loop's thread: whoever asks gets an answer or ConfigError, also while it stops."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from mesh.core.loop_thread import LoopThread
from wire.errors import ConfigError


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_it_runs_coroutines_until_it_is_stopped() -> None:
    loop = LoopThread(asyncio.new_event_loop())
    assert loop.wait(answer()) == 42
    loop.stop()
    loop.stop()
    assert loop.stopped
    with pytest.raises(ConfigError, match="closed"):
        loop.wait(answer())
    with pytest.raises(ConfigError, match="closed"):
        loop.call_soon(print)


def test_what_still_waits_when_it_stops_cleans_up_and_ends() -> None:
    loop = LoopThread(asyncio.new_event_loop())
    began, cleaned = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    def ask() -> None:
        try:
            loop.wait(forever())
        except ConfigError as error:
            ended.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert began.wait(120)
    loop.stop()
    asking.join(120)
    assert cleaned.is_set() and len(ended) == 1


def test_a_call_that_exits_its_thread_leaves_nobody_waiting() -> None:
    loop = LoopThread(asyncio.new_event_loop())
    began = threading.Event()

    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    def leave() -> None:
        assert began.wait(120)
        loop.call_soon(sys.exit, 1)

    leaving = threading.Thread(target=leave)
    leaving.start()
    with pytest.raises(ConfigError, match="closed"):
        loop.wait(forever())
    leaving.join(120)
    assert loop.stopped
    loop.stop()


def test_many_threads_that_ask_while_it_stops_all_come_back() -> None:
    for _ in range(20):
        loop = LoopThread(asyncio.new_event_loop())
        ends: list[object] = []

        def ask(loop: LoopThread = loop, ends: list[object] = ends) -> None:
            try:
                while True:
                    assert loop.wait(answer()) == 42
            except ConfigError as error:
                ends.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        loop.stop()
        for thread in threads:
            thread.join(120)
        assert len(ends) == 4


def test_its_own_thread_cannot_wait_for_it() -> None:
    loop = LoopThread(asyncio.new_event_loop())
    said: list[str] = []

    def ask() -> None:
        try:
            loop.wait(answer())
        except ConfigError as error:
            said.append(str(error))

    loop.call_soon(ask)
    assert loop.wait(answer()) == 42
    assert said == ["a watcher cannot wait for its own mesh. Ask in another thread"]
    loop.stop()
