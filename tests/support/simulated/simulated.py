"""Runs of a simulated mesh: random programs, random mischief by seed, and what must hold at the end."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.config import PLAN_AHEAD_MIN
from coordinator.coordinator import CoordinatorConfig
from coordinator.plan_service.planner_client import InProcessPlanner, PlannerClient
from coordinator.planning.model.program import Program
from coordinator.workers.call_report import CallReport
from mesh.simulation.cluster import COORDINATOR, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.virtual_network import Conditions
from wire.errors import MeshError, NodeLost, PoisonTask
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.timeouts import DEFAULT_TIMEOUTS
from worker.cpu import evaluate

from ..cases.random_graphs import RandomGraph, random_graph
from ..cases.rank_programs import rank_program
from ..compare import same_bits

ANSWER_S = 120.0  # virtual seconds within which any call must have ended
ALONE_S = DEFAULT_TIMEOUTS.worker_wait_s


def weights_moved(report: CallReport) -> int:
    """Bytes of weights that went between processes for a call."""
    return sum(worker.weight_bytes_moved for worker in report.workers.values())


Fault = Callable[["Chaos"], Awaitable[None]]


def take_time(seed: int) -> None:
    """Have threads of the running simulation take time: mostly little, and now and then a second, as a disk does."""
    loop, rng = asyncio.get_running_loop(), random.Random(f"threads {seed}")
    assert isinstance(loop, VirtualLoop)
    loop.thread_s = lambda: rng.choice((0.0, 0.001, 0.05, 1.0))


def simulate(
    scenario: Callable[[Cluster], Awaitable[object]],
    workers: int = 3,
    seed: int = 0,
    devices: Sequence[Device] = (),
    audit: float = 0.0,
    plan_ahead: bool = True,
    plan_ahead_min: int = PLAN_AHEAD_MIN,
    answerer: PlannerClient | None = None,
    slow_threads: bool = False,
    **settings: Any,
) -> str:
    """Run a scenario on a new cluster to its end; the transcript.  A failure shows it too.

    With `slow_threads` what is done in threads takes up to a second.  Without `devices` every worker has one whose
    parts take up to 0.3 s.  `settings` are more of CoordinatorConfig.
    """

    async def run() -> str:
        config = CoordinatorConfig(
            "sim",
            "me",
            audit=audit,
            plan_ahead=plan_ahead,
            plan_ahead_min=plan_ahead_min,
            **settings,
        )
        if slow_threads:
            take_time(seed)
        chance = random.Random(seed)
        any_speed = [Device(dispatch_s=10 ** chance.uniform(-4, -0.5)) for _ in range(workers)]
        async with Cluster(config, devices or any_speed, seed, answerer or InProcessPlanner()) as cluster:
            try:
                await scenario(cluster)
                cluster.checker.verdict()
            except BaseException as error:
                error.add_note(cluster.transcript())
                raise
            return cluster.transcript()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


@dataclass(slots=True)
class Job:
    """A random graph and what one machine alone computes of it."""

    random: RandomGraph
    program: Program
    expected: list[NDArray[np.generic]]

    @staticmethod
    def of(seed: int, strategy: str) -> Job:
        """One that follows from the seed, and from which ops there are."""
        return Job._of(random_graph(seed, 6, 24), strategy)

    @staticmethod
    def of_ranks(seed: int, strategy: str) -> Job:
        """One whose ranks wait for each other."""
        graph, inputs, params = next(filter(lambda made: made[0].has_spmd, map(rank_program, itertools.count(seed))))
        given = {name: inputs[name] for name in graph.input_types}
        return Job._of(RandomGraph(graph, given, {name: params[name] for name in graph.param_types}), strategy)

    @staticmethod
    def chain(strategy: str, nodes: int = 12) -> Job:
        """Every node needs the one before, so that wherever it is cut something is sent."""
        builder = GraphBuilder()
        y = builder.input("x", (16, 16), F32)
        for _ in range(nodes):
            y = builder.add("tanh", y)
        x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
        return Job._of(RandomGraph(builder.build([y]), {"x": x}, {}), strategy)

    @staticmethod
    def _of(made: RandomGraph, strategy: str) -> Job:
        bindings = {
            node.attrs["name"]: (hash_array(array), kind)
            for index in made.graph.params
            for node, kind in [(made.graph.nodes[index], made.graph.types[index])]
            for array in [made.params[str(node.attrs["name"])]]
        }
        program = Program(made.graph, {str(name): bound for name, bound in bindings.items()}, strategy)
        return Job(made, program, evaluate(made.graph, made.inputs, made.params))

    async def ask(self, cluster: Cluster, within_s: float = ANSWER_S) -> bool:
        """Whether it was answered, and then rightly; False where there was nobody to compute it."""
        for array in self.random.params.values():
            cluster.coordinator.hold(hash_array(array), array)
        try:
            async with asyncio.timeout(within_s):
                outputs, _ = await cluster.coordinator.call(self.program, self.random.inputs)
        except NodeLost:
            return False
        except PoisonTask:  # mischief cannot be told from poison where three workers died of it
            deaths = (" is killed", " is about to be lost", " hangs", " is asked to leave")  # the last word may be late
            assert sum(line.endswith(deaths) for line in cluster.trace) >= 3
            return False
        finally:
            for array in self.random.params.values():
                cluster.coordinator.release(hash_array(array))
        for found, wanted in zip(outputs, self.expected, strict=True):
            assert same_bits(found, wanted), "a wrong answer"
        return True


@dataclass(slots=True)
class Chaos:
    """Faults drawn from FAULTS while jobs run; `settle` ends them all."""

    cluster: Cluster
    random: random.Random
    faults: int = 0
    rest_s: tuple[float, float] = (0.01, 0.6)
    over: bool = False
    asleep: set[str] = field(default_factory=set)
    _later: set[asyncio.Task[None]] = field(default_factory=set)

    async def play(self, kinds: Sequence[Fault] = (), most: float = math.inf) -> None:
        """One fault after another until `over`, or until there were so many; of these kinds, or of FAULTS."""
        while self.faults < most and not self.over:
            await asyncio.sleep(self.random.uniform(*self.rest_s))
            if not self.over:
                self.faults += 1
                await self.random.choice(kinds or FAULTS)(self)

    def end(self) -> None:
        """Settle, if nobody has."""
        if not self.over:
            self.cluster.tell("mischief is over")
            self.settle()

    def settle(self) -> None:
        """Heal what is broken, wake who sleeps and start what is down."""
        self.over = True
        self.cluster.heal()
        for name in sorted(self.asleep & set(self.cluster.alive)):
            self.cluster.wake(name)
        for name, device in zip(self.cluster.names, self.cluster.devices, strict=True):
            device.stuck, device.silent, device.slower, device.fails_after = False, False, 1.0, None
            self.cluster.resume(name)
            if name not in self.cluster.alive:
                self.cluster.start(name)

    def some(self) -> str | None:
        """A worker that runs."""
        return self.random.choice(self.cluster.alive) if self.cluster.alive else None

    def later(self, wait_s: float, work: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(wait_s)
            if not self.over:
                work()

        task = asyncio.ensure_future(wait())
        self._later.add(task)
        task.add_done_callback(self._later.discard)


async def _kill(chaos: Chaos) -> None:
    name = chaos.some()
    if name is None:
        return
    chaos.cluster.kill(name)
    chaos.later(
        chaos.random.uniform(0.0, 3.0), lambda: None if name in chaos.cluster.alive else chaos.cluster.start(name)
    )


async def _silence(chaos: Chaos) -> None:
    name = chaos.some()
    if name is not None:
        chaos.cluster.silence(name)
        chaos.later(chaos.random.choice((0.1, 0.4, 0.9, 1.2, 3.0)), chaos.cluster.heal)


async def _one_way(chaos: Chaos) -> None:
    hosts = chaos.random.sample((*chaos.cluster.names, COORDINATOR), 2)
    chaos.cluster.block(*hosts)
    chaos.later(chaos.random.choice((0.2, 0.9, 2.0)), chaos.cluster.heal)


async def _slow_link(chaos: Chaos) -> None:
    source, target = chaos.random.sample((*chaos.cluster.names, COORDINATOR), 2)
    conditions = Conditions(
        delay_s=chaos.random.uniform(0, 0.2),
        jitter_s=chaos.random.uniform(0, 0.1),
        bytes_per_s=10 ** chaos.random.uniform(5, 8),
        loss=chaos.random.choice((0.0, 0.01, 0.1)),
    )
    chaos.cluster.tell(f"{source} to {target}: {conditions}")
    chaos.cluster.network.set_way(source, target, conditions)


async def _slow_device(chaos: Chaos) -> None:
    device = chaos.random.choice(chaos.cluster.devices)
    device.slower = 10 ** chaos.random.uniform(0, 3)
    chaos.cluster.tell(f"sim-{list(chaos.cluster.devices).index(device)} computes {device.slower:.0f} times slower")


async def _device_lost(chaos: Chaos) -> None:
    number = chaos.random.randrange(len(chaos.cluster.devices))
    chaos.cluster.tell(f"the device of sim-{number} is about to be lost")
    chaos.cluster.devices[number].fails_after = chaos.random.randrange(3)


async def _device_hangs(chaos: Chaos) -> None:
    number = chaos.random.randrange(len(chaos.cluster.devices))
    device = chaos.cluster.devices[number]
    device.stuck, device.silent = True, chaos.random.random() < 0.5
    chaos.cluster.tell(f"the device of sim-{number} hangs")

    def free() -> None:
        device.stuck = device.silent = False

    chaos.later(chaos.random.choice((0.3, 1.0, 4.0)), free)


async def _leave(chaos: Chaos) -> None:
    name = chaos.some()
    if name is not None:
        chaos.cluster.leave(name)
        chaos.later(2.5, lambda: None if name in chaos.cluster.alive else chaos.cluster.start(name))


async def _pause(chaos: Chaos) -> None:
    name = chaos.random.choice(chaos.cluster.names)
    chaos.cluster.pause(name)
    chaos.later(chaos.random.uniform(0.0, 4.0), lambda: chaos.cluster.resume(name))


async def _sleep(chaos: Chaos) -> None:
    name = chaos.some()
    if name is None:
        return
    chaos.cluster.sleep(name)
    chaos.asleep.add(name)

    def wake() -> None:
        chaos.asleep.discard(name)
        chaos.cluster.reconnect(name)
        if name in chaos.cluster.alive:
            chaos.cluster.wake(name)

    chaos.later(chaos.random.choice((0.05, 0.5, 3.0, 20.0)), wake)


FAULTS: tuple[Fault, ...] = (
    _kill,
    _silence,
    _one_way,
    _slow_link,
    _slow_device,
    _device_lost,
    _device_hangs,
    _leave,
    _pause,
    _sleep,
)


async def chaos_of_ranks(cluster: Cluster) -> None:
    """The same of programs with ranks, which have a device each for as long as there are enough."""
    await chaos_run(cluster, lambda seed, _: Job.of_ranks(seed, "auto"))


async def chaos_run(cluster: Cluster, make: Callable[[int, str], Job] = Job.of) -> None:
    """Twelve jobs under mischief; once it is over every job ended, and one more is answered."""
    rng = random.Random(cluster.seed)
    chaos = Chaos(cluster, rng)
    player = asyncio.create_task(chaos.play())
    for _ in range(4):
        jobs = [make(rng.randrange(1 << 30), rng.choice(("auto", "single", "pipeline"))) for _ in range(3)]
        asked = [asyncio.create_task(job.ask(cluster, 2 * ANSWER_S)) for job in jobs]
        await asyncio.sleep(rng.uniform(0, 2))
        if rng.random() < 0.2:
            asked[0].cancel()
        for task in asked:
            if not (await asyncio.wait([task], timeout=ANSWER_S))[0]:
                chaos.settle()  # mischief that never ends may starve a call, but once it ends the call has to end too
            try:
                await task
            except asyncio.CancelledError:
                assert task is asked[0]
            except MeshError as error:
                raise AssertionError(f"a job failed: {error}") from error
    chaos.settle()
    await player
    last = make(rng.randrange(1 << 30), "auto")
    async with asyncio.timeout(ANSWER_S):
        while not await last.ask(cluster):
            await asyncio.sleep(0.1)
    await asyncio.sleep(15)
    assert cluster.coordinator.idle, "a call is left"
    for name, depth in cluster.busy().items():
        assert depth == 0, f"{name} still has {depth} parts"
