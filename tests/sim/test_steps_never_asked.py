"""A step of a session on a coordinator daemon that fails before the daemon has it: the steps after it are done."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_sessions_over_broken_links import Daemon, run

import mesh.backends.remote
from coordinator.jobs.client_session import Requests
from coordinator.jobs.program_upload import ProgramUpload
from mesh.backends.remote_session import ASKED_AT_ONCE
from wire.limits import DEFAULT

ANSWER_S = 600.0  # virtual seconds within which anything must have ended
LARGE = np.ones(100_000, np.float32)  # does not ride along with a message


def total_of(total: Any, x: Any) -> Any:
    return total + x, total


def failing_once(real: Any) -> Any:
    failures = [MemoryError("no memory")]

    def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args)

    return failing


def test_more_steps_than_a_link_has_room_for_are_all_done() -> None:
    assert DEFAULT.requests_per_peer_max > ASKED_AT_ONCE
    room, count = 64, 100

    async def scenario() -> None:
        async with Daemon(1, workers=1) as daemon:
            link: Any = await daemon.remote._open()
            link._machine.limits = replace(link._machine.limits, requests_per_peer_max=room)
            one = np.float32(1)
            async with asyncio.timeout(ANSWER_S):
                session = await daemon.mesh.session(total_of, one * 0, one, copies="none", strategy="single")
                running: Any = session.running
                running._at_once = asyncio.Semaphore(room // 2)
                steps = [session.step(one) for _ in range(count)]
                assert await session.state() == count
                assert [float(await step) for step in steps] == [*range(count)]
                await session.close()

    run(scenario())


@pytest.mark.parametrize("where", ["here", "at the coordinator"])
def test_a_step_whose_arguments_find_no_memory_keeps_nothing_from_being_done(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def scenario() -> None:
        async with Daemon(2, workers=1) as daemon:
            session = await daemon.mesh.session(total_of, LARGE * 0, LARGE, copies="none", strategy="single")
            await session.step(LARGE)
            if where == "here":
                monkeypatch.setattr(mesh.backends.remote, "hash_array", failing_once(mesh.backends.remote.hash_array))
            else:
                monkeypatch.setattr(ProgramUpload, "values", failing_once(ProgramUpload.values))
            async with asyncio.timeout(ANSWER_S):
                steps = [session.step(LARGE) for _ in range(3)]
                outcomes = await asyncio.gather(*steps, return_exceptions=True)
                assert sum("no memory" in str(outcome) for outcome in outcomes) == 1
                np.testing.assert_array_equal(await session.state(), 3 * LARGE)
                np.testing.assert_array_equal(await session.step(LARGE), 3 * LARGE)
                await session.close()

    run(scenario())


async def test_what_was_given_up_lets_the_next_one_go_on_and_not_those_that_wait_for_others() -> None:
    requests, loop = Requests(), asyncio.get_running_loop()
    for number in (2, 4):
        requests.turns[number] = loop.create_future()
        requests.answers[number] = asyncio.ensure_future(requests.turns[number])  # type: ignore[arg-type]
    second, fourth = requests.turns[2], requests.turns[4]
    requests.give_up(1 << 53)
    assert second.done() and not fourth.done() and requests.next_number == 2
    requests.done(2)
    assert not fourth.done()
    requests.give_up(4)
    assert fourth.done() and requests.next_number == 4 and not requests.over
