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

    simulates = True

    def __init__(self, cluster: Cluster, loop: VirtualLoop) -> None:
        super().__init__(cluster.coordinator)
        self.cluster = cluster
        self._virtual = loop

    def attend(self, started: Started) -> None:
        self._virtual.flow_until(started.outputs)

    async def close(self) -> None:
        with self._virtual.flow():
            await self.cluster.stop()
        self._forget_handles()


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
    """The controls of a simulated mesh, whose workers are called sim-0, sim-1, ...; `Mesh.simulation` returns it.

    Every method raises ConfigError if there is no such worker.

    Parameters
    ----------
    cluster : Cluster
        The simulated workers.
    loop : LoopThread
        The mesh's event loop, whose clock is virtual.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(3, seed=7).build() as m:
    ...     job = m.submit(lambda x: x + 1, np.zeros(2))
    ...     m.simulation.kill("sim-1")
    ...     y = job.result()
    ...     m.simulation.start("sim-1")
    ...     m.simulation.slow("sim-2", 4.0)
    ...     m.simulation.silence("sim-2")
    ...     m.simulation.block("sim-0", "coordinator")
    ...     m.simulation.heal()
    ...     m.simulation.wait(10.0)
    ...     lines = m.simulation.transcript().splitlines()
    >>> y, len(lines) > 0
    (array([1., 1.]), True)
    """

    def __init__(self, cluster: Cluster, loop: LoopThread) -> None:
        self._cluster = cluster
        self._loop = loop

    @property
    def now_s(self) -> float:
        """Virtual seconds since the mesh was built."""
        return self._do(lambda: asyncio.get_running_loop().time())

    def kill(self, name: str) -> None:
        """Kill a worker, as `kill -9` does: its connections end without a word.

        Parameters
        ----------
        name : str
            The worker.
        """
        self._do(lambda: self._cluster.kill(name))

    def start(self, name: str) -> None:
        """Start a worker again that was killed or left.

        Parameters
        ----------
        name : str
            The worker.
        """
        self._do(lambda: self._cluster.start(name))

    def leave(self, name: str) -> None:
        """Make a worker leave, as SIGTERM does: it hands its work back and ends.

        Parameters
        ----------
        name : str
            The worker.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     m.simulation.leave("sim-1")
        ...     m.simulation.wait(5.0)
        ...     [node.name for node in m.nodes if node.state == "healthy"]
        ['sim-0']
        """
        self._do(lambda: self._cluster.leave(name))

    def pause(self, name: str) -> None:
        """Pause a worker, as `mesh-worker pause` does: it hands its work back, stays, and takes none.

        Parameters
        ----------
        name : str
            The worker.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     m.simulation.pause("sim-1")
        ...     m.simulation.wait(1.0)
        ...     m.nodes[1].state
        'paused'
        """
        self._do(lambda: self._cluster.pause(name))

    def resume(self, name: str) -> None:
        """End a pause, as `mesh-worker resume` does.

        Parameters
        ----------
        name : str
            The worker.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     m.simulation.pause("sim-1")
        ...     m.simulation.wait(1.0)
        ...     m.simulation.resume("sim-1")
        ...     m.simulation.wait(1.0)
        ...     m.nodes[1].state
        'healthy'
        """
        self._do(lambda: self._cluster.resume(name))

    def sleep(self, name: str) -> None:
        """Close the machine's lid: its worker hands its work back, and then nothing reaches it or leaves it.

        Parameters
        ----------
        name : str
            The worker.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     m.simulation.sleep("sim-1")
        ...     m.simulation.wait(5.0)
        ...     m.simulation.wake("sim-1")
        """
        self._do(lambda: self._cluster.sleep(name))

    def wake(self, name: str) -> None:
        """Open the lid again.

        Parameters
        ----------
        name : str
            The worker.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     m.simulation.sleep("sim-1")
        ...     m.simulation.wait(5.0)
        ...     m.simulation.wake("sim-1")
        """
        self._do(lambda: self._cluster.wake(name))

    def silence(self, name: str) -> None:
        """Pull the worker's cable: nothing reaches it or leaves it, and no other process is notified.

        Parameters
        ----------
        name : str
            The worker.
        """
        self._do(lambda: self._cluster.silence(name))

    def block(self, source: str, target: str) -> None:
        """Stop all traffic from one host to another, in this direction.

        Parameters
        ----------
        source : str
            The host that sends: a worker's name, or "coordinator".
        target : str
            The host that would receive.
        """
        self._do(lambda: self._cluster.block(source, target))

    def heal(self) -> None:
        """Make the network whole again."""
        self._do(self._cluster.heal)

    def slow(self, name: str, times: float) -> None:
        """Make a worker slower than its figures say.

        Parameters
        ----------
        name : str
            The worker.
        times : float
            How many times as long its devices take.
        """
        self._do(lambda: self._cluster.slow(name, times))

    def wait(self, seconds: float) -> None:
        """Let virtual time pass.

        Parameters
        ----------
        seconds : float
            Seconds of the virtual clock.
        """

        async def sleep() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            with loop.flow():
                await asyncio.sleep(seconds)

        self._loop.wait(sleep())

    def transcript(self) -> str:
        """Write down what happened so far; it is the same for the same seed and program.

        Returns
        -------
        str
            A line for each event.
        """
        return self._do(self._cluster.transcript)

    def _do(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return self._loop.wait(call())
