"""For how long to wait for a job, errors of its own, and blocks that end elsewhere than they began."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import AsyncMesh, Mesh
from wire.errors import DeadlineExceeded, InputError

FOREVER = [None, math.inf, 1e30, np.float64(1e12)]
WRONG = [10**400, "1", math.nan, True, [1], 1j]


@pytest.mark.parametrize("simulated", [True, False])
def test_any_number_of_seconds_is_a_time_to_wait_and_nothing_else_is(simulated: bool) -> None:
    builder = Mesh.builder().simulate(1) if simulated else Mesh.builder()
    with builder.build() as mesh:
        for timeout_s in FOREVER:
            job = mesh.submit(lambda x: x @ x, np.ones((64, 64)))
            assert job.result(timeout_s).shape == (64, 64)
        for timeout_s in WRONG:
            job = mesh.submit(lambda x: x @ x, np.ones((64, 64)))
            with pytest.raises(InputError, match="timeout_s"):
                job.result(timeout_s)


def test_it_is_the_same_on_a_loop() -> None:
    async def story() -> None:
        async with await AsyncMesh.builder().build_async() as mesh:
            job = await mesh.submit(lambda x: x @ x, np.ones((64, 64)))
            for timeout_s in FOREVER:
                assert (await job.result(timeout_s)).shape == (64, 64)
            for timeout_s in WRONG:
                with pytest.raises(InputError, match="timeout_s"):
                    await job.result(timeout_s)

    asyncio.run(story())


def test_a_time_out_of_what_is_waited_for_is_not_taken_for_the_end_of_the_wait() -> None:
    async def late() -> None:
        raise TimeoutError("of its own")

    with Mesh.builder().build() as mesh, pytest.raises(TimeoutError, match="of its own"):
        mesh.wait(late())


def test_a_job_without_a_result_in_time_continues() -> None:
    with Mesh.builder().simulate(1).build() as mesh, mesh.session(lambda s, x: (s + x, s), ONE, ONE) as session:
        step = session.step(ONE)
        for timeout_s in (0, -1.0):
            with contextlib.suppress(DeadlineExceeded):
                assert step.result(timeout_s) == 1
        assert step.result() == 1


def test_a_block_that_ends_in_another_thread_closes_its_mesh() -> None:
    mesh = Mesh.builder().simulate(1).build()
    mesh.__enter__()
    ended: list[Any] = []

    def end() -> None:
        try:
            ended.append(mesh.__exit__(None, None, None))
        except ValueError as error:
            ended.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert ended == [None] and "closed" in repr(mesh)
    assert (mnp.ones(3) + 1).sum() == 6, "values are computed where they were before the block"


ONE = np.float32(1)
