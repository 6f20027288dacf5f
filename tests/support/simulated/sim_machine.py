"""A simulated mesh as a hypothesis state machine: a rule is one thing somebody does to it, a failure a short script.

Between two rules no time passes; `advance` lets it.  At the end everything is healed, and every call must have ended,
one more is answered, every worker is healthy, and nothing of the calls is left.  To add a fault: a rule, and the line
of `_heal` that ends it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from coordinator.coordinator import CoordinatorConfig
from mesh.simulation.cluster import COORDINATOR, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import LAN
from mesh.simulation.virtual_network import Conditions
from wire.protocol.messages import AskJobs, JobAccepted, Jobs

from .simulated import ANSWER_S, Job
from .simulated_jobs import Client, DurableCluster, submission

T = TypeVar("T")
WORKERS = ("sim-0", "sim-1", "sim-2")
GRAPHS = 8
FORGIVEN_S = 15.0  # after the last fault, until everybody is healthy and idle
LEAVES_S = 10.0  # until whoever was asked to leave has left

LINKS = {
    "lan": LAN,
    "far": Conditions(delay_s=0.15, jitter_s=0.05, bytes_per_s=1e7),
    "thin": Conditions(delay_s=0.01, bytes_per_s=1e5),
    "lossy": Conditions(delay_s=0.002, jitter_s=0.002, bytes_per_s=1e7, loss=0.1),
}

worker = st.sampled_from(WORKERS)
host = st.sampled_from((*WORKERS, COORDINATOR))
graph = st.integers(0, GRAPHS - 1)
strategy = st.sampled_from(("auto", "single", "pipeline"))
seconds = st.sampled_from((0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0))


@cache
def job_of(graph: int, strategy: str) -> Job:
    return Job.of(graph, strategy)


@dataclass(eq=False, slots=True)
class Asked:
    """A call and whoever waits for it."""

    task: asyncio.Task[bool]
    cancelled: bool = False


class FaultyMesh(RuleBasedStateMachine):
    """Whatever may befall a simulated mesh.  A subclass says how work is given to it."""

    cluster: Cluster
    spotless_ends: ClassVar[int] = 0  # scripts that left nothing behind

    def __init__(self) -> None:
        super().__init__()
        self.asleep: set[str] = set()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.do(self.begin)

    # -- faults

    @rule(name=worker)
    def kill(self, name: str) -> None:
        self.now(lambda: self.is_there(name) and self.cluster.kill(name))
        self.asleep.discard(name)

    @rule(name=worker)
    def start(self, name: str) -> None:
        self.now(lambda: self.is_there(name) or self.cluster.start(name))

    @rule(name=worker)
    def leave(self, name: str) -> None:
        self.now(lambda: self.is_there(name) and self.cluster.leave(name))

    @rule(name=worker)
    def pause(self, name: str) -> None:
        self.now(lambda: self.cluster.pause(name))

    @rule(name=worker)
    def resume(self, name: str) -> None:
        self.now(lambda: self.cluster.resume(name))

    @rule(name=worker)
    def silence(self, name: str) -> None:
        self.now(lambda: self.cluster.silence(name))

    @rule(name=worker)
    def reconnect(self, name: str) -> None:
        self.now(lambda: self.cluster.reconnect(name))

    @rule(name=worker)
    def sleep(self, name: str) -> None:
        def close() -> None:
            if self.runs(name) and name not in self.asleep:
                self.asleep.add(name)
                self.cluster.sleep(name)

        self.now(close)

    @rule(name=worker)
    def wake(self, name: str) -> None:
        def open_again() -> None:
            if self.runs(name) and name in self.asleep:
                self.asleep.discard(name)
                self.cluster.wake(name)

        self.now(open_again)

    @rule(source=host, to=host)
    def block(self, source: str, to: str) -> None:
        if source != to:
            self.now(lambda: self.cluster.block(source, to))

    @rule()
    def heal(self) -> None:
        self.now(self.cluster.heal)

    @rule(source=host, to=host, how=st.sampled_from(sorted(LINKS)))
    def link(self, source: str, to: str, how: str) -> None:
        self.cluster.network.set_way(source, to, LINKS[how])

    @rule(name=worker, times=st.sampled_from((1.0, 10.0, 1000.0)))
    def slow(self, name: str, times: float) -> None:
        self.now(lambda: self.cluster.slow(name, times))

    @rule(name=worker, silent=st.booleans())
    def device_hangs(self, name: str, silent: bool) -> None:
        self.now(lambda: self.cluster.tell(f"the device of {name} hangs"))
        self.device(name).stuck, self.device(name).silent = True, silent

    @rule(name=worker)
    def device_goes_on(self, name: str) -> None:
        self.device(name).stuck = self.device(name).silent = False

    @rule(name=worker, parts=st.integers(0, 2))
    def device_lost_after(self, name: str, parts: int) -> None:
        self.now(lambda: self.cluster.tell(f"the device of {name} is about to be lost"))
        self.device(name).fails_after = parts

    @rule(seconds=seconds)
    def advance(self, seconds: float) -> None:
        self.do(lambda: asyncio.sleep(seconds))

    # -- what must hold

    def check(self) -> None:
        """After every rule.  Not an invariant of hypothesis: those are printed between all the steps of a script."""
        self.cluster.checker.verdict()

    def teardown(self) -> None:
        well = sys.exc_info()[0] is None
        try:
            if well:
                self.do(self.settle)
                left, clean = self.left(), spotless(type(self))
                assert left == clean, {key: left[key] for key in clean if left[key] != clean[key]}
                type(self).spotless_ends += 1
        finally:
            try:
                self.do(self.end, checked=False)
            finally:
                self.runner.close()

    def left(self) -> dict[str, Any]:
        """What is there once nobody asks for anything; the same whatever happened before."""
        daemons = {name: each.daemon for name, each in self.cluster._processes.items() if each.daemon is not None}
        return {
            "states": {node.name: node.state for node in self.cluster.coordinator.nodes()},
            "parts": sorted(self.cluster.busy().items()),
            "files": {name: _files(daemon._shared.path) for name, daemon in daemons.items()},
            "kept": {name: [_kept(host) for host in daemon._hosts.hosts] for name, daemon in daemons.items()},
            "connections": len(self.cluster.network._sockets),
            "tasks": len(asyncio.all_tasks(self.runner.get_loop())),
        }

    async def heal_all(self) -> None:
        """No fault is left, and every worker runs."""
        self.cluster.heal()
        for source in (*WORKERS, COORDINATOR):
            for target in (*WORKERS, COORDINATOR):
                if source != target:
                    self.cluster.network.set_way(source, target, LAN)
        for name in WORKERS:
            device = self.device(name)
            device.stuck, device.silent, device.slower, device.fails_after = False, False, 1.0, None
            self.cluster.resume(name)
            if self.runs(name) and name in self.asleep:
                self.cluster.wake(name)
        await asyncio.sleep(LEAVES_S)
        for name in WORKERS:
            if name not in self.cluster.alive:
                self.cluster.start(name)

    # -- for subclasses

    async def begin(self) -> None:
        raise AssertionError("a subclass begins")

    async def settle(self) -> None:
        raise AssertionError("a subclass says what must hold at the end")

    async def end(self) -> None:
        await self.cluster.stop()

    def device(self, name: str) -> Device:
        return self.cluster.devices[WORKERS.index(name)]

    def is_there(self, name: str) -> bool:
        """Whether its process runs."""
        return name in self.cluster.alive

    def runs(self, name: str) -> bool:
        """Whether its daemon is up; a process that was just started has none yet."""
        return name in self.cluster.busy()

    def now(self, work: Callable[[], Any]) -> None:
        """Do something on the loop; no time passes."""

        async def call() -> None:
            work()

        self.do(call)

    def do(self, work: Callable[[], Awaitable[T]], checked: bool = True) -> T:
        async def call() -> T:
            return await work()

        try:
            result = self.runner.run(call())
            if checked:
                self.check()
            return result
        except BaseException as error:
            if hasattr(self, "cluster"):
                error.add_note(self.cluster.transcript())
            raise


class CallingMesh(FaultyMesh):
    """Calls of an embedded coordinator."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        super().__init__()

    async def begin(self) -> None:
        config = CoordinatorConfig("sim", "me")
        self.cluster = Cluster(config, [Device(dispatch_s=0.02) for _ in WORKERS])
        await self.cluster.begin()

    @rule(graph=graph, strategy=strategy)
    def submit(self, graph: int, strategy: str) -> None:
        job = job_of(graph, strategy)

        async def ask() -> None:
            self.asked.append(Asked(asyncio.create_task(job.ask(self.cluster))))
            await asyncio.sleep(0)

        self.do(ask)

    @rule(which=st.integers(0, 3))
    def cancel(self, which: int) -> None:
        waiting = [each for each in self.asked if not each.task.done()]
        if which < len(waiting):
            waiting[which].cancelled = True
            self.now(waiting[which].task.cancel)

    def check(self) -> None:
        super().check()
        for each in [each for each in self.asked if each.task.done()]:
            self.asked.remove(each)
            if each.task.cancelled():
                assert each.cancelled
            elif (error := each.task.exception()) is not None:
                raise error

    async def settle(self) -> None:
        await self.heal_all()
        await asyncio.gather(*(each.task for each in self.asked), return_exceptions=True)
        self.check()
        async with asyncio.timeout(ANSWER_S):
            while not await job_of(0, "pipeline").ask(self.cluster):
                await asyncio.sleep(0.1)
        await asyncio.sleep(FORGIVEN_S)
        assert self.cluster.coordinator.idle, "a call is left"


class DurableMesh(FaultyMesh):
    """Jobs of a coordinator daemon, which is killed, at once or at a step of its disk, and comes back."""

    def __init__(self) -> None:
        self.promised: dict[str, Job] = {}
        self.asking: list[asyncio.Task[None]] = []
        super().__init__()

    async def begin(self) -> None:
        config = CoordinatorConfig("sim", "me")
        devices = [Device(dispatch_s=0.02) for _ in WORKERS]
        self.cluster = self.durable = DurableCluster(config, devices, chance=random.Random(0), mortal=False)
        await self.cluster.begin()
        self.client = Client(self.durable, "client")

    @rule(graph=graph, strategy=strategy, detach=st.booleans())
    def submit(self, graph: int, strategy: str, detach: bool) -> None:
        job, name = job_of(graph, strategy), f"job-{len(self.asking)}"

        async def ask() -> None:
            self.asking.append(asyncio.create_task(self.promise(name, job, detach)))
            await asyncio.sleep(0)

        self.do(ask)

    @rule()
    def crash(self) -> None:
        self.now(self.durable.crash)

    @rule(steps=st.integers(1, 30))
    def crash_at_step(self, steps: int) -> None:
        """Of its disk, from here on."""
        if not self.durable.bomb.blown:
            self.durable.bomb.fails_at = self.durable.bomb.steps + steps

    async def promise(self, name: str, job: Job, detach: bool) -> None:
        """Submit until it is accepted, and see that it is answered, as ever."""
        await self.client.ask(submission(name, job, detach), JobAccepted)
        self.promised[name] = self.client.jobs[name] = job
        await self.client.check(name)

    def check(self) -> None:
        super().check()
        for each in [each for each in self.asking if each.done()]:
            each.result()

    async def settle(self) -> None:
        await self.heal_all()
        async with asyncio.timeout(ANSWER_S):
            await asyncio.gather(*self.asking)
            for name in self.promised:
                await self.client.check(name)
            reports = await self.client.ask(AskJobs(), Jobs)
        assert set(self.promised) <= {report.job for report in reports.jobs}, "a promise is forgotten"
        await asyncio.sleep(FORGIVEN_S)
        assert self.cluster.coordinator.idle, "a call is left"

    def left(self) -> dict[str, Any]:
        """Tasks and connections differ by who dialled whom after a coordinator came back."""
        found = super().left()
        return {key: found[key] for key in ("states", "parts", "files", "kept")}

    async def end(self) -> None:
        for each in self.asking:
            each.cancel()
        await self.client.endpoint.close()
        await super().end()


@cache
def spotless(kind: type[FaultyMesh]) -> dict[str, Any]:
    """What is left where nothing was asked and nothing went wrong."""
    machine = kind()
    machine.do(machine.settle)
    left = machine.left()
    machine.do(machine.end, checked=False)
    machine.runner.close()
    return left


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def _kept(host: Any) -> list[int]:
    """The tensors that a simulated host keeps for parts to come."""
    return sorted(host._host._kept)
