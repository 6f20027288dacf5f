"""A coordinator that is killed again and again, workers that stay, and clients who keep every promise it makes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mesh.numpy as mnp
from mesh import trace
from mesh.backends.enrolment import client_membership
from mesh.backends.remote import Remote
from wire.errors import MeshError
from wire.joining.join_port import PORT_OFFSET

from .commands import ROOT, Daemon, environment
from .site import working

MESH = "durable"
SMALL, LARGE = (4, 8), (64, 64)  # the second does not fit into an entry: its values are files
CHECKED_MAX = 600  # of the jobs that were promised, so many are asked for at the end: older ones may be forgotten
PATIENCE_S = 240.0
CLIENTS = 3
TOLD_EVERY = 100


def free_port() -> int:
    """A port for a coordinator that comes and goes: none that the system gives whoever asks for any, dials included."""
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(given_away.read_text().split()[0]) if given_away.exists() else 32_768
    for port in random.SystemRandom().sample(range(10_000, max(end, 20_000) - PORT_OFFSET), 1000):
        with suppress(OSError), ExitStack() as taken:
            for each in (port, port + PORT_OFFSET):
                taken.enter_context(socket.create_server(("127.0.0.1", each)))
            return port
    raise AssertionError("no port is free")


def workers(folder: Path, port: int, count: int) -> AbstractContextManager[dict[str, Daemon]]:
    """Workers that dial a port until a coordinator is there, and again whenever it is gone."""
    names = [f"w{place}" for place in range(count)]
    return working(folder, environment(folder, MESH_NAME=MESH), f"127.0.0.1:{port}", names)


def home(folder: Path) -> str:
    """The state folder of workers, clients and coordinator: they are one user's."""
    return str(Path(environment(folder)["XDG_STATE_HOME"]) / "graph-mesh")


async def client(folder: Path, port: int) -> Remote:
    return await Remote.connect(MESH, "127.0.0.1", port, client_membership(MESH, home(folder)))


# -- a coordinator that dies


@dataclass(slots=True)
class Lives:
    """The lives of one coordinator: `begin` each, wait for `over`."""

    process: asyncio.subprocess.Process
    log: Path
    pid: int = 0

    async def begin(self, dies_at: int = 0) -> bool:
        """Start it; whether it got as far as being ready."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{dies_at}\n".encode())
        await self.process.stdin.drain()
        said = await self._line()
        self.pid = said.get("pid", 0)
        assert said["event"] == "ready" or said["status"] == signal.SIGKILL, self.log.read_text()[-4000:]
        return said["event"] == "ready"

    async def over(self) -> None:
        """Wait until it is dead, by SIGKILL."""
        said = await self._line()
        assert said == {"event": "died", "status": signal.SIGKILL}, self.log.read_text()[-4000:]

    async def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def lives(folder: Path, port: int) -> AsyncIterator[Lives]:
    log = folder / "coordinator.log"
    log.touch()
    words = (sys.executable, "-m", "support.processes.dying_coordinator", str(port), home(folder), str(log))
    env = environment(folder, MESH_NAME=MESH)
    env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
    with log.open("ab") as errors:
        pipe = subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, env=env, stdin=pipe, stdout=pipe, stderr=errors)
    made = Lives(process, log)
    try:
        yield made
    finally:
        if made.pid:
            _kill(made.pid)
        process.kill()
        await process.wait()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# -- clients who remember


def work(x: Any, by: Any) -> Any:
    return {"y": x * 3 + by, "most": mnp.max(x * 3 + by)}


@dataclass(slots=True)
class Promises:
    """Jobs that were accepted, and the answers that were given."""

    remote: Remote
    rng: random.Random
    accepted: dict[str, tuple[int, int]] = field(default_factory=dict)  # -> which shape, and the number added
    answered: dict[str, None] = field(default_factory=dict)  # in the order of their answers
    asked: int = 0
    stopped: bool = False

    async def client(self, name: str) -> None:
        """Submit, wait, ask again for something older, for ever."""
        for number in range(10**9):
            if self.stopped:
                return
            job = f"{name}-{number}"
            size, by = self.rng.randrange(2), self.rng.randrange(1000)
            x, add = arguments(size, by)
            given = await self.remote.submit(GRAPHS[size], {"x": x, "by": add}, {}, detach=number % 3 > 0, job=job)
            assert given == job
            self.accepted[job] = (size, by)
            await self.check(job)
            older = self.rng.choice(list(self.answered)[-CHECKED_MAX // 2 :])
            await self.check(older)

    async def check(self, job: str) -> None:
        """The job's answer, whichever life gives it, has the right bits."""
        size, by = self.accepted[job]
        outputs, _ = await self.remote.result(job)
        self.asked += 1
        expected = arguments(size, by)[0] * 3 + by
        assert np.array_equal(outputs["y"], expected), f"job {job} was answered wrongly"
        assert outputs["most"] == expected.max()
        self.answered[job] = None


def arguments(size: int, by: int) -> tuple[NDArray[Any], NDArray[Any]]:
    shape = (SMALL, LARGE)[size]
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.full(shape, by, np.float32)


GRAPHS = tuple(trace(work, *arguments(size, 0)) for size in range(2))


async def killed_often(folder: Path, steps: Iterable[int], seed: int = 1) -> Promises:
    """Kill a coordinator at these steps of writing, a life for each; every promise it made is kept by a later life."""
    port = free_port()
    with workers(folder, port, 2):
        async with lives(folder, port) as coordinator:
            assert await coordinator.begin()
            promises = Promises(await client(folder, port), random.Random(seed))
            tasks = [asyncio.create_task(promises.client(f"{seed}-{place}")) for place in range(CLIENTS)]
            began_s = time.monotonic()
            while len(promises.answered) < CLIENTS:
                await asyncio.sleep(0.01)
            _kill(coordinator.pid)
            await coordinator.over()
            for number, step in enumerate(steps, 1):
                if await coordinator.begin(step):
                    await coordinator.over()
                for task in tasks:
                    if task.done():
                        task.result()
                if number % TOLD_EVERY == 0:
                    told = f"{len(promises.accepted)} jobs accepted, {promises.asked} answers checked"
                    print(f"{number} kills in {time.monotonic() - began_s:.0f} s: {told}", flush=True)
            assert await coordinator.begin()
            promises.stopped = True
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
            for job in list(promises.accepted)[-CHECKED_MAX:]:
                await promises.check(job)
            states = {job.job: job.state for job in await promises.remote.jobs()}
            assert set(states.values()) == {"done"}, states
            await promises.remote.close()
    return promises


async def attached(folder: Path, port: int, count: int, within_s: float = 120.0) -> float:
    """Seconds from now until a coordinator on the port has so many healthy workers."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < within_s:
        try:
            remote = await client(folder, port)
        except MeshError:
            await asyncio.sleep(0.01)
            continue
        try:
            while time.monotonic() - began_s < within_s:
                if sum(node.state == "healthy" for node in await remote.nodes()) == count:
                    return time.monotonic() - began_s
                await asyncio.sleep(0.01)
        finally:
            await remote.close()
    raise AssertionError(f"{count} workers were not there within {within_s:g} s")
