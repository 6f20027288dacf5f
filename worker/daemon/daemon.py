"""The worker daemon: it makes the parts of a worker, joins them, and starts and ends them.

`worker/state/worker_state.py` decides.  `machine_shell.py` has its actions performed by the other files here; each of
these has rows for the actions (`performers`) and the messages (`requests`, `notifications`) that are its own.  Nothing
here computes or blocks the event loop for more than a moment, so heartbeats are on time whatever the devices do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import replace
from functools import partial

from wire.addresses import parse_address, shown
from wire.joining.credentials import Credentials
from wire.link.guard import Guard
from wire.link.identity import identity_here
from wire.link.keepalive import LinkWatch, StepKeepalive
from wire.link.membership import Membership
from wire.protocol.messages import (
    Ballast,
    BlobStream,
    Letter,
    Push,
)
from wire.protocol.permissions import Receiver
from wire.system.file_lock import behind_lock
from wire.system.log_ring import start_logging
from wire.system.loop_lag import measure
from wire.system.malloc import hold_buffers
from wire.system.open_file_limit import allow_open_files
from wire.system.signals import watch_signals
from wire.system.steady_log import steady_logger
from wire.transfer.content_exchange import BlobExchange

from ..config import WorkerConfig
from ..devices.registry import selections
from ..engine import descriptors
from ..state import events as ev
from ..state.bounds import Bounds
from . import state_folder
from .arriving_tensors import ArrivingTensors
from .availability import Availability
from .blob_fetcher import BlobFetcher, RemoteBlobs
from .blob_store import BlobStore
from .collective_bridge import Bridge
from .collective_rendezvous import host_connections_of
from .device_work import DeviceWork
from .engine_hosts import EngineHosts
from .environment import REAL, Environment
from .heartbeats import Heartbeats
from .idle_tuner import IdleTuner
from .link_handler import LinkHandler
from .machine_shell import MachineShell, Performers
from .mdns_announcer import advertise
from .no_peer_warning import warn_without_coordinator
from .owner_link import OwnerLink
from .parent_watch import watch_parent
from .parity_builder import ParityBuilder
from .pause_file import PauseFiles
from .plan_requests import PlanRequests
from .relations import Relations
from .self_report import SelfReport
from .snapshot_writer import SnapshotWriter
from .tensor_sender import TensorSender
from .voting import Voting
from .worker_links import WorkerLinks

log = steady_logger("graph_mesh.worker")
MEMBERSHIP_LOOK_S = 1.0
SHARED_LOOK_S = 1.0  # from one look whether the folder of shared memory is there to the next
AGAIN = -1  # instead of an exit code: start once more in the same process


async def run_worker(config: WorkerConfig, environment: Environment = REAL) -> int:
    """Serve until the end; the exit code: 0 drained, 3 no device is left.  MeshError if it cannot start."""
    config.check()
    ring = start_logging(config.verbosity, config.log_json)
    allow_open_files()
    hold_buffers()
    measure(asyncio.get_running_loop()).tell()
    try:
        while True:
            async with contextlib.AsyncExitStack() as stack:
                code = await Daemon(config, ring.lines, stack, environment).run()
            if code != AGAIN:
                return code
    finally:
        ring.close()


class Daemon:
    """One worker process."""

    def __init__(
        self,
        config: WorkerConfig,
        log_lines: deque[str],
        stack: contextlib.AsyncExitStack,
        environment: Environment = REAL,
    ) -> None:
        self._log_lines = log_lines
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[int] = self._loop.create_future()
        self._folder = state_folder.claim(config.state_base, config.wanted_name)
        stack.callback(self._folder.lock.release)
        self._shared = environment.shared()
        stack.callback(self._shared.close)
        credentials = environment.credentials(self._folder.path, self._folder.name)
        self._config = config = config if config.host else replace(config, host="::" if credentials else "127.0.0.1")
        self._membership = Membership(credentials, self._folder.path, config.timeouts) if credentials else None
        self.shell = shell = MachineShell(self._folder.name)
        self._handler, self._relations = LinkHandler(shell), Relations(shell)
        self._guard = guard = Guard(self._handler, Receiver.WORKER, self._relations.tests())
        node_id = credentials.node_id if credentials else self._folder.node_id
        shared = self._shared if config.share_memory else None
        self._identity = identity_here("worker", config.mesh_name, self._folder.name, shared, node_id)
        self._endpoint = environment.endpoint(self._identity, guard, credentials, config, environment.secret)
        self._make_stores()
        self._make_links(credentials)
        stack.push_async_callback(self._close)
        self._make_devices(credentials)
        self._set_tables()

    def _make_stores(self) -> None:
        config, shared = self._config, self._shared.path / "blobs"
        cache = config.cache_folder(self._folder.name)
        self._store = BlobStore(cache / "blobs", shared, config.cache_bytes_max, config.blob_memory_bytes)
        self._exchange = BlobExchange(self._shared, self._store.view)
        files, memory = PauseFiles(self._folder.path), self._environment.memory
        self.availability = Availability(self.shell, self._endpoint, self._membership, files, memory)

    def _make_links(self, credentials: Credentials | None) -> None:
        config, shell, endpoint = self._config, self.shell, self._endpoint
        times = config.timeouts
        self._owner_link = OwnerLink(shell, endpoint, self._membership, config.peers, times)
        arriving = ArrivingTensors(shell, self._blame)
        patience_s = lambda: self._owner_link.patience_s  # noqa: E731
        self._links = WorkerLinks(shell, endpoint, self._shared, arriving, patience_s)
        remote = RemoteBlobs(endpoint, self._exchange, shell.owner_id, self._links.linked)
        self._fetcher = BlobFetcher(self._identity.node_id, self._store, remote, shell.feed)
        self._parity = ParityBuilder(self._store, remote)
        self._sender = TensorSender(endpoint, self._links.relay, shell.feed)
        self._beats = Heartbeats(shell, self._links.notify, StepKeepalive(endpoint), self._links.forget)
        held, joined = self._store.held, self._owner_link.joined
        self._voting = Voting(shell, self._identity.node_id, self._folder.path)
        self._requests = PlanRequests(shell, self._shared, self._links.forget, held, joined, arriving)

    def _make_devices(self, credentials: Credentials | None) -> None:
        config, shell = self._config, self.shell
        self._hosts = hosts = EngineHosts(
            config, self._environment, self._folder.name, self._shared, config.kernel_folder, self._store.folders,
            lambda host, message: self._devices.on_message(host, message),
            lambda host, error: self._devices.on_lost(host, error),
            lambda device: self._devices.on_restarted(device),
        )  # fmt: skip
        real = self._environment.signals
        hand = hosts.hand if descriptors.POSSIBLE else None
        connections = host_connections_of(config, credentials is not None, hosts.tell, hand) if real else None
        self._bridge = Bridge(self._endpoint.links, self._shared, connections, config.timeouts)
        self._snapshots = SnapshotWriter(self._store, str(self._shared.path), hosts.tell, shell.feed)
        self._tuner = IdleTuner(config, shell.tasks, shell.has_work)
        self._devices = DeviceWork(
            shell, hosts, self._shared, self._store, self._bridge, self._snapshots, self._tuner, self._links.notify,
            self._log_lines,
        )  # fmt: skip
        self._report = SelfReport(
            config, self._identity, shell, hosts, self._devices, self._links.notify, self._log_lines
        )

    def _set_tables(self) -> None:
        """Say what performs each action, and what takes each message."""
        shell, handler, links = self.shell, self._handler, self._links
        own: Performers = {
            ev.ReplyRan: lambda action: shell.answer(action.request, self._sender.answer_run(action)),
            ev.Stop: self._stop,
            ev.Blame: lambda action: self._blame(action.node, action.why),
        }
        acting = self.availability, self._beats, self._owner_link, links, self._fetcher, self._sender
        shell.perform_by(own, *(part.performers() for part in (*acting, self._devices, self._voting, self._report)))
        for asked in (self._requests, links, self._fetcher, self._parity, self._voting, self._report):
            handler.requests.update(asked.requests())
        handler.prompt.update(self._requests.prompt())
        for receiver in (self._requests, self._owner_link, links, self._bridge):
            handler.notifications.update(receiver.notifications())
        handler.streams.update({Push: self._requests, BlobStream: self._exchange})
        handler.streams.update({Letter: self._bridge, Ballast: links.meter})
        self._relations.know(self._bridge, self._exchange, links.meter)
        handler.linked.append(self._bridge.linked)
        handler.unlinked.append(self._owner_link.unlinked)

    # -- start and end

    async def run(self) -> int:
        """Start, serve, and return the exit code."""
        config, shell, environment = self._config, self.shell, self._environment
        for peer in config.peers:
            parse_address(peer)  # a wrong one must be known now
        if environment.signals:
            watch_signals(self._loop, self.leave)
        await self._hosts.start(selections(config.devices))
        port = await self._endpoint.listen(config.host, config.port, config.last_port)
        self._devices.reports = await self._hosts.opened()
        times, own = config.timeouts, self._identity
        bounds = Bounds(
            memory_bytes=self._report.memory_bytes,
            keep_orphans_s=times.keep_orphans_s,
            lost_link_grace_s=times.lost_link_grace_s,
            served_epoch=self._voting.served_epoch,
        )
        shell.machine = environment.machine(own.node_id, len(self._hosts.hosts), own.incarnation, bounds)
        self.availability.pauses.look()
        self._handler.ready.set()
        watch = self._owner_link.watch = environment.watch(self._endpoint, config, port)
        watch.needed = shell.machine.needed
        watch.woke.append(lambda: self.availability.wake(announced=False))
        address = next(iter(self._endpoint.identity.addresses), f"{shown(config.host)}:{port}")
        self._report.announce(address, port)
        self._serve(watch, port)
        self._owner_link.start()
        await watch_parent(self._loop, config, self.leave)
        return await self._stopped

    def _serve(self, watch: LinkWatch, port: int) -> None:
        """Begin with what lasts until the end."""
        config, keep, here = self._config, self.shell.tasks.keep, self.availability
        alone = config.exit_with_stdin
        keep("the watch over links", watch.run)
        keep("looking at the machine's memory", here.watch_memory)
        if self._environment.signals:
            keep("looking after shared memory", self._keep_shared)
            keep("looking for pauses", here.pauses.run)
            keep("looking for idle moments", self._tuner.run)
        if self._environment.signals and not alone:  # else the receiver sleeps at the same time
            keep("listening for sleep", here.watch_sleep)
        if not alone:
            waiting = config.timeouts.no_coordinator_warning_s, self.shell.owner_id, self._owner_link.advice
            keep("waiting for a coordinator", lambda: warn_without_coordinator(*waiting))
        if self._membership:
            keep("keeping the certificate", self._membership.keep)
        elif not alone:
            keep("looking for a membership", self._look_for_membership)
        if config.discoverable:
            arguments = self._membership, config, self._stopped, self._owner_link.announced
            keep("announcing this worker", lambda: advertise(self._endpoint, port, *arguments))

    def leave(self, reason: str) -> None:
        """Hand unfinished work back and end, as on SIGTERM."""
        if self.shell.machine is not None:
            self.shell.feed(ev.DrainRequested(reason))
        elif not self._stopped.done():
            self._stopped.set_result(0)

    async def _close(self) -> None:
        """Let the last messages out, end the children, release what is ours; nothing is decided any more."""
        self.shell.machine = None
        self.shell.tasks.cancel()
        if self._membership:
            self._membership.close()
        self._fetcher.close()
        self._sender.close()
        self._bridge.close()
        self._snapshots.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._endpoint.close(), self._config.timeouts.worker_drain_s)
        await self._hosts.close()

    def _blame(self, node: str, why: str) -> None:
        link = self._endpoint.links.get(node)
        if link is not None:
            self._guard.count(link, f"{link.peer.name} sent {why}")

    async def _look_for_membership(self) -> None:
        """A worker that started before its mesh had an authority starts again once it is let in, if nobody needs it."""
        find, folder = self._environment.credentials, self._folder
        look = partial(behind_lock, find, folder.path, folder.name)
        while self._is_needed() or not await look() or self._is_needed():
            await asyncio.sleep(MEMBERSHIP_LOOK_S)
        log.info("this worker is a member of mesh %s now, and restarts as one", self._config.mesh_name)
        if not self._stopped.done():
            self._stopped.set_result(AGAIN)

    async def _keep_shared(self) -> None:
        """Make shared memory again that somebody has removed: engine hosts write there, and may make no folder."""
        while True:
            await asyncio.sleep(SHARED_LOOK_S)
            self._shared.keep()
            self._store.keep_memory()

    def _is_needed(self) -> bool:
        machine = self.shell.machine
        return machine is None or machine.served

    def _stop(self, action: ev.Stop) -> None:
        log.info("leaving: %s", action.reason)
        if not self._stopped.done():
            self._stopped.set_result(action.code)


__all__ = ["WorkerConfig", "run_worker"]
