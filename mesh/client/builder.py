"""MeshBuilder: say which machines, then build.

    with Mesh.builder().local(3).build() as mesh:
        mesh.run(fn, x)

A builder is an immutable value: every method returns a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wire.addresses import check_name, parse_address
from wire.errors import ConfigError
from wire.joining.join_tokens import parse_token
from wire.limits import DEFAULT
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.timeouts import check_collective_timeout, check_node_timeout, node_timeout_of_beat, timeouts_of

from ..backends.config import DiscoverSpec, LocalSpec, MeshConfig, SimulateSpec
from ..backends.enrolment import ask_for_token
from ..util.annotation_checks import checked
from ..util.argument_checks import integer, number
from ..util.missing_names import missing_name_error
from ..util.refusals import refusal
from ..util.units import check_fraction, parse_size

if TYPE_CHECKING:
    from .async_mesh import AsyncMesh
    from .mesh import Mesh


@contextmanager
def _refusals_named() -> Iterator[None]:
    """Name what the system refuses while a mesh is built."""
    try:
        yield
    except OSError as error:
        raise refusal("what a mesh needs", error) from error


class MeshBuilder:
    """What a mesh is made of, said step by step.

    A builder is a value: every method returns a new one.  A wrong argument raises ConfigError at once.

    Parameters
    ----------
    config : MeshConfig, optional
        What has been said already.

    Examples
    --------
    >>> import mesh
    >>> builder = mesh.Mesh.builder().mesh("home").node("192.168.1.7:7100").local(2, engine="cpu", max_memory="2GiB")
    >>> builder = builder.discover(wait_s=2.0, min_nodes=1).node_timeout(3.0).collective_timeout(60).audit(0.02)
    >>> builder = builder.preset("wifi").timeouts(dial_s=20.0)
    >>> builder = builder.heartbeat(0.5).plan_ahead(False).reproducible().copies("coded")
    >>> builder
    <MeshBuilder: mesh='home', addresses=(('192.168.1.7', 7100),), ...>
    """

    @checked
    def __init__(self, config: MeshConfig = MeshConfig()) -> None:
        self.config = config

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise missing_name_error("mesh.MeshBuilder", name)

    def __repr__(self) -> str:
        settings = {field.name: getattr(self.config, field.name) for field in fields(MeshConfig) if field.repr}
        changed = [f"{name}={value!r}" for name, value in settings.items() if value != getattr(MeshConfig(), name)]
        return f"<MeshBuilder: {', '.join(changed) or 'no settings yet'}>"

    def node(self, address: str) -> MeshBuilder:
        """Add a worker, or the coordinator, at an address.

        If a coordinator answers there, this process becomes its client, and jobs run there.  It must then be the only
        node.

        Parameters
        ----------
        address : str
            "host:port", or "host" for port 7100.

        Returns
        -------
        MeshBuilder
            A builder with this node, too.

        Raises
        ------
        ConfigError
            If the address is not of that form.
        """
        return self._with(addresses=(*self.config.addresses, parse_address(address)))

    def discover(self, wait_s: float = 5.0, min_nodes: int = 1) -> MeshBuilder:
        """Add the workers of this mesh that announce themselves by mDNS.

        Parameters
        ----------
        wait_s : float, optional
            Seconds to wait for announcements.
        min_nodes : int, optional
            `build` fails if fewer workers were found by then.

        Returns
        -------
        MeshBuilder
            A builder that looks for workers, too.

        Raises
        ------
        ConfigError
            If `wait_s` or `min_nodes` is not possible.
        """
        integer(min_nodes, "min_nodes")
        number(wait_s, "wait_s")
        if min_nodes < 0 or not 0 < wait_s < 3600:
            raise ConfigError(f"discover(wait_s={wait_s}, min_nodes={min_nodes}) can never succeed")
        return self._with(discover=DiscoverSpec(wait_s, min_nodes))

    def local(
        self,
        count: int,
        engine: str | Sequence[str] = "auto",
        cache_dir: str | Path | None = None,
        max_memory: str | int | None = None,
        threads: int | None = None,
    ) -> MeshBuilder:
        """Start workers on this machine, which end with the mesh.

        Parameters
        ----------
        count : int
            How many workers.
        engine : str or sequence of str, optional
            "auto", "processor", "cpu", "wgsl", or another name that `mesh-worker --device` takes; one for all, or one
            per worker.
        cache_dir : str or Path, optional
            A folder that keeps weights and kernels between runs.
        max_memory : str or int, optional
            What each worker may use: "2GiB", or bytes. Without it their processors share half of the machine's memory
            evenly.
        threads : int, optional
            How many threads each worker's native engine has; without it they share the machine's cores evenly.

        Returns
        -------
        MeshBuilder
            A builder with these workers, too.

        Raises
        ------
        ConfigError
            If an argument is not possible.
        """
        from ..backends.local_workers import devices_per_worker, thread_count

        devices_per_worker(count, engine)
        fixed = engine if isinstance(engine, str) else tuple(engine)
        cache = Path(cache_dir).expanduser() if cache_dir else None
        memory_bytes = None if max_memory is None else parse_size(str(max_memory))
        return self._with(local=LocalSpec(count, fixed, cache, memory_bytes, thread_count(threads)))

    def simulate(self, count: int, seed: int = 0, gflops: float | Sequence[float] = 50.0) -> MeshBuilder:
        """Simulate workers in this process, on a virtual clock (docs/simulation.md).

        Results are real, nothing waits, and the same program with the same `seed` gives the same events.

        Parameters
        ----------
        count : int
            How many workers; they are called sim-0, sim-1, ...
        seed : int, optional
            The seed of whatever is left to chance.
        gflops : float or sequence of float, optional
            What each worker computes, in GFLOP/s; one figure for all, or one per worker.

        Returns
        -------
        MeshBuilder
            A builder of a simulated mesh; `Mesh.simulation` kills its workers and cuts its network.

        Raises
        ------
        ConfigError
            If a figure is not positive, or they are not as many as workers.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2, gflops=[100.0, 10.0]).build() as m:
        ...     y = m.run(lambda x: x + 1, np.zeros(2), strategy="single")
        ...     print(*m.report().workers)
        sim-0
        """
        integer(count, "the number of simulated workers", 1, DEFAULT.nodes_max + 1)
        figures = tuple(gflops) if isinstance(gflops, Sequence) else (gflops,) * count
        if count < 1 or len(figures) != count or not all(speed > 0 for speed in figures):
            raise ConfigError(
                f"simulate({count}, gflops={gflops}) needs a positive figure for each of 1 or more workers"
            )
        return self._with(simulate=SimulateSpec(tuple(map(float, figures)), seed))

    def preset(self, name: str) -> MeshBuilder:
        """Set the times that suit a kind of network (docs/configuration.md).

        A time that is set by itself, as by `timeouts` or `node_timeout`, stays whatever the preset.

        Parameters
        ----------
        name : {"lan", "wifi", "wan", "test", "local"}
            The network; "lan" is the default of a mesh, and "local" is the same.

        Returns
        -------
        MeshBuilder
            A builder with these times.

        Raises
        ------
        ConfigError
            If there is no such preset.
        """
        return self._with(timeouts=timeouts_of(name, dict(self.config.chosen)))

    def timeouts(self, **seconds: float) -> MeshBuilder:
        """Set single times, which stay whatever the preset.

        Workers that `local` starts get those that a worker reads.  Where a coordinator runs elsewhere, its times and
        those of its workers are set where they are started.

        Parameters
        ----------
        **seconds : float
            Seconds, by the names of docs/configuration.md.

        Returns
        -------
        MeshBuilder
            A builder with these times.

        Raises
        ------
        ConfigError
            If there is no such time, or it is not possible.
        """
        timeouts = self.config.timeouts.with_values(seconds)
        chosen = dict(self.config.chosen) | {name: getattr(timeouts, name) for name in seconds}
        return self._with(timeouts=timeouts, chosen=tuple(chosen.items()))

    def heartbeat(self, seconds: float) -> MeshBuilder:
        """Set the interval of heartbeats, by a node time-out of 15 of them.

        Parameters
        ----------
        seconds : float
            Seconds between two heartbeats.

        Returns
        -------
        MeshBuilder
            A builder with that time-out.

        Raises
        ------
        ConfigError
            If such a time-out is not possible.
        """
        return self.timeouts(node_timeout_s=node_timeout_of_beat(seconds))

    def node_timeout(self, seconds: float) -> MeshBuilder:
        """Set after how much silence a worker is dead.

        A worker is Suspect after a third of that time, and dead after two thirds if no other worker reaches it either.

        Parameters
        ----------
        seconds : float
            Seconds; 1.5 is the default, and slow networks need more.

        Returns
        -------
        MeshBuilder
            A builder with that time-out.

        Raises
        ------
        ConfigError
            If such a time-out is not possible.
        """
        return self.timeouts(node_timeout_s=check_node_timeout(seconds))

    def collective_timeout(self, seconds: float) -> MeshBuilder:
        """Set how long the ranks of a program wait for each other in a collective.

        A rank may compile, or compute, for long before it arrives.  A rank that waited that long raises
        DeadlineExceeded, which names the missing ranks and workers.  The death of a worker is noticed much earlier.

        Parameters
        ----------
        seconds : float
            Seconds; 120 is the default.

        Returns
        -------
        MeshBuilder
            A builder with that time-out.

        Raises
        ------
        ConfigError
            If such a time-out is not possible.
        """
        return self.timeouts(collective_timeout_s=check_collective_timeout(seconds))

    def audit(self, fraction: float) -> MeshBuilder:
        """Compute a fraction of all parts a second time, on other workers, and compare the results.

        A worker that was wrong twice is quarantined: it gets no more work, and `Mesh.nodes` and an event say so.  An
        answer that is wrong or in doubt is computed again.

        Parameters
        ----------
        fraction : float
            From 0, the default, to 1.  0.02 costs about 4 % of the work, and finds a worker that is always wrong within
            some hundred parts.

        Returns
        -------
        MeshBuilder
            A builder with audits.

        Raises
        ------
        ConfigError
            If it is not a fraction.
        """
        return self._with(audit=check_fraction("audit", fraction))

    def plan_ahead(self, wanted: bool) -> MeshBuilder:
        """Say whether to plan for the death of each worker before one dies.

        That takes about a second of one core for each worker and large graph, in a process of the lowest priority.  A
        recovery is shorter by that time.

        Parameters
        ----------
        wanted : bool
            Whether to; True is the default of a mesh.

        Returns
        -------
        MeshBuilder
            A builder that says so.

        Raises
        ------
        ConfigError
            If it is neither True nor False.
        """
        if not isinstance(wanted, bool):
            raise ConfigError(f"plan_ahead is True or False, not {wanted!r}")
        return self._with(plan_ahead=wanted)

    def reproducible(self, wanted: bool = True) -> MeshBuilder:
        """Allow only plans whose results have the same bits, whichever workers are there (docs/planning.md).

        Programs run on cpu engines that round alike, and this process computes nothing.  Native engines round alike on
        all processors, and split programs too; those over numpy only cut them.  What cannot keep bits raises an error
        that says what can: strategies that split over workers with numpy, training without `deterministic`,
        batches of requests and text generation over numpy, and coded layers.

        Parameters
        ----------
        wanted : bool, optional
            Whether to.

        Returns
        -------
        MeshBuilder
            A builder that says so.

        Raises
        ------
        ConfigError
            If it is neither True nor False.
        """
        if not isinstance(wanted, bool):
            raise ConfigError(f"reproducible is True or False, not {wanted!r}")
        return self._with(reproducible=wanted)

    def copies(self, policy: str) -> MeshBuilder:
        """Set which copies of each other's params workers keep, for calls that do not say (docs/redundancy.md).

        Parameters
        ----------
        policy : str
            "replica", "buddy", "coded", "coded K of N", or "checkpoint", the default, which leaves them to this
            process.

        Returns
        -------
        MeshBuilder
            A builder with that policy.

        Raises
        ------
        InputError
            If the policy is not known.
        """
        return self._with(copies=copies_of(policy, OF_CALLS).text)

    def mesh(self, name: str) -> MeshBuilder:
        """Set the mesh's name; nodes of another name are refused.

        Parameters
        ----------
        name : str
            The name; the default is MESH_NAME of the environment, else "default-<user>".

        Returns
        -------
        MeshBuilder
            A builder with that name.

        Raises
        ------
        ConfigError
            If it cannot be a name.
        """
        return self._with(mesh=check_name("mesh", name))

    @checked
    def token(self, text: str = "", file: str | Path = "") -> MeshBuilder:
        """Set the join token, which a user needs for the first program that uses a mesh of another machine.

        Parameters
        ----------
        text : str, optional
            The token.
        file : str or Path, optional
            A file that has it.  With neither, it comes from MESH_TOKEN of the environment, or is asked for.

        Returns
        -------
        MeshBuilder
            A builder with that token.

        Raises
        ------
        TokenError
            If it is not a join token.

        Examples
        --------
        >>> import mesh
        >>> mesh.Mesh.builder().token("not-a-token")
        Traceback (most recent call last):
            ...
        wire.errors.TokenError: ...
        """
        return self._with(token=parse_token(text) if text else ask_for_token(str(file)))

    def build(self) -> Mesh:
        """Connect to everything.

        Returns
        -------
        Mesh
            The mesh; close it, or use it as a context manager.

        Raises
        ------
        ConnectFailed
            If nodes do not answer; the error names each of them.
        ConfigError
            If no node was named, or names do not go together; also if the system refuses processes or open files.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(3).build() as m:
        ...     m
        <Mesh: 3 workers: sim-0, sim-1, sim-2>
        """
        from .mesh import Mesh

        with _refusals_named():
            return Mesh(self.config)

    async def build_async(self) -> AsyncMesh:
        """Connect to everything, on the running event loop.

        Returns
        -------
        AsyncMesh
            The mesh; close it, or use it as an async context manager.

        Raises
        ------
        ConnectFailed
            If nodes do not answer; the error names each of them.
        ConfigError
            If no node was named, or names do not go together; also if the system refuses processes or open files.

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> import mesh
        >>> async def main():
        ...     async with await mesh.Mesh.builder().build_async() as m:
        ...         return await m.run(lambda x: x + 1, np.zeros(2))
        >>> asyncio.run(main())
        array([1., 1.])
        """
        from .async_mesh import AsyncMesh

        with _refusals_named():
            return await AsyncMesh.connect(self.config)

    def _with(self, **changes: object) -> MeshBuilder:
        return MeshBuilder(replace(self.config, **changes))  # type: ignore[arg-type]
