"""Simulated: the backend of a simulated mesh, and the handle by which its user injects faults.

Part of the composition root: it ties a Cluster to what a Mesh stands on.  Time flows while somebody waits for a result
or for time to pass, and stands still otherwise: so a program of another thread replays, however fast that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from coordinator.coordinator import CoordinatorConfig
from wire.errors import ConfigError

from ..backends.config import MeshConfig, SimulateSpec, default_mesh_name
from ..backends.embedded import Embedded
from ..core.backend import Started
from ..core.loop_thread import LoopThread
from .cluster import Cluster
from .engine_host import Device
from .loop import VirtualLoop

T = TypeVar("T")


class Simulated(Embedded):
    """An embedded coordinator whose workers are simulated."""

    def __init__(self, cluster: Cluster, loop: VirtualLoop) -> None:
        super().__init__(cluster.coordinator)
        self.cluster = cluster
        self._virtual = loop

    def attend(self, started: Started) -> None:
        self._virtual.flow_until(started.outputs)

    async def close(self) -> None:
        with self._virtual.flow():
            await self.cluster.stop()


async def connect_simulated(config: MeshConfig, spec: SimulateSpec) -> Simulated:
    """A simulated mesh on the running VirtualLoop; ConfigError where the loop is another, or other nodes are named."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise ConfigError(
            "a simulated mesh needs a loop with a virtual clock",
            next_step="Use .build(), or asyncio.Runner(loop_factory=mesh.simulation.loop.VirtualLoop)",
        )
    if config.addresses or config.local or config.discover:
        raise ConfigError("a simulated mesh has no real nodes", next_step="Use simulate(n) alone")
    settings = CoordinatorConfig(
        config.mesh or default_mesh_name(),
        "simulation",
        config.timeouts,
        audit=config.audit,
        reproducible=config.reproducible,
        plan_ahead=config.plan_ahead,
    )
    cluster = Cluster(settings, [Device(gflops=gflops) for gflops in spec.gflops], spec.seed)
    with loop.flow():
        await cluster.begin()
    return Simulated(cluster, loop)


class Simulation:
    """Injects faults into a simulated Mesh, whose workers are called sim-0, sim-1 and so on.

        with Mesh.builder().simulate(3).build() as mesh:
            job = mesh.submit(fn, x)
            mesh.simulation.kill("sim-1")
            job.result()

    Every method raises ConfigError for a worker there is not.
    """

    def __init__(self, cluster: Cluster, loop: LoopThread) -> None:
        self._cluster = cluster
        self._loop = loop

    @property
    def now_s(self) -> float:
        """Virtual seconds since the mesh was built."""
        return self._do(lambda: asyncio.get_running_loop().time())

    def kill(self, name: str) -> None:
        """Kill a worker, as `kill -9` does: its connections end without a word."""
        self._do(lambda: self._cluster.kill(name))

    def start(self, name: str) -> None:
        """Start a worker again that was killed or left."""
        self._do(lambda: self._cluster.start(name))

    def leave(self, name: str) -> None:
        """Have a worker leave, as SIGTERM does: it hands its work back and ends."""
        self._do(lambda: self._cluster.leave(name))

    def pause(self, name: str) -> None:
        """Pause a worker, as `mesh-worker pause` does: it hands its work back, stays, and takes none."""
        self._do(lambda: self._cluster.pause(name))

    def resume(self, name: str) -> None:
        """End a pause, as `mesh-worker resume` does."""
        self._do(lambda: self._cluster.resume(name))

    def sleep(self, name: str) -> None:
        """Close the machine's lid: its worker hands its work back, and then nothing gets to it or from it."""
        self._do(lambda: self._cluster.sleep(name))

    def wake(self, name: str) -> None:
        """Open the lid again."""
        self._do(lambda: self._cluster.wake(name))

    def silence(self, name: str) -> None:
        """Pull the worker's cable: nothing gets to it or from it, and nobody is told."""
        self._do(lambda: self._cluster.silence(name))

    def block(self, source: str, target: str) -> None:
        """Nothing gets from one host to another, in this direction; the coordinator's host is "coordinator"."""
        self._do(lambda: self._cluster.block(source, target))

    def heal(self) -> None:
        """The network is whole again."""
        self._do(self._cluster.heal)

    def slow(self, name: str, times: float) -> None:
        """The worker takes so many times as long as its figures say."""
        self._do(lambda: self._cluster.slow(name, times))

    def wait(self, seconds: float) -> None:
        """Let so much virtual time pass."""

        async def sleep() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            with loop.flow():
                await asyncio.sleep(seconds)

        self._loop.wait(sleep())

    def transcript(self) -> str:
        """What happened so far, a line per event; the same for the same seed and program."""
        return self._do(self._cluster.transcript)

    def _do(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return self._loop.wait(call())
