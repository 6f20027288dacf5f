"""Jobs in a row cost nothing that stays: after 100 of them no process grows by 1 KiB per job, and nothing is left open.

python tests/e2e/test_thousand_jobs.py 1000 [KIND...]       each kind of job on processes of its own, with the figures
What a kernel costs is counted apart from what a job costs: lavapipe keeps up to 5 MiB of one, and the coordinator may
try a device that seems slow with a program of its own at any time.  So lines are drawn between compilations, and those
are few.  ASK_TRACE=12 makes every process trace its allocations, and those that stayed are printed as well.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.endless import endless
from support.processes.commands import Daemon, client_of, daemon, environment, node_states, wait_for
from support.processes.footprint import (
    Asked,
    Footprint,
    ProcessReport,
    asking,
    files_in,
    footprint,
    per_job,
    shared_files,
)
from support.processes.worker_process import children

import mesh.numpy as mnp
from mesh import Mesh, errors, trace
from mesh.backends.remote import Remote
from mesh.core.handle import Handle
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.types import TensorType

WARM_UP = 100
SAMPLES = 36  # over the jobs after the warm-up
KIB_PER_JOB = 1.0
QUIET_S = 5.0  # for what a job left to be done
MOMENTARY = 2  # tasks of a kind that come and go by the clock, such as beats and questions to the owner
COMPILED_MAX = 8  # programs, after the warm-up: a trial and the plans that follow from it, on each worker
BUFFERS_MAX = 256 << 10  # bytes of a new program, which stay with a device that has nothing to do from then on
THREADS_MAX = (os.cpu_count() or 1) + 4 + 4  # Python's pool, which grows by need, and the threads that we know of
TRACE = int(os.environ.get("ASK_TRACE", "0"))

SMALL = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
LARGE = np.linspace(-1, 1, 160 * 160, dtype=np.float32).reshape(160, 160)  # 100 KiB: travels and is kept as a file


# -- kinds of jobs, for a coordinator daemon


def layers(count: int, x: Any) -> Any:
    def work(x: Any, w: Any) -> Any:
        for _ in range(count):
            x = mnp.tanh(x @ w)
        return x

    return trace(work, x, x)


SHORT, WIDE, ENDLESS = layers(2, SMALL), layers(4, LARGE), trace(endless, LARGE, LARGE)
TOO_LARGE = trace(lambda x: mnp.sum(mnp.tanh(mnp.broadcast_to(x, (1 << 24, 8, 8)))), SMALL)  # 4 GiB
WEIGHT = Handle(hash_array(LARGE), TensorType(LARGE.shape, F32), "w", LARGE)
WITH_PARAM = trace(lambda x, w: mnp.tanh(x @ w), LARGE, WEIGHT)


async def same(remote: Remote, number: int) -> None:
    await answered(remote, await remote.submit(SHORT, {"x": SMALL, "w": SMALL}, {}), SMALL.shape)


async def new_graph(remote: Remote, number: int) -> None:
    graph = trace(lambda x: mnp.tanh(x * np.float32(number)) + 1, SMALL)
    await answered(remote, await remote.submit(graph, {"x": SMALL}, {}), SMALL.shape)


async def new_input(remote: Remote, number: int) -> None:
    job = await remote.submit(WIDE, {"x": LARGE + np.float32(number), "w": LARGE}, {})
    await answered(remote, job, LARGE.shape)


async def detached(remote: Remote, number: int) -> None:
    await answered(remote, await remote.submit(SHORT, {"x": SMALL, "w": SMALL}, {}, detach=True), SMALL.shape)


async def cancelled(remote: Remote, number: int) -> None:
    job = await remote.submit(ENDLESS, {"x": LARGE, "w": LARGE}, {})
    await asyncio.sleep(0.02)
    await remote.cancel(job)
    with pytest.raises(errors.Cancelled):
        await remote.result(job)


async def failing(remote: Remote, number: int) -> None:
    with pytest.raises(errors.MeshError):
        await remote.result(await remote.submit(TOO_LARGE, {"x": SMALL}, {}))
    with pytest.raises(errors.InputError):
        await remote.submit(SHORT, {"x": LARGE, "w": LARGE}, {})


async def handles(remote: Remote, number: int) -> None:
    (name,) = WITH_PARAM.param_types
    (given,) = WITH_PARAM.input_types
    await answered(remote, await remote.submit(WITH_PARAM, {given: LARGE}, {name: WEIGHT}), LARGE.shape)


async def pipeline(remote: Remote, number: int) -> None:
    job = await remote.submit(WIDE, {"x": LARGE, "w": LARGE}, {}, strategy="pipeline")
    await answered(remote, job, LARGE.shape)


async def answered(remote: Remote, job: str, shape: tuple[int, ...]) -> None:
    outputs, _ = await remote.result(job)
    (array,) = outputs.values()
    assert array.shape == shape


KINDS: Mapping[str, Callable[[Remote, int], Awaitable[None]]] = {
    each.__name__: each for each in (same, new_graph, new_input, detached, cancelled, failing, handles, pipeline)
} | {"wgsl": pipeline}


# -- counting


@dataclass(slots=True)
class Count:
    """What processes held after the warm-up and at the end, and their memory between."""

    asked: Asked
    folder: Path
    pids: Mapping[str, int]
    jobs: list[int] = field(default_factory=list)
    memory: list[dict[str, Footprint]] = field(default_factory=list)
    compiled: list[int] = field(default_factory=list)  # programs for GPUs, of all workers
    remaining: list[str] = field(default_factory=list)  # at the end
    told: str = ""
    before: tuple[dict[str, Footprint], dict[str, ProcessReport], int, Counter[str]] | None = None

    def begin(self) -> None:
        self.before = self._held()

    def sample(self, job: int) -> None:
        self.jobs.append(job)
        self.memory.append({name: footprint(pid) for name, pid in self.pids.items()})
        self.compiled.append(sum(1 for _ in self.folder.glob("*/graph-mesh/*/*/kernels/*/*.json")))

    def grows(self, name: str) -> tuple[float, float]:
        """KiB per job: of resident memory, and of that which is no file."""
        settled = [place for place in range(len(self.jobs)) if self._settled(place)]
        jobs, rows = [self.jobs[place] for place in settled], [self.memory[place][name] for place in settled]
        stretches = [self.compiled[place] for place in settled]
        resident = per_job(jobs, [row.rss_kib for row in rows], stretches)
        return resident, per_job(jobs, [row.anonymous_kib for row in rows], stretches)

    def _settled(self, place: int) -> bool:
        """Drivers go on compiling at the first run."""
        return place == 0 or self.compiled[place] == self.compiled[place - 1]

    def left(self) -> list[str]:
        """What is there now and was not after the warm-up."""
        until_s = time.monotonic() + QUIET_S
        while (found := self._more()) and time.monotonic() < until_s:
            time.sleep(0.2)
        self.told = self.figures()
        return found

    def figures(self) -> str:
        assert self.before is not None
        _, told, shared, files = self._held()
        lines = []
        for name in self.pids:
            resident, anonymous = self.grows(name)
            first, last = self.memory[0][name], self.memory[-1][name]
            was, now = self.before[1][name], told[name]
            lines.append(
                f"  {name:12} {resident:+7.3f} KiB/job resident, {anonymous:+7.3f} anonymous "
                f"({first.rss_kib} -> {last.rss_kib} KiB), {now.blocks - was.blocks:+6} blocks, "
                f"{last.threads} threads, {sum(last.files.values())} open files, {sum(now.tasks.values())} tasks, "
                f"{now.device_bytes} device bytes"
            )
            grown = Counter(now.objects)
            grown.subtract(was.objects)
            lines.append(f"  {'':12} {dict(item for item in grown.most_common(8) if item[1] > 20)}")
            lines += [f"      {text}" for text in now.grew]
            if anonymous >= KIB_PER_JOB / 2:  # a step or a slope
                lines.append(f"      KiB: {' '.join(str(each[name].anonymous_kib) for each in self.memory)}")
        compiled = self.compiled[-1] - self.compiled[0]
        lines.append(f"  {compiled} programs compiled, {shared} shared-memory files, files {dict(files)}")
        return "\n".join(lines)

    def _more(self) -> list[str]:
        assert self.before is not None
        prints, told, shared, _ = self._held()
        prints_before, told_before, shared_before, _ = self.before
        buffers = BUFFERS_MAX * (self.compiled[-1] - self.compiled[0])
        found = [f"{shared - shared_before} shared-memory files"] if shared > shared_before else []
        for name in self.pids:
            for what, now, was in (
                ("files", prints[name].files, prints_before[name].files),
                ("threads", {"": prints[name].threads}, {"": max(prints_before[name].threads, THREADS_MAX)}),
                (
                    "tasks",
                    told[name].tasks,
                    {kind: told_before[name].tasks.get(kind, 0) + MOMENTARY for kind in told[name].tasks},
                ),
                ("device bytes", {"": told[name].device_bytes}, {"": told_before[name].device_bytes + buffers}),
            ):
                found += [
                    f"{name}: {count - was.get(kind, 0)} {what} {kind}"
                    for kind, count in now.items()
                    if count > was.get(kind, 0)
                ]
        return found

    def _held(self) -> tuple[dict[str, Footprint], dict[str, ProcessReport], int, Counter[str]]:
        told = {name: self.asked.tell(pid) for name, pid in self.pids.items()}
        prints = {name: footprint(pid) for name, pid in self.pids.items()}
        return prints, told, shared_files(list(self.pids.values())), files_in(self.folder)


async def counted(count: Count, jobs: int, run: Callable[[int], Awaitable[None]]) -> None:
    """So many jobs, the first of them to warm up."""
    every = max((jobs - WARM_UP) // SAMPLES, 1)
    for number in range(jobs):
        if number == min(WARM_UP, jobs // 2):
            await asyncio.to_thread(count.begin)
        await run(number)
        if number >= WARM_UP and (number - WARM_UP) % every == 0:
            count.sample(number)


# -- a coordinator daemon, two workers and a client


@dataclass(frozen=True, slots=True)
class Site:
    folder: Path
    coordinator: Daemon
    pids: Mapping[str, int]


@contextmanager
def site(folder: Path, *more: str, engine: str = "cpu") -> Iterator[Site]:
    env = environment(folder, MESH_NAME="thousand", TMPDIR=str(folder / "tmp"), PYTHONPATH=os.environ["PYTHONPATH"])
    (folder / "tmp").mkdir()
    with ExitStack() as stack:
        serve = ("coord", "serve", "--port", "0", "--no-mdns", *more)
        coordinator = stack.enter_context(daemon(*serve, env=env, log=folder / "coordinator.log"))
        words = ("worker", "--port", "0", "--no-mdns", "--device", engine, "--max-memory", "1GiB")
        words += ("--peer", coordinator.address)
        workers = {
            name: stack.enter_context(daemon(*words, "--name", name, env=env, log=folder / f"{name}.log"))
            for name in ("w0", "w1")
        }
        wait_for(lambda: node_states(coordinator) == dict.fromkeys(workers, "healthy"))
        pids = {"client": os.getpid(), "coordinator": coordinator.process.pid}
        for name, worker in workers.items():
            pids[name] = worker.process.pid
            pids |= {f"{name}-host{place}": pid for place, pid in enumerate(children(worker.process.pid))}
        yield Site(folder, coordinator, pids)


async def jobs_in_a_row(site: Site, asked: Asked, kind: str, jobs: int) -> Count:
    count = Count(asked, site.folder, site.pids)
    remote = await client_of(site.coordinator)
    try:
        await counted(count, jobs, lambda number: KINDS[kind](remote, number))
        count.remaining = await asyncio.to_thread(count.left)
    finally:
        await remote.close()
    return count


async def clients_in_a_row(site: Site, asked: Asked, kind: str, count_max: int) -> Count:
    """Clients that join, ask once and leave."""
    count = Count(asked, site.folder, {name: pid for name, pid in site.pids.items() if name != "client"})

    async def come_and_go(number: int) -> None:
        remote = await client_of(site.coordinator)
        assert len(await remote.nodes()) == 2
        await remote.close()

    await counted(count, count_max, come_and_go)
    count.remaining = await asyncio.to_thread(count.left)
    return count


def served(folder: Path, asked: Asked, kind: str, jobs: int) -> Count:
    engine = "0" if kind == "wgsl" else "cpu"
    in_a_row = clients_in_a_row if kind == CLIENTS else jobs_in_a_row
    with site(folder, engine=engine) as made:
        return asyncio.run(in_a_row(made, asked, kind, jobs))


# -- a coordinator in this process, three workers


def local(folder: Path, asked: Asked, kind: str, jobs: int) -> Count:
    with Mesh.builder().mesh("thousand-local").local(3, "cpu").build() as mesh:
        weights = mesh.put(LARGE)
        pids = {"program": os.getpid()}
        for node in mesh.nodes:
            pids[node.name] = node.pid
            pids |= {f"{node.name}-host{place}": pid for place, pid in enumerate(children(node.pid))}
        count = Count(asked, folder, pids)

        async def run(number: int) -> None:
            mesh.run(lambda x, w: mnp.tanh(x @ w) + 1, LARGE, weights, strategy="pipeline")

        asyncio.run(counted(count, jobs, run))
        count.remaining = count.left()
    return count


CLIENTS, LOCAL = "clients", "local"
ALL = (*KINDS, CLIENTS, LOCAL)


def run_kind(kind: str, jobs: int) -> tuple[Count, str]:
    """The count and its figures, taken while the processes live."""
    with tempfile.TemporaryDirectory() as name, asking(Path(name) / "asked", TRACE) as asked:
        folder = Path(name) / "site"
        folder.mkdir()
        count = (local if kind == LOCAL else served)(folder, asked, kind, jobs)
        return count, count.told


def wrong_in(count: Count) -> list[str]:
    """What grows or is left; of memory what is no file, since pages of files come and go with the page cache."""
    grown = {name: count.grows(name)[1] for name in count.pids}
    compiled = count.compiled[-1] - count.compiled[0]
    return (
        [f"{compiled} programs compiled"] * (compiled > COMPILED_MAX)
        + [f"{name} grows by {kib:.2f} KiB per job" for name, kib in grown.items() if kib >= KIB_PER_JOB]
        + [*count.remaining]
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs_adapter if kind == "wgsl" else ()) for kind in ALL])
def test_a_thousand_jobs_leave_nothing(kind: str) -> None:
    count, told = run_kind(kind, 1000)
    print(f"\n{told}")
    assert not wrong_in(count), told


@pytest.mark.long
def test_ten_thousand_runs_of_a_mesh_leave_nothing() -> None:
    count, told = run_kind(LOCAL, 10_000)
    print(f"\n{told}")
    assert not wrong_in(count), told


def main(jobs: int, kinds: list[str]) -> int:
    failed = 0
    for kind in kinds or ALL:
        began_s = time.monotonic()
        count, told = run_kind(kind, jobs)
        wrong = wrong_in(count)
        failed += bool(wrong)
        print(f"{kind}: {jobs} in {time.monotonic() - began_s:.0f} s: {wrong or 'nothing grows, nothing is left'}")
        print(told, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
