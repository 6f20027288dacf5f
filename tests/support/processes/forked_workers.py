"""Worker processes that are forked from one that has imported the modules, as asyncio has processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mesh.backends import local_workers

from .commands import ROOT, Forked, may_fork

OWN_PATH = local_workers.environment()["PYTHONPATH"]  # of which a worker reads its first folder only


class ForkedProcess:
    """What is used of asyncio.subprocess.Process."""

    def __init__(self, forked: Forked, stdin: IO[bytes], stdout: asyncio.StreamReader) -> None:
        self._forked = forked
        self._ended = asyncio.Event()
        self.pid, self.stdin, self.stdout = forked.pid, stdin, stdout
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(forked, self._end)

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def send_signal(self, number: int) -> None:
        self._forked.send_signal(number)

    def kill(self) -> None:
        self._forked.kill()

    def terminate(self) -> None:
        self._forked.terminate()

    async def wait(self) -> int:
        await self._ended.wait()
        return self._forked.wait()

    def _end(self) -> None:
        self._loop.remove_reader(self._forked)
        self._forked.wait()
        self._ended.set()


async def forked(
    module: str, arguments: Sequence[str], env: Mapping[str, str], errors: IO[bytes], session: bool = False
) -> Any:
    """A process that is forked; None where it may not be."""
    if env["PYTHONPATH"] == OWN_PATH:
        env = {**env, "PYTHONPATH": str(ROOT)}
    if not may_fork(env):
        return None
    (reading, output), (input, stdin) = (
        [os.fdopen(end, how, 0) for end, how in zip(os.pipe(), ("rb", "wb"), strict=True)] for _ in range(2)
    )
    with output:
        process = Forked(module, arguments, env, Path.cwd(), output, errors, input, session)
    stdout = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stdout)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, reading)
    return ForkedProcess(process, stdin, stdout)


async def start_process(command: Sequence[str], errors: IO[bytes]) -> Any:
    """Stands for `start_process` of mesh/backends/local_workers.py."""
    _, _, _, module, *arguments = command  # python -P -m
    return await forked(module, arguments, local_workers.environment(), errors, True) or await _anew(command, errors)


_anew = local_workers.start_process
