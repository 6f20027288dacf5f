"""One client has jobs without end and gigabytes in the queue; another one gets its turn, and the coordinator stays
small."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
from support.processes.commands import Daemon, daemon, environment, node_states, run, wait_for
from support.processes.site import SERVE, WORKER
from support.promised import within

import mesh
import mesh.numpy as mnp
from coordinator.runtime.call_runner import HELD_S
from mesh import DeviceMap, errors, trace
from mesh.backends.enrolment import client_membership
from mesh.backends.remote import Remote
from mesh.client.async_mesh import AsyncMesh
from mesh.commands import exit_codes
from wire.bounds import JOBS_RUNNING
from wire.limits import MIB
from wire.policy.strategies import text_of

T = TypeVar("T")
MESH = "greedy"
MEMORY_BYTES_MAX = 300 * MIB  # of the coordinator, promised
STARTS_S = 1.0  # promised
SMALL = np.ones((2, 2), np.float32)


def endless(x: Any, y: Any) -> Any:
    return mesh.while_loop(lambda s: s[0] >= 0, lambda s: (s[0] * 1, mnp.tanh(s[1])), (mnp.array(np.int32(1)), x + y))[
        1
    ]


def head(x: Any, by: Any) -> Any:
    return mnp.sum(x[:4].astype(np.float32)) + by


def resident_bytes(pid: int) -> int:
    """All that a process has in memory, its mappings of files as well."""
    return int(psutil.Process(pid).memory_info().rss)


class Person:
    """Somebody with a certificate of their own, on this machine or, as far as memory goes, on another."""

    def __init__(self, folder: Path, coordinator: Daemon, token: str) -> None:
        self.coordinator, env = coordinator, environment(folder, MESH_NAME=MESH)
        done = run("coord", "join", "--coordinator", coordinator.address, env=env | {"MESH_TOKEN": token})
        assert done.returncode == exit_codes.OK, done.stderr
        self._state = str(Path(env["XDG_STATE_HOME"]) / "graph-mesh")

    async def remote(self, far: bool = False) -> Remote:
        membership = client_membership(MESH, self._state)
        remote = await Remote.connect(MESH, "127.0.0.1", self.coordinator.ready["port"], membership)
        if far:  # large content goes over the link, as between machines
            remote._exchange._shared = None
        return remote

    def ask(self, ask: Callable[[Remote], Awaitable[T]], far: bool = False) -> T:
        async def connected() -> T:
            remote = await self.remote(far)
            try:
                return await ask(remote)
            finally:
                await remote.close()

        return asyncio.run(connected())


async def greed(remote: Remote, jobs: int, size_bytes: int) -> None:
    """Endless jobs, each a program of its own, and jobs that wait with inputs of this size."""
    for number in range(JOBS_RUNNING.most):
        graph = trace(lambda x, number=number: endless(x, np.float32(number)), SMALL)
        await remote.submit(graph, {"x": SMALL}, {}, detach=True, strategy=on("one"))
    rng = np.random.default_rng(0)
    for number in range(jobs):
        x = np.frombuffer(rng.bytes(size_bytes), np.uint8)
        graph = trace(lambda x, number=number: head(x, np.float32(number)), x)
        await remote.submit(graph, {"x": x}, {}, detach=True, job=f"waiting-{number}")


def on(worker: str) -> str:
    """Placed on one worker."""
    return text_of(DeviceMap().layer("", worker))


async def starts(remote: Remote, strategy: str, worker: str) -> None:
    """A call of another client begins on this worker, and ends."""
    graph = trace(lambda x: mnp.sum(mnp.tanh(x)) * 2, np.ones(100_000, np.float32))
    with within(STARTS_S, f"the call of another client begins on {worker}"):
        job = await remote.submit(graph, {"x": np.ones(100_000, np.float32)}, {}, strategy=strategy, detach=True)
        while True:
            (report,) = await remote.jobs(job)
            if any(f" began {worker}: " in line for line in report.log):
                break
            assert report.state in ("queued", "running"), report.log
            await asyncio.sleep(0.02)
    await remote.result(job)
    (report,) = await remote.jobs(job)
    began = [line for line in report.log if " began " in line]
    assert all(f" began {worker}: " in line for line in began), "what others have begun is not told"


def greedy(tmp_path: Path, jobs: int, size_bytes: int, far: bool, growth_bytes_max: int) -> None:
    env = environment(tmp_path, MESH_NAME=MESH)
    with daemon(*SERVE, "--port", "0", env=env, log=tmp_path / "coordinator.log") as coordinator:
        env["MESH_ADDRESS"] = coordinator.address
        tokens = [run("coord", "token", "create", "--role", "client", env=env).stdout.strip() for _ in ("ann", "bob")]
        peer = ("--peer", coordinator.address)
        with (
            daemon(*WORKER, *peer, "--name", "one", env=env, log=tmp_path / "one.log"),
            daemon(*WORKER, *peer, "--name", "two", env=env, log=tmp_path / "two.log"),
        ):
            wait_for(lambda: node_states(coordinator) == {"one": "healthy", "two": "healthy"})
            ann, bob = (
                Person(tmp_path / name, coordinator, token) for name, token in zip(("ann", "bob"), tokens, strict=True)
            )
            pid, most = coordinator.process.pid, 0
            before = resident_bytes(pid)

            async def watched(remote: Remote) -> None:
                nonlocal most
                work = asyncio.ensure_future(greed(remote, jobs, size_bytes))
                while not work.done():
                    most = max(most, resident_bytes(pid))
                    await asyncio.sleep(0.01)
                await work

            ann.ask(watched, far)

            async def at_work(remote: Remote) -> bool:
                """All run that may, and at least one has begun its part."""
                reports = await remote.jobs()
                states = [report.state for report in reports]
                assert len(states) == JOBS_RUNNING.most + jobs and states.count("running") <= JOBS_RUNNING.most, states
                begun = [
                    line for each in reports for line in (await remote.jobs(each.job))[0].log if " began one: " in line
                ]
                return bool(begun) and (states.count("running"), states.count("queued")) == (JOBS_RUNNING.most, jobs)

            wait_for(lambda: ann.ask(at_work))
            time.sleep(2 * HELD_S)  # of a part that never ends, which holds a device
            bob.ask(lambda remote: starts(remote, "auto", "two"))  # which is free
            bob.ask(lambda remote: starts(remote, on("one"), "one"))  # where endless parts take turns
            print(
                f"the coordinator had {before / MIB:.0f} MiB, and at most {most / MIB:.0f}, in the end "
                f"{resident_bytes(pid) / MIB:.0f}, {jobs} jobs with {size_bytes / MIB:.0f} MiB each"
            )
            assert most - before <= growth_bytes_max
            assert resident_bytes(pid) <= MEMORY_BYTES_MAX
            with pytest.raises(errors.InputError, match="no job 'waiting-0' here"):
                bob.ask(lambda remote: remote.cancel("waiting-0"))


@pytest.mark.parametrize("far", [False, True], ids=["shared memory", "the link"])
def test_another_client_gets_its_turn_and_what_waits_takes_no_memory(tmp_path: Path, far: bool) -> None:
    greedy(tmp_path, jobs=3, size_bytes=48 * MIB, far=far, growth_bytes_max=96 * MIB)


@pytest.mark.skipif(sys.platform != "linux", reason="how much memory is of no file is asked of /proc")
def test_weights_of_a_session_are_on_the_disk_and_in_no_memory_of_the_coordinator(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME=MESH)
    weights, x = np.zeros(24 * MIB, np.float32), np.float32(1)
    with daemon(*SERVE, "--port", "0", env=env, log=tmp_path / "coordinator.log") as coordinator:
        token = run("coord", "token", "create", "--role", "client", env=env).stdout.strip()
        with daemon(*WORKER, "--peer", coordinator.address, "--name", "one", env=env, log=tmp_path / "one.log"):
            wait_for(lambda: node_states(coordinator) == {"one": "healthy"})
            ann = Person(tmp_path / "ann", coordinator, token)
            status = Path(f"/proc/{coordinator.process.pid}/status")

            def anonymous_bytes() -> int:
                return 1024 * int(status.read_text().split("RssAnon:")[1].split()[0])

            async def trains(remote: Remote) -> int:
                most = before = anonymous_bytes()
                async with AsyncMesh(remote) as far:
                    session = await far.session(lambda w, x: (w + x, w[-1]), weights, x, copies="none")
                    step = asyncio.ensure_future(session.step(x))
                    while not step.done():
                        most = max(most, anonymous_bytes())
                        await asyncio.sleep(0.01)
                    assert await step == 0 and await session.step(x) == 1
                return most - before

            assert ann.ask(trains, far=True) <= weights.nbytes // 2


@pytest.mark.long
@pytest.mark.parametrize("far", [False, True], ids=["shared memory", "the link"])
def test_eight_endless_jobs_and_gigabytes_that_wait(tmp_path: Path, far: bool) -> None:
    greedy(tmp_path, jobs=5, size_bytes=512 * MIB, far=far, growth_bytes_max=MEMORY_BYTES_MAX)


def test_a_job_that_is_endless_ends_at_its_limit_and_says_so(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME=MESH)
    with daemon(
        *SERVE, "--port", "0", "--job-time-limit", "6s", env=env, log=tmp_path / "coordinator.log"
    ) as coordinator:
        token = run("coord", "token", "create", "--role", "client", env=env).stdout.strip()
        with daemon(*WORKER, "--peer", coordinator.address, "--name", "one", env=env, log=tmp_path / "one.log"):
            wait_for(lambda: set(node_states(coordinator).values()) == {"healthy"})
            ann = Person(tmp_path / "ann", coordinator, token)
            graph = trace(lambda x: endless(x, np.float32(1)), SMALL)

            async def too_long(remote: Remote) -> None:
                job = await remote.submit(graph, {"x": SMALL}, {}, detach=True)
                with pytest.raises(errors.DeadlineExceeded, match="ran for more than 6 s"):
                    await remote.result(job)
                short = await remote.submit(trace(lambda x: x + 1, SMALL), {"x": SMALL}, {}, detach=True)
                outputs, _ = await remote.result(short)
                np.testing.assert_array_equal(next(iter(outputs.values())), SMALL + 1)

            ann.ask(too_long)


@pytest.mark.parametrize("flag", [("--client-jobs", "0"), ("--client-waiting", "0"), ("--client-bytes", "much"),
                                  ("--job-time-limit", "soon"), ("--audit-untrusted", "2")])  # fmt: skip
def test_what_clients_may_have_has_to_make_sense(tmp_path: Path, flag: tuple[str, str]) -> None:
    began_s = time.monotonic()
    done = run("coord", "serve", *flag, env=environment(tmp_path))
    assert done.returncode == exit_codes.USAGE and flag[1] in done.stderr and os.linesep == done.stderr[-1:]
    assert time.monotonic() - began_s < 60.0
