"""Connect: makes the connected backend that a builder's settings describe.

Part of the composition root.  Addresses are dialled, local workers started and announcements awaited all at once; every
failure is collected, so that the error names each node that failed and not only the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.authority.authority import Authority
from coordinator.coordinator import Coordinator, CoordinatorConfig
from wire.addresses import shown
from wire.errors import ConfigError, ConnectFailed, JoinRefused, MeshError, NoCoordinator, NotTrusted
from wire.link.address_policy import is_loopback
from wire.link.link import Link
from wire.security.user_secret import new_secret, user_secret

from ..core.backend import Backend
from ..util.units import counted
from .admission import Admission
from .config import DiscoverSpec, LocalSpec, MeshConfig, default_mesh_name, default_name
from .embedded import Embedded, start_coordinator
from .enrolment import (
    as_client,
    at_home,
    authority_folder,
    client_folder,
    client_membership,
    is_client,
    join_mesh,
    machine_name,
)
from .gather import gather_all
from .local_workers import LocalWorkers, devices_per_worker
from .remote import Remote

if TYPE_CHECKING:
    from .auto_join import AutoJoin

Address = tuple[str, int]


async def connect(config: MeshConfig) -> Backend:
    """The backend a builder describes; ConnectFailed naming every node that failed, nothing left running."""
    mesh = config.mesh or default_mesh_name()
    refused: MeshError | None = None
    if config.addresses and await _is_member(mesh, config):
        remote, refused = await _as_member(mesh, config)
        if remote is not None:
            return remote
    admission = await _as_coordinator(mesh, config)
    credentials = admission.credentials if admission else None
    settings = CoordinatorConfig(
        mesh,
        default_name(),
        config.timeouts,
        audit=config.audit,
        reproducible=config.reproducible,
        plan_ahead=config.plan_ahead,
        direct_calls=True,
    )
    secret = await _secret(config) if admission is None else b""
    coordinator = await start_coordinator(settings, credentials, secret)
    if admission is not None:
        admission.begin(coordinator)
    local: LocalWorkers | None = None
    auto: AutoJoin | None = None
    try:
        try:
            links = await _dial_all(coordinator, config.addresses)
        except ConnectFailed as error:
            raise refused or error from None
        for (host, port), link in links.items():
            if link.peer.role == "coordinator":  # too busy to answer in time when it was asked for as one
                late = f"did not answer within {config.timeouts.dial_s:g} s"
                raise ConnectFailed(
                    f"{shown(host)}:{port} is a coordinator that {late}", next_step="Connect again: it answers now"
                )
        local = _local_workers(mesh, config, admission is not None, secret)
        joins: list[Awaitable[Any]] = [coordinator.adopt(link, *address) for address, link in links.items()]
        if local is not None and config.local is not None:
            joins.append(_start_local(coordinator, local, config.local))
        if config.discover is not None:
            from .auto_join import AutoJoin  # zeroconf is loaded only where somebody looks for announcements

            auto = AutoJoin(coordinator, admission.discovery_keys if admission else None)
            joins.append(_discover(auto, config.discover, mesh))
        await gather_all(joins)
    except BaseException:
        await Embedded(coordinator, local, auto, admission).close()
        raise
    return Embedded(coordinator, local, auto, admission)


async def _dial_all(coordinator: Coordinator, addresses: Sequence[Address]) -> dict[Address, Link]:
    """The link to every address.  Several addresses of one node are one link: the latest one replaced the others."""
    distinct = tuple(dict.fromkeys(addresses))
    dials = [coordinator.endpoint.dial(host, port) for host, port in distinct]
    links = dict(zip(distinct, await gather_all(dials), strict=True))
    standing = {link.peer.node_id for link in links.values() if not link.closed}
    return {at: link for at, link in links.items() if not (link.closed and link.peer.node_id in standing)}


async def _is_member(mesh: str, config: MeshConfig) -> bool:
    """Whether this user is a client of the mesh, or becomes one now by the token it was given."""
    if config.token and not (client_folder(mesh) / "certificate.pem").exists():
        peers = [f"{shown(host)}:{port}" for host, port in config.addresses]
        joined = await join_mesh(config.token, "client", machine_name(), peers, (), "", as_client, config.timeouts)
        if joined != mesh:
            raise ConfigError(f"the token is for mesh {joined!r}, not {mesh!r}", next_step=f"Say .mesh({joined!r})")
    return await asyncio.to_thread(is_client, mesh)


async def _as_member(mesh: str, config: MeshConfig) -> tuple[Backend | None, MeshError | None]:
    """The coordinator at the first address that has one; else None, and the error of one that refused this client."""
    refused: MeshError | None = None
    membership = await asyncio.to_thread(client_membership, mesh, timeouts=config.timeouts)
    for host, port in config.addresses:
        try:
            remote = await Remote.find(mesh, host, port, membership, config.timeouts)
        except NoCoordinator:
            break
        except (ConnectFailed, JoinRefused, NotTrusted) as error:
            if not is_loopback(host):
                raise
            refused = error if isinstance(error, JoinRefused | NotTrusted) else refused
            continue  # perhaps a worker without a token, of this machine
        if len(config.addresses) > 1 or config.local or config.discover:
            await remote.close()
            raise ConfigError(
                f"{host}:{port} is a coordinator with workers of its own, so it cannot be mixed with other nodes",
                next_step="Name it alone, or name its workers instead",
            )
        remote.asks_reproducible = config.reproducible
        return remote, None
    return None, refused


async def _as_coordinator(mesh: str, config: MeshConfig) -> Admission | None:
    """The admission with which this process coordinates a mesh whose authority is this user's; None for other
    meshes."""
    if not (config.addresses or config.discover) or not await asyncio.to_thread(at_home, mesh):
        return None

    def certified() -> Admission:
        return Admission(Authority(authority_folder(mesh), mesh))

    return await asyncio.to_thread(certified)


async def _secret(config: MeshConfig) -> bytes:
    """What nodes without credentials prove to know: a new secret where all of them are started here."""
    return await asyncio.to_thread(user_secret) if config.addresses or config.discover else new_secret()


def _local_workers(mesh: str, config: MeshConfig, members: bool, secret: bytes) -> LocalWorkers | None:
    spec = config.local
    if spec is None:
        return None
    return LocalWorkers(mesh, spec.cache_dir, spec.memory_bytes, members, config.timeouts, spec.threads, secret)


async def _start_local(coordinator: Coordinator, local: LocalWorkers, spec: LocalSpec) -> None:
    coordinator.health.last_words = local.last_words
    workers = await local.start(devices_per_worker(spec.count, spec.engine))
    await gather_all([coordinator.connect("127.0.0.1", worker.port) for worker in workers])


async def _discover(join: AutoJoin, spec: DiscoverSpec, mesh: str) -> None:
    """Wait until enough workers have announced themselves and joined; later ones still join."""
    await join.start()
    if not await join.wait_for(max(spec.nodes_min, 1), spec.wait_s) and join.joined < spec.nodes_min:
        raise ConnectFailed(
            f"{join.joined} of at least {counted(spec.nodes_min, 'worker')} of mesh {mesh!r} joined "
            f"in {spec.wait_s:g} s",
            cause="; ".join(join.failures),
            next_step="Start mesh-worker there, or name it: .node('host:port')",
        )
