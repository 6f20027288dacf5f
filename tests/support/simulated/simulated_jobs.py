"""A simulated mesh whose coordinator keeps jobs, is killed at any step of writing them, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from coordinator.coordinator import Coordinator, CoordinatorConfig
from coordinator.jobs.job_service import JobService
from coordinator.jobs.job_store import JobStore
from coordinator.jobs.job_table import FINAL, JobLimits, JobTable
from coordinator.jobs.session_service import SESSION_ENTRIES, SessionService
from mesh.simulation.cluster import COORDINATOR, PORT, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from wire.errors import MeshError, NodeLost, NotDurable, PoisonTask, ProtocolError, RemoteError
from wire.ir.codec import tensor_from
from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType
from wire.link.endpoint import Endpoint
from wire.link.identity import identity_here
from wire.link.link import Link
from wire.protocol.messages import (
    AskJobs,
    AwaitJob,
    Coordinators,
    JobAccepted,
    JobResult,
    Jobs,
    Message,
    SubmitJob,
)
from wire.transfer.content_exchange import BlobExchange

from ..compare import same_bits
from ..hostile.faulty_disk import FaultyDisk, Fuse, faulty_connect
from .simulated import Chaos, Job, take_time

M = TypeVar("M", bound=Message)
LIMITS = JobLimits(gather_s=3.0)
JOBS_PER_CLIENT = 5
STEPS_MAX = 150  # of a life's disk; later ones end by the clock
LIFE_S_MAX = 4.0
DONE_S = 300.0  # virtual seconds within which everything is over once nothing is broken any more
HANGING_UP = 40.0
STANDBY = "standby"  # a host
HEARD_S = 0.1  # until all have what a coordinator told them


@dataclass(slots=True)
class Bomb(Fuse):
    """From step `fails_at` on nothing gets onto the disk; `blow` is called first."""

    blow: Callable[[], None] = lambda: None

    def step(self) -> bool:
        first = not self.blown
        fails = Fuse.step(self)
        if fails and first:
            self.blow()
        return fails


@dataclass(slots=True)
class DurableCluster(Cluster):
    """A Cluster with a coordinator daemon.  `crash` it; another one starts on what lay on the disk at that moment.

    `host` is that on which the present one runs.
    """

    chance: random.Random = field(default_factory=random.Random)
    service: JobService = field(init=False)
    sessions: SessionService = field(init=False)
    lives: int = 0
    host: str = COORDINATOR
    bomb: Bomb = field(init=False)
    mortal: bool = True
    dates: random.Random = field(default_factory=lambda: random.Random(19))
    _image: Path | None = None
    _staying: asyncio.Task[None] | None = None
    _next: asyncio.Task[None] | None = None
    _lost: tuple[JobService, SessionService, Coordinator] | None = None  # whose machine is

    async def _start_coordinator(self) -> None:
        while not await self._begin_life():
            await asyncio.sleep(0.05)

    async def _begin_life(self) -> bool:
        """Whether the coordinator got as far as serving."""
        self.lives += 1
        folder = self._folder / f"life-{self.lives}"
        if self._image is not None:
            shutil.copytree(self._image, folder)
        at = self.chance.randrange(1, STEPS_MAX) if self.mortal and self.lives > 1 else 0
        self.bomb = Bomb(at, blow=lambda: self._snap(folder))
        self._image = None
        config, loop = self.config, asyncio.get_running_loop()
        node_id = ("c" if self.host == COORDINATOR else "e") * 32
        identity = replace(identity_here(COORDINATOR, config.mesh, self.host, None), node_id=node_id)
        try:
            store, found = JobStore.open(folder, 1, FaultyDisk(self.bomb), faulty_connect(self.bomb, lies=False))
        except NotDurable:
            self.tell(f"the coordinator dies in its start, at step {at} of its disk")
            return False
        self.coordinator = Coordinator(
            config, identity, None, lambda identity, handler, host=self.host: self._endpoint(host, identity, handler),
            self.checker.coordinator, self.answerer,
        )  # fmt: skip
        self.coordinator.epoch = store.epoch
        if self.host == STANDBY:
            self.coordinator.descends(tuple(range(1, store.epoch + 1)))
        self.coordinator.link_watch.wall = loop.time
        self.coordinator.watchers.append(self._saw)
        self.service = JobService(self.coordinator, JobTable(LIMITS), store, self._date)
        self.sessions = SessionService(self.coordinator, self.service.contents, store)
        self.service.resume(entry for entry in found if entry.kind not in SESSION_ENTRIES)
        self.sessions.resume(entry for entry in found if entry.kind in SESSION_ENTRIES)
        await self.coordinator.endpoint.listen(self.host, PORT, PORT)
        self._staying = asyncio.create_task(self._stay())
        self.tell(f"the coordinator begins life {self.lives} with {len(found)} entries")
        return True

    def _date(self) -> float:
        """Of a machine whose date is set all the time, by up to two days either way."""
        return 1.7e9 + asyncio.get_running_loop().time() + self.dates.uniform(-2, 2) * 86400

    def crash(self) -> None:
        """As `kill -9` does, now; the next life begins after a while."""
        if self._staying is not None:
            self._snap(self._folder / f"life-{self.lives}")

    async def lose_power(self, silent: Iterable[str], after_s: float) -> None:
        """The coordinator's machine is gone without a word, for its workers and for the programs on `silent`; a standby
        with the same journal, of which all of them have heard, serves after a while."""
        for link in list(self.coordinator.endpoint.links.values()):
            link.notify(Coordinators((f"{STANDBY}:{PORT}",)))
        await asyncio.sleep(HEARD_S)
        assert self._staying is not None
        self._staying.cancel()
        self._image = self._folder / f"image-{self.lives}"
        shutil.copytree(self._folder / f"life-{self.lives}", self._image)
        self.tell("the coordinator's machine loses its power")
        others = [*self.names, *silent, STANDBY]
        self.network.block([self.host], others)
        self.network.block(others, [self.host])
        self._lost = self.service, self.sessions, self.coordinator
        await asyncio.sleep(after_s)
        self.host = STANDBY
        await self._start_coordinator()

    def _snap(self, folder: Path) -> None:
        """What lies in the folder at this moment is what the next life finds."""
        if self._image is not None:
            return
        self._image = self._folder / f"image-{self.lives}"
        shutil.copytree(folder, self._image)
        self.bomb.fails_at = self.bomb.fails_at or 1
        if self._staying is not None:
            self.tell(f"the coordinator is killed at step {self.bomb.steps} of its disk")
            self.network.block([COORDINATOR], self.names)  # links that it is making may come up still
            self.network.kill(COORDINATOR)  # and none of them says goodbye
            self._staying.cancel()
            self._staying = None
            self._next = asyncio.create_task(self._reborn())

    async def _reborn(self) -> None:
        await self._bury()
        await asyncio.sleep(self.chance.uniform(0, 2))
        await self._start_coordinator()

    async def _bury(self) -> None:
        await self.sessions.leave()
        with contextlib.suppress(MeshError):
            await self.service.close()
        await self.coordinator.close()
        self.network.kill(COORDINATOR)
        self.network.heal(COORDINATOR)

    async def stop(self) -> None:
        if self._lost is not None:
            service, sessions, coordinator = self._lost
            await sessions.leave()
            await service.close()
            await coordinator.close()
        if self._staying is not None:
            self._staying.cancel()
        await self.sessions.leave()
        await self.service.close()
        await Cluster.stop(self)

    async def _stay(self) -> None:
        """Dial every worker until it is there, as a daemon does that looks out for them."""

        async def dial(name: str) -> None:
            while True:
                try:
                    await self.coordinator.connect(name, PORT)
                    return
                except MeshError:
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(dial(name) for name in self.names))


def submission(name: str, job: Job, detach: bool) -> SubmitJob:
    """What a client says to have a job done."""
    made = job.random
    inputs, params = (
        tuple(BlobExchange.named(each, array, sent_separately=False) for each, array in side.items())
        for side in (made.inputs, made.params)
    )
    return SubmitJob(made.graph.encoded, inputs, params, job.program.strategy, detach, "", name)


class Client:
    """Submits jobs and remembers what it was promised."""

    def __init__(self, cluster: DurableCluster, name: str) -> None:
        identity = identity_here("client", cluster.config.mesh, name, None)
        self.endpoint: Endpoint = cluster._endpoint(name, identity, self)
        self.cluster = cluster
        self.name = name
        self.rng = random.Random(f"{cluster.seed} {name}")
        self.jobs: dict[str, Job] = {}
        self.answers: dict[str, list[bytes] | str] = {}
        self._link: Link | None = None

    async def play(self) -> None:
        for number in range(JOBS_PER_CLIENT):
            name = f"{self.name}-{number}"
            job = Job.of(self.rng.randrange(1 << 30), self.rng.choice(("auto", "single", "pipeline")))
            accepted = await self.ask(submission(name, job, self.rng.random() < 0.5), JobAccepted)
            assert accepted.job == name
            self.jobs[name] = job
            await self.check(name)
            await self.check(self.rng.choice(list(self.jobs)))
            await asyncio.sleep(self.rng.uniform(0, 0.5))

    async def check(self, name: str) -> None:
        """The answer is right, and the same as ever; that a job failed is an answer too."""
        given: list[bytes] | str
        try:
            answer = await self.ask(AwaitJob(name), JobResult)
        except (NodeLost, PoisonTask) as error:
            given = error.message
        else:
            given = []
            for value, wanted in zip(answer.outputs, self.jobs[name].expected, strict=True):
                assert value.data is not None
                found = tensor_from(value.data, TensorType(value.shape, dtype_named(value.dtype)))
                assert same_bits(found, np.asarray(wanted)), "a wrong answer"
                given.append(found.tobytes())
        assert self.answers.setdefault(name, given) == given, f"job {name} was answered differently"

    async def ask(self, message: Message, kind: type[M]) -> M:
        """The coordinator's answer, whichever life gives it."""
        while True:
            try:
                link = self._link
                if link is None or link.closed:
                    link = self._link = await self.endpoint.dial(COORDINATOR, PORT)
            except MeshError:
                await asyncio.sleep(0.1)
                continue
            try:
                answer = await link.request(message)
            except NotDurable:
                await asyncio.sleep(0.1)
                continue
            except RemoteError:
                if link.closed:
                    continue
                raise
            assert isinstance(answer, kind)
            return answer

    # -- the Handler

    async def on_request(self, link: Link, body: Message) -> Message:
        raise ProtocolError("everything rides along")

    def on_notify(self, link: Link, body: Message) -> None:
        return

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        raise ProtocolError("everything rides along")

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        return

    def on_linked(self, link: Link) -> None:
        return

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        return


async def durable_run(cluster: DurableCluster) -> None:
    """Clients, a coordinator that dies again and again, and mischief to the workers: every promise is kept."""
    rng = random.Random(cluster.seed)
    chaos = Chaos(cluster, rng, rest_s=(0.1, 2.0))
    player = asyncio.create_task(chaos.play())
    clients = [Client(cluster, name) for name in ("ann", "bob", "cay")]
    playing = [asyncio.create_task(client.play()) for client in clients]
    async with asyncio.timeout(HANGING_UP * 10):
        while not all(task.done() for task in playing):
            await asyncio.sleep(rng.uniform(0.1, LIFE_S_MAX))
            if rng.random() < 0.5:
                cluster.crash()
            if cluster.lives > 12:
                chaos.settle()
                cluster.mortal = False
        for task in playing:
            task.result()
    chaos.settle()
    cluster.mortal = False
    cluster.crash()
    await player
    async with asyncio.timeout(DONE_S):
        for client in clients:
            for name in client.jobs:
                await client.check(name)
        for client in clients:
            reports = await client.ask(AskJobs(), Jobs)
            assert {report.job for report in reports.jobs} == set(client.jobs), (
                "a promise is forgotten, or another's told"
            )
            assert all(report.state in FINAL for report in reports.jobs)
    for client in clients:
        await client.endpoint.close()
    await asyncio.sleep(15)
    assert cluster.coordinator.idle, "a call is left"


def simulate_durable(
    workers: int,
    seed: int,
    scenario: Callable[[DurableCluster], Awaitable[None]] = durable_run,
    mortal: bool = True,
) -> tuple[str, int]:
    """The transcript of a run, and how many lives its coordinator had.  A failure shows the transcript.

    The coordinator dies of its disk only if it is `mortal`.  With every third seed threads take time.
    """

    async def run() -> tuple[str, int]:
        if seed % 3 == 2:
            take_time(seed)
        config = CoordinatorConfig("sim", "me")
        chance = random.Random(seed)
        devices = [Device(dispatch_s=10 ** chance.uniform(-4, -0.5)) for _ in range(workers)]
        async with DurableCluster(config, devices, seed, chance=chance, mortal=mortal) as cluster:
            try:
                await scenario(cluster)
            except BaseException as error:
                error.add_note(cluster.transcript())
                raise
            return cluster.transcript(), cluster.lives

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())
