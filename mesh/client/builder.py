"""MeshBuilder: say which machines, then build.

    with Mesh.builder().local(3).build() as mesh:
        mesh.run(fn, x)

A builder is an immutable value: every method returns a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wire.addresses import check_name, parse_address
from wire.errors import ConfigError
from wire.limits import DEFAULT
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.security.join_tokens import parse_token
from wire.timeouts import check_collective_timeout, check_node_timeout, node_timeout_of_beat, timeouts_of

from ..backends.config import DiscoverSpec, LocalSpec, MeshConfig, SimulateSpec
from ..backends.enrolment import ask_for_token
from ..util.annotation_checks import checked
from ..util.argument_checks import integer, number
from ..util.units import check_fraction, parse_size

if TYPE_CHECKING:
    from .async_mesh import AsyncMesh
    from .mesh import Mesh


class MeshBuilder:
    """Collects what a mesh is made of.  Errors in arguments are ConfigErrors, raised where they are made."""

    def __init__(self, config: MeshConfig = MeshConfig()) -> None:
        self.config = config

    def __repr__(self) -> str:
        said = {each.name: getattr(self.config, each.name) for each in fields(MeshConfig)}
        given = [f"{name}={value!r}" for name, value in said.items() if value != getattr(MeshConfig(), name)]
        return f"<MeshBuilder: {', '.join(given) or 'nothing said yet'}>"

    def node(self, address: str) -> MeshBuilder:
        """A worker, or a coordinator, at "host:port" or "host" (port 7100).

        If a coordinator answers, this process becomes its client and jobs run there; it must then be the only node.
        """
        return self._with(addresses=(*self.config.addresses, parse_address(address)))

    def discover(self, wait_s: float = 5.0, min_nodes: int = 1) -> MeshBuilder:
        """The workers of this mesh that announce themselves; `build` fails if fewer than `min_nodes` do in `wait_s`."""
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
    ) -> MeshBuilder:
        """Start `count` workers on this machine, ended with the mesh.

        `engine` is "auto", "cpu", "wgsl" or a `mesh-worker --device` name, one for all or a list of `count`.
        `cache_dir` keeps weights and kernels between runs; `max_memory` is each worker's budget: "2GiB", or bytes.
        """
        from ..backends.local_workers import devices_per_worker

        devices_per_worker(count, engine)
        fixed = engine if isinstance(engine, str) else tuple(engine)
        cache = Path(cache_dir).expanduser() if cache_dir else None
        memory_bytes = None if max_memory is None else parse_size(str(max_memory))
        return self._with(local=LocalSpec(count, fixed, cache, memory_bytes))

    def simulate(self, count: int, seed: int = 0, gflops: float | Sequence[float] = 50.0) -> MeshBuilder:
        """`count` simulated workers in this process, on a virtual clock: real results, no waiting, and every run alike.

        `gflops` is what each computes, one for all or a sequence of `count`; `Mesh.simulation` kills and restarts them,
        cuts and slows their network.  The same program and `seed` give the same events.
        """
        integer(count, "the number of simulated workers", 1, DEFAULT.nodes_max + 1)
        figures = tuple(gflops) if isinstance(gflops, Sequence) else (gflops,) * count
        if count < 1 or len(figures) != count or not all(each > 0 for each in figures):
            raise ConfigError(
                f"simulate({count}, gflops={gflops}) needs a positive figure for each of 1 or more workers"
            )
        return self._with(simulate=SimulateSpec(tuple(map(float, figures)), seed))

    def preset(self, name: str) -> MeshBuilder:
        """The times that suit a kind of network: "lan" (the default), "wifi", "wan" or "test" (docs/configuration.md).

        A time that is said besides, as by `timeouts` or `node_timeout`, holds whatever the preset.
        """
        return self._with(timeouts=timeouts_of(name, dict(self.config.chosen)))

    def timeouts(self, **seconds: float) -> MeshBuilder:
        """Single times by the names of docs/configuration.md: `timeouts(dial_s=20)`.  They hold whatever the preset.

        Workers that `local` starts get those that a worker reads.  Where a coordinator is elsewhere, its times and
        those of its workers are said where they are started.
        """
        timeouts = self.config.timeouts.with_values(seconds)
        chosen = dict(self.config.chosen) | {name: getattr(timeouts, name) for name in seconds}
        return self._with(timeouts=timeouts, chosen=tuple(chosen.items()))

    def heartbeat(self, seconds: float) -> MeshBuilder:
        """The heartbeat interval, by setting the node time-out to 15 of them."""
        return self.timeouts(node_timeout_s=node_timeout_of_beat(seconds))

    def node_timeout(self, seconds: float) -> MeshBuilder:
        """After how much silence a worker is dead, 1.5 s unless said; more for slow networks.

        It is Suspect after a third of it, and dead after two thirds if no other worker reaches it either.
        """
        return self.timeouts(node_timeout_s=check_node_timeout(seconds))

    def collective_timeout(self, seconds: float) -> MeshBuilder:
        """How long the ranks of a program wait for each other in a collective, 120 s unless said.

        One may compile, or compute, long before it comes.  Whoever waited that long raises DeadlineExceeded, which
        names the ranks and workers that are missing; a worker that dies is noticed much earlier.
        """
        return self.timeouts(collective_timeout_s=check_collective_timeout(seconds))

    def audit(self, fraction: float) -> MeshBuilder:
        """Compute this fraction of all parts again on two other workers and compare; 0, the default, never does.

        A worker that was wrong twice is quarantined: it gets no more work, `Mesh.nodes` and an event say so.  An answer
        that is known to be wrong, or doubted, is computed again.  0.02 costs about 4 % of the work, and finds a worker
        that is always wrong within some hundred parts.
        """
        return self._with(audit=check_fraction("audit", fraction))

    def plan_ahead(self, wanted: bool) -> MeshBuilder:
        """Whether plans for the death of each worker are made before one dies, which they are unless said otherwise.

        That takes a second or so of one core for every worker and large graph, in a process of the lowest priority, and
        spares a recovery that time.
        """
        if not isinstance(wanted, bool):
            raise ConfigError(f"plan_ahead is True or False, not {wanted!r}")
        return self._with(plan_ahead=wanted)

    def reproducible(self, wanted: bool = True) -> MeshBuilder:
        """Only plans of which all have the same bits, whoever is there and whatever dies (docs/planning.md).

        Programs are cut at nodes and never split, by cpu engines that round alike, and nothing is computed in this
        process because no worker is there.  What cannot keep bits is an InputError that says what can: strategies that
        split, training without `deterministic`, servers that batch requests, texts and coded layers.
        """
        if not isinstance(wanted, bool):
            raise ConfigError(f"reproducible is True or False, not {wanted!r}")
        return self._with(reproducible=wanted)

    def copies(self, policy: str) -> MeshBuilder:
        """What workers keep of each other's params where a call does not say: "replica", "buddy", "coded",
        "coded K of N", or "checkpoint", the default, which leaves them to this process (docs/redundancy.md)."""
        return self._with(copies=copies_of(policy, OF_CALLS).text)

    def mesh(self, name: str) -> MeshBuilder:
        """The mesh's name (default MESH_NAME, else "default-<user>"); nodes of another name are refused."""
        return self._with(mesh=check_name("mesh", name))

    @checked
    def token(self, text: str = "", file: str | Path = "") -> MeshBuilder:
        """The join token, for the first time that this user of this machine uses a mesh whose coordinator is elsewhere.

        Given as text or as a file; with neither it comes from MESH_TOKEN.  TokenError if it is none.
        """
        return self._with(token=parse_token(text) if text else ask_for_token(str(file)))

    def build(self) -> Mesh:
        """Connect to everything; raises ConnectFailed naming every node that failed."""
        from .mesh import Mesh

        return Mesh(self.config)

    async def build_async(self) -> AsyncMesh:
        """As `build`, for use on a running event loop."""
        from .async_mesh import AsyncMesh

        return await AsyncMesh.connect(self.config)

    def _with(self, **changes: object) -> MeshBuilder:
        return MeshBuilder(replace(self.config, **changes))  # type: ignore[arg-type]
