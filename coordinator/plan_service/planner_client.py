"""Planner client: answers to the questions of `coordinator/planning/contingency.py`, and of sessions about deaths to
come, by default from a process of its own.

It takes no time from this one.  A thread would: planning is Python, so that every step of a call would wait for the
interpreter, up to 5 ms each.  The process starts with the first question, or when one is about to come, and ends some
seconds after the last; a question that nobody wants any more ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from wire.deadlines import PLAN_AHEAD
from wire.system.bounded_wait import within
from wire.system.child_python import python_command
from wire.system.steady_log import steady_logger
from wire.timeouts import DEFAULT_TIMEOUTS

from ..planning.plan_codec import AnyQuestion, question_bytes
from .planner_main import LENGTH, answer_of

T = TypeVar("T")
log = steady_logger("graph_mesh.coordinator")
_IDLE_PRIORITY = getattr(subprocess, "IDLE_PRIORITY_CLASS", 0)  # Windows; elsewhere the process sees to it


class PlannerClient(Protocol):
    """One question at a time; one that is cancelled costs nothing any more."""

    async def answer(self, question: AnyQuestion) -> bytes | None:
        """The plan as `coordinator/planning/plan_codec.py` writes it, None if there is none; OSError or EOFError if
        nobody can tell."""
        ...

    async def get_ready(self) -> None:
        """A question is about to come; OSError if nobody could answer it."""
        ...

    async def close(self) -> None: ...


class InProcessPlanner:
    """Answers from a thread of this process: for the simulation, whose time stands still meanwhile."""

    async def answer(self, question: AnyQuestion) -> bytes | None:
        return await asyncio.to_thread(answer_of, question)

    async def get_ready(self) -> None:
        return

    async def close(self) -> None:
        return


class PlannerProcess:
    """Answers from a child process (`planner_main.py`), one question after the other; `idle_s` without a question end
    it."""

    def __init__(self, idle_s: float = DEFAULT_TIMEOUTS.planner_idle_s) -> None:
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._ending: list[asyncio.subprocess.Process] = []  # which end by themselves, and may not be over yet
        self._rest: asyncio.TimerHandle | None = None

    async def answer(self, question: AnyQuestion) -> bytes | None:
        encoded = await asyncio.to_thread(question_bytes, question)
        async with self._turn:
            return await self._use(within(PLAN_AHEAD, self._exchange(encoded))) or None

    async def get_ready(self) -> None:
        async with self._turn:
            await self._use(self._started())

    async def close(self) -> None:
        """End the process, and whatever it is at.  It is over when this returns, since event loops close then.

        A caller that closes while another does, or after one that was cancelled, waits for the same processes.
        """
        self._retire()
        if self._rest is not None:
            self._rest.cancel()
        for process in self._ending:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _use(self, use: Awaitable[T]) -> T:
        """Use the process, which then rests; one that could not be used to the end is closed."""
        if self._rest is not None:
            self._rest.cancel()
        try:
            result = await use
        except BaseException:
            await self.close()
            raise
        self._rest = asyncio.get_running_loop().call_later(self._idle_s, self._end)
        return result

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *python_command("coordinator.plan_service.planner_main"),
                stdin=pipe,
                stdout=pipe,
                creationflags=_IDLE_PRIORITY,
            )
        return self._process

    async def _exchange(self, data: bytes) -> bytes:
        process = await self._started()
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(LENGTH.pack(len(data)) + data)
        await stdin.drain()
        (length,) = LENGTH.unpack(await stdout.readexactly(LENGTH.size))
        return await stdout.readexactly(length)

    def _end(self) -> None:
        """Nothing was asked for a while: the process sees that its stdin ends."""
        process = self._retire()
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def _retire(self) -> asyncio.subprocess.Process | None:
        """The process, which nobody asks any more.  It is kept until it is over."""
        process, self._process = self._process, None
        self._ending = [other for other in (process, *self._ending) if other is not None and other.returncode is None]
        return process
