"""A large state is put together by a thread: it is that of its moment, whatever is let go meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from coordinator.sessions.copy_shell import CopyShell
from mesh import Mesh
from mesh.simulation.loop import VirtualLoop

LARGE = np.zeros((1024, 768), np.float32)  # 3 MiB


def grow(state: Any, x: Any) -> tuple[Any, Any]:
    return state + x, x


@pytest.mark.parametrize("copies", ["none", "buddy", "checkpoint"])
def test_a_state_that_is_read_stays_what_it_was_while_the_session_goes_on(
    copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, by_thread = 0, list[bool]()
    whole, run_in_executor = CopyShell.whole, VirtualLoop.run_in_executor

    def in_thread(*args: Any) -> Any:
        nonlocal threads
        threads += 1
        try:
            return run_in_executor(*args)
        finally:
            threads -= 1

    def seen(*args: Any) -> Any:
        by_thread.append(threads > 0)
        return whole(*args)

    monkeypatch.setattr(VirtualLoop, "run_in_executor", in_thread)
    monkeypatch.setattr(CopyShell, "whole", seen)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with await Mesh.builder().mesh("sim").simulate(2, 1).build_async() as mesh:
            session = await mesh.session(grow, LARGE, np.float32(1), copies=copies, every=1)
            loop.thread_s = lambda: 0.5
            reading = []
            for _ in range(4):
                await session.step(np.float32(1))
                reading.append(asyncio.ensure_future(session.state()))
                await asyncio.sleep(0.01)
            for number, read in enumerate(reading, 1):
                assert (await read == number).all()
            await session.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    assert len(by_thread) >= 4 and all(by_thread)
