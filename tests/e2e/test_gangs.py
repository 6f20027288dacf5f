"""Gangs on real daemons: ranks of one machine read each other's mailboxes, those of others are carried by the daemons.

Three workers, of which the third shares no memory with the others, as if it were on another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from support.processes.worker_process import Coordinator, Fleet, gone, opened_by, worker
from support.ranks import HANGS_S
from support.tls import authority, credentials

from wire.errors import DeviceLost, MeshError
from wire.ir.codec import tensor_bytes
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.protocol.messages import (
    Began,
    CancelStep,
    Drop,
    Gang,
    Member,
    PartSpec,
    PlanKey,
    Push,
    Source,
    SourceKind,
    Target,
    Value,
)
from worker.cpu import CpuEngine

LARGE = (3, 200_000)  # 2.4 MB: letters that are streams
LAID_BYTES = -(-math.prod(LARGE) * 4 // 4096) * 4096  # what a rank gives of it in its shared region
GROUP: dict[str, Any] = {"axes": ("dp",), "sizes": (3,)}


def part_graph(shape: tuple[int, ...]) -> WireGraph:
    """The sum over all ranks, what the rank before has, and the rank's number."""
    builder = GraphBuilder()
    x = builder.input("x", shape, F32)
    total = builder.add("all_reduce", x, **GROUP, reduction="sum")
    before = builder.add("permute", builder.add("neg", x), **GROUP, pairs=(0, 1, 1, 2, 2, 0))
    return builder.build([total, before, builder.add("axis_index", **GROUP)], names=["total", "before", "rank"])


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with three_workers(tmp_path, apart="three") as made:
        yield made


@contextlib.asynccontextmanager
async def three_workers(folder: Path, apart: str = "", memory_bytes: int = 0) -> AsyncIterator[Fleet]:
    """All of one machine, but the one that is `apart`."""
    coordinator = Coordinator()
    async with AsyncExitStack() as stack:
        made = Fleet(coordinator)
        starting = [
            stack.enter_async_context(worker(folder, name, share_memory=name != apart, memory_bytes=memory_bytes))
            for name in ("one", "two", "three")
        ]
        made.workers = list(await asyncio.gather(*starting))
        for each in made.workers:
            made.links.append((await coordinator.join(each))[0])
        yield made
    await coordinator.close()


@pytest.mark.long
async def test_hosts_of_members_connect_within_tls(tmp_path: Path) -> None:
    by = authority()
    coordinator = Coordinator(member=credentials(tmp_path / "tester", by, "coordinator", mesh="test"))
    async with AsyncExitStack() as stack:
        made = Fleet(coordinator)
        starting = [
            stack.enter_async_context(worker(tmp_path, name, by=by, share_memory=name != "three", host="127.0.0.1"))
            for name in ("one", "two", "three")
        ]
        made.workers = list(await asyncio.gather(*starting))
        for each in made.workers:
            made.links.append((await coordinator.join(each))[0])
        await ranks_reach_each_other(made)
    await coordinator.close()


class Ranks:
    """A gang over the fleet, of one plan."""

    def __init__(self, fleet: Fleet, plan: PlanKey, shape: tuple[int, ...]) -> None:
        self.fleet, self.plan, self.graph = fleet, plan, part_graph(shape)
        self.members = tuple(Member(each.node_id, rank, 0) for rank, each in enumerate(fleet.workers))

    def spec(self, rank: int) -> PartSpec:
        targets = tuple((Target("", 0, 3 * rank + output),) for output in range(3))
        gang = Gang(GROUP["axes"], GROUP["sizes"], rank, self.members)
        return PartSpec(rank, 0, self.graph.hash, (Source(SourceKind.INPUT),), targets, gang=gang)

    async def deploy(self) -> None:
        for rank, link in enumerate(self.fleet.links):
            part = [(self.spec(rank), self.graph)]
            await self.fleet.coordinator.deploy(link, part, self.plan, peers=self.fleet.peers, ordered=True)

    async def run(self, step: int, arrays: list[NDArray[Any]]) -> dict[int, NDArray[Any]]:
        """The outputs, three per rank; MeshError."""
        every = await asyncio.gather(*(self.run_rank(rank, step, array) for rank, array in enumerate(arrays)))
        return {slot: array for outputs in every for slot, array in outputs.items()}

    async def run_rank(self, rank: int, step: int, array: NDArray[Any]) -> dict[int, NDArray[Any]]:
        coordinator, link = self.fleet.coordinator, self.fleet.links[rank]
        feed = coordinator.feed(rank, 0, array, "inline" if array.nbytes < 10_000 else "stream")
        asked = asyncio.create_task(coordinator.run(link, self.plan, step, feed))
        if feed.value.data is None:
            header = Push(self.plan, step, rank, 0, Value("f32", array.shape))
            await link.send_stream(header, tensor_bytes(array))
        return (await asked)[1]


def right(outputs: dict[int, NDArray[Any]], arrays: list[NDArray[Any]]) -> None:
    total = arrays[0] + arrays[1] + arrays[2]
    for rank in range(3):
        assert outputs[3 * rank].tobytes() == total.tobytes()
        assert outputs[3 * rank + 1].tobytes() == (-arrays[rank - 1]).tobytes()
        assert int(outputs[3 * rank + 2]) == rank


def drawn(shape: tuple[int, ...], seed: int) -> list[NDArray[Any]]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for _ in range(3)]


async def test_gangs_on_workers_of_one_machine_and_of_two(fleet: Fleet) -> None:
    await ranks_reach_each_other(fleet)
    await a_step_that_is_given_up_leaves_nothing_for_the_next_one(fleet)
    await when_a_rank_dies_the_others_wait_until_the_plan_is_dropped(fleet)


async def ranks_reach_each_other(fleet: Fleet) -> None:
    (alone,) = fleet.workers[2].host_pids()
    before = sockets_of(alone)
    for generation, shape in ((1, (5, 7)), (2, LARGE)):
        ranks = Ranks(fleet, PlanKey(1, generation), shape)
        await ranks.deploy()
        for step in itertools.count():
            arrays = drawn(shape, step)
            right(await ranks.run(step, arrays), arrays)
            if step > 2 and sockets_of(alone) >= before + 2:  # a connection to each of the others, from now on used
                break
        right(await ranks.run(step + 1, arrays), arrays)
        for link in fleet.links:
            await link.request(Drop(ranks.plan))
    for each in fleet.workers:
        left = {path.name for path in shared_folder(each.process.pid).iterdir()}
        assert left <= {"blobs", "lock"}, "mailboxes go with their plan"


def sockets_of(pid: int) -> int:
    return sum("socket:" in path for path in opened_by(pid))


def shared_folder(pid: int) -> Path:
    """The shared-memory directory of a worker: the one whose lock file it has open."""
    return next(Path(path).parent for path in opened_by(pid) if "/graph-mesh-" in path and path.endswith("/lock"))


async def a_step_that_is_given_up_leaves_nothing_for_the_next_one(fleet: Fleet) -> None:
    ranks = Ranks(fleet, PlanKey(1, 3), LARGE)
    await ranks.deploy()
    arrays = drawn(LARGE, 1)
    began = len(fleet.coordinator.of(Began))
    waiting = [asyncio.create_task(ranks.run_rank(rank, 0, arrays[rank])) for rank in (0, 2)]
    await fleet.coordinator.until(lambda: len(fleet.coordinator.of(Began)) == began + 2)
    fleet.links[0].notify(CancelStep(ranks.plan, 0))
    for task in waiting:  # the second hears of it from the first
        with pytest.raises(MeshError):
            await task
    for step in (10, 11):  # as no plan before
        right(await ranks.run(step, arrays), arrays)
    for link in fleet.links:
        await link.request(Drop(ranks.plan))


async def when_a_rank_dies_the_others_wait_until_the_plan_is_dropped(fleet: Fleet) -> None:
    ranks = Ranks(fleet, PlanKey(1, 4), (5, 7))
    await ranks.deploy()
    arrays = drawn((5, 7), 1)
    right(await ranks.run(0, arrays), arrays)
    began = len(fleet.coordinator.of(Began))
    waiting = asyncio.create_task(ranks.run_rank(0, 1, arrays[0]))
    await fleet.coordinator.until(lambda: len(fleet.coordinator.of(Began)) == began + 1)
    fleet.workers[1].process.kill()
    assert await gone(fleet.workers[1].process.pid)
    await fleet.links[0].request(Drop(ranks.plan))
    with pytest.raises(MeshError):
        await waiting
    await with_others(fleet, arrays)


async def test_gangs_of_one_machine_put_large_tensors_in_shared_regions(tmp_path: Path) -> None:
    working_bytes = CpuEngine().compile(part_graph(LARGE)).memory_bytes
    async with three_workers(tmp_path, memory_bytes=working_bytes + 3 * LAID_BYTES) as fleet:
        ranks = Ranks(fleet, PlanKey(1, 1), LARGE)
        await ranks.deploy()
        for step in range(3):
            arrays = drawn(LARGE, step)
            right(await ranks.run(step, arrays), arrays)
        assert [regions_of(each.process.pid) for each in fleet.workers] == [[2], [1], [1]]
        await a_step_that_is_given_up_leaves_nothing_for_the_next_one(fleet)
        for rank in (0, 2):  # who has the result, and who has not
            (host,) = fleet.workers[rank].host_pids()
            os.kill(host, signal.SIGKILL)
            assert await gone(host)
            step = await until_it_runs(ranks, 10 * (rank + 1), arrays)
            right(await ranks.run(step, arrays), arrays)
        assert [regions_of(each.process.pid) for each in fleet.workers] == [[2], [1], [1]], "those of the dead are gone"
        for link in fleet.links:
            await link.request(Drop(ranks.plan))
        assert [regions_of(each.process.pid) for each in fleet.workers] == [[], [], []]
        await idle_plans_give_their_regions_up_to_those_that_run(fleet)


async def idle_plans_give_their_regions_up_to_those_that_run(fleet: Fleet) -> None:
    """Rank 0 has room for one plan's.  The others have room for two, and free theirs one step after it did: nobody maps
    memory that is freed.  A plan that runs again lays its tensors again, as often as it is its turn."""
    plans = [Ranks(fleet, PlanKey(1, 50 + number), LARGE) for number in range(2)]
    for each in plans:
        await each.deploy()
    for turn, ranks in enumerate((*plans, *plans)):
        for step in (2 * turn, 2 * turn + 1):
            arrays = drawn(LARGE, step)
            right(await ranks.run(step, arrays), arrays)
        assert [regions_of(each.process.pid) for each in fleet.workers] == [[2], [1], [1]]
        if sys.platform == "linux":
            assert [freed_maps(*each.host_pids()) for each in fleet.workers] == [0, 0, 0]
    assert not any("copy more" in each.log.read_text() for each in fleet.workers)


async def test_files_go_with_their_plan_whatever_becomes_of_the_hosts(tmp_path: Path) -> None:
    async with three_workers(tmp_path) as fleet:
        await the_host_was_killed_just_before(fleet)
        await a_run_waits_in_the_hosts(fleet)


async def the_host_was_killed_just_before(fleet: Fleet) -> None:
    ranks = Ranks(fleet, PlanKey(1, 1), LARGE)
    await ranks.deploy()
    arrays = drawn(LARGE, 1)
    right(await ranks.run(0, arrays), arrays)
    (host,) = fleet.workers[0].host_pids()
    os.kill(host, signal.SIGKILL)
    assert await gone(host)
    while fleet.workers[0].host_pids() in ([], [host]):  # its daemon knows, and begins another one
        await asyncio.sleep(0.01)
    await drop(fleet, ranks.plan)


async def a_run_waits_in_the_hosts(fleet: Fleet) -> None:
    ranks = Ranks(fleet, PlanKey(1, 1000), LARGE)
    await ranks.deploy()
    hosts = [pid for each in fleet.workers for pid in each.host_pids()]
    assert len(hosts) == 3, "that of the first worker was started again"
    for host in hosts:
        os.kill(host, signal.SIGSTOP)
    began = len(fleet.coordinator.of(Began))
    runs = [asyncio.create_task(ranks.run_rank(rank, 0, array)) for rank, array in enumerate(drawn(LARGE, 2))]
    await fleet.coordinator.until(lambda: len(fleet.coordinator.of(Began)) == began + 3)
    await drop(fleet, ranks.plan, meanwhile=lambda: [os.kill(host, signal.SIGCONT) for host in hosts])
    for ended in await asyncio.gather(*runs, return_exceptions=True):
        assert isinstance(ended, MeshError)


async def drop(fleet: Fleet, plan: PlanKey, meanwhile: Callable[[], object] = lambda: None) -> None:
    """A plan, of which no file is left then; after it the hosts do what they are told."""
    for link in fleet.links:
        await link.request(Drop(plan))
    meanwhile()
    async with asyncio.timeout(HANGS_S):
        for generation in itertools.count(100 * plan.generation):
            ranks = Ranks(fleet, PlanKey(plan.epoch, generation), (5, 7))
            try:
                await ranks.deploy()
                break
            except DeviceLost:  # until it is started again
                await asyncio.sleep(0.1)
    arrays = drawn((5, 7), 1)
    right(await ranks.run(0, arrays), arrays)
    for link in fleet.links:
        await link.request(Drop(ranks.plan))
    for each in fleet.workers:
        left = {path.name for path in shared_folder(each.process.pid).iterdir()}
        assert left <= {"blobs", "lock"}


async def until_it_runs(ranks: Ranks, step: int, arrays: list[NDArray[Any]]) -> int:
    """The next step after one that all ranks did: a host that was killed is started again."""
    async with asyncio.timeout(HANGS_S):
        while True:
            step += 1
            every = [asyncio.create_task(ranks.run_rank(rank, step, array)) for rank, array in enumerate(arrays)]
            await asyncio.wait(every, return_when=asyncio.FIRST_EXCEPTION)
            for link in ranks.fleet.links:  # as a coordinator does
                link.notify(CancelStep(ranks.plan, step))
            done = await asyncio.gather(*every, return_exceptions=True)
            if not any(isinstance(each, BaseException) for each in done):
                return step + 1
            assert all(isinstance(each, MeshError) for each in done if isinstance(each, BaseException)), done
            await asyncio.sleep(0.2)


def freed_maps(host: int) -> int:
    """How many files of the size of a region an engine host shares that have no name any more."""
    found = 0
    for line in Path(f"/proc/{host}/maps").read_text().splitlines():
        span, how = line.split()[:2]
        first, last = (int(end, 16) for end in span.split("-"))
        shared = how.endswith("s") and "graph-mesh-" in line and line.endswith("(deleted)")
        found += shared and last - first in (LAID_BYTES, 2 * LAID_BYTES)
    return found


def regions_of(pid: int) -> list[int]:
    """The sizes of a worker's shared regions, as multiples of what its ranks give in a step."""
    sizes = []
    for path in shared_folder(pid).iterdir():
        with contextlib.suppress(FileNotFoundError):  # freed meanwhile
            sizes += [path.stat().st_size] if path.is_file() else []
    return [size // LAID_BYTES for size in sizes if size % LAID_BYTES == 0 and size]


async def with_others(fleet: Fleet, arrays: list[NDArray[Any]]) -> None:
    """The host of the first worker is as good as before."""
    graph = double_graph()
    spec = PartSpec(0, 0, graph.hash, (Source(SourceKind.INPUT),), ((Target("", 0, 0),),))
    await fleet.coordinator.deploy(fleet.links[0], [(spec, graph)], PlanKey(1, 5))
    feed = fleet.coordinator.feed(0, 0, arrays[0])
    outputs = (await fleet.coordinator.run(fleet.links[0], PlanKey(1, 5), 0, feed))[1]
    assert outputs[0].tobytes() == (arrays[0] + arrays[0]).tobytes()


def double_graph() -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (5, 7), F32)
    return builder.build([builder.add("add", x, x)])
