"""The worker daemon: the shell that performs what `worker/state/worker_state.py` decides.

It owns the sockets, the engine hosts, the blob store and the clock; it turns what happens into events and actions into
I/O, and decides nothing about plans.  It never computes and never blocks its loop for more than a moment, so heartbeats
are on time whatever the devices do.  To perform a new action, add a row to `_performers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import platform
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wire.addresses import parse_address, shown
from wire.errors import (
    LOG_LINES_MAX,
    ConnectFailed,
    MeshError,
    NotTrusted,
    ProtocolError,
    StaleGeneration,
    from_fields,
)
from wire.ir.dtypes import dtype_named
from wire.link.identity import identity_here
from wire.link.keepalive import LinkWatch, StepKeepalive
from wire.link.link import Link
from wire.link.membership import Membership
from wire.link.reconnect import stay_linked
from wire.protocol.messages import (
    Ballast,
    Beat,
    BlobStream,
    CancelStep,
    Combine,
    Deploy,
    DeviceReport,
    Devices,
    Done,
    Drop,
    Explain,
    FetchBlob,
    GaveUp,
    Join,
    Joined,
    Landed,
    Leaving,
    Letter,
    LettersRead,
    LogLines,
    Meet,
    Message,
    Pause,
    Paused,
    Probe,
    Push,
    Relay,
    Revocations,
    Run,
    Snapshot,
    Suspected,
    TailLog,
    Value,
)
from wire.protocol.peer import Identity
from wire.system.log_ring import start_logging
from wire.system.malloc import hold_buffers
from wire.system.open_file_limit import allow_open_files
from wire.system.shared_memory import SharedDir, remove
from wire.system.signals import watch_signals
from wire.system.tasks import Tasks, as_error
from wire.timeouts import SILENT
from wire.transfer.content_exchange import BlobExchange

from ..config import WorkerConfig
from ..devices.registry import selections
from ..engine import host_messages as hm
from ..state import events as ev
from ..state.action_failures import doing, failure_of
from ..state.bounds import Bounds
from ..state.worker_state import WorkerState
from . import state_folder as state_folder
from .blob_fetcher import BlobFetcher, RemoteBlobs
from .blob_store import BlobStore
from .collective_bridge import Bridge
from .collective_rendezvous import host_connections_of
from .device_reports import devices_text, explained_of, memory_bytes_of, ready_fields, without_ops
from .engine_hosts import EngineHosts
from .environment import REAL, EngineHost, Environment
from .idle_tuner import IdleTuner
from .mdns_announcer import advertise
from .no_peer_warning import text_without_coordinator, warn_without_coordinator
from .parent_watch import watch_parent
from .parity_builder import ParityBuilder
from .pause_file import FINISHING, PAUSED, SERVING, PauseFiles, PauseWatch
from .snapshot_writer import SnapshotWriter
from .system_sleep import SleepWatch
from .tensor_refs import host_inputs_of, is_here, made_of, tensor_of
from .tensor_sender import TensorSender
from .worker_links import WorkerLinks

if TYPE_CHECKING:
    from wire.discovery.mdns import Announcer

log = logging.getLogger("graph_mesh.worker")
LEAVING_LOG_LINES = 64
OWNER_ANSWER_S = 86_400.0  # one that was stopped answers when it goes on; its link ends before, or the machine decides
MEMBERSHIP_LOOK_S = 1.0
MEMORY_LOOK_S = 1.0  # while something is kept for a coordinator that is silent
LAST_WORDS_S = 1.0  # a machine waits up to 5 s before it sleeps
AGAIN = -1  # instead of an exit code: start once more in the same process
LATE_S_MIN = 0.05  # a tick later than this counts as a delay of our own


async def run_worker(config: WorkerConfig, environment: Environment = REAL) -> int:
    """Serve until told to stop; the exit code: 0 drained, 3 no device is left.  MeshError if it cannot start."""
    ring = start_logging(config.verbosity, config.log_json)
    allow_open_files()
    hold_buffers()
    try:
        while True:
            async with contextlib.AsyncExitStack() as stack:
                code = await Daemon(config, ring.lines, stack, environment).run()
            if code != AGAIN:
                return code
    finally:
        ring.close()


class Daemon:
    """One worker process.  The methods `on_...` are the Endpoint's Handler."""

    def __init__(
        self,
        config: WorkerConfig,
        log_lines: deque[str],
        stack: contextlib.AsyncExitStack,
        environment: Environment = REAL,
    ) -> None:
        self._config = config
        self._log_lines = log_lines
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._folder = state_folder.claim(config.state_base, config.wanted_name)
        stack.callback(self._folder.lock.release)
        self._shared = SharedDir.create()
        stack.callback(self._shared.close)
        cache = config.cache_folder(self._folder.name)
        self._store = BlobStore(
            cache / "blobs", self._shared.path / "blobs", config.cache_bytes_max, config.blob_memory_bytes
        )
        self._kernel_dir = config.kernel_folder
        self._exchange = BlobExchange(self._shared, self._store.view)
        credentials = environment.credentials(self._folder.path, self._folder.name)
        times = config.timeouts
        self._membership = Membership(credentials, self._folder.path, times) if credentials else None
        if not config.host:
            self._config = config = replace(config, host="::" if credentials else "127.0.0.1")
        node_id = credentials.node_id if credentials else self._folder.node_id
        shared = self._shared if config.share_memory else None
        self._identity = identity_here("worker", config.mesh_name, self._folder.name, shared, node_id)
        self._endpoint = environment.endpoint(self._identity, self, credentials, config)
        self._step_keepalive = StepKeepalive(self._endpoint)
        self._patience_s = config.timeouts.worker_link_s
        self._worker_links = WorkerLinks(self._endpoint, self._shared, self._owner_id, self._check_stream)
        self.pauses = PauseWatch(PauseFiles(self._folder.path), self._feed, self._duty)
        remote = RemoteBlobs(self._endpoint, self._exchange, self._owner_id, self._worker_links.linked)
        self._fetcher = BlobFetcher(self._identity.node_id, self._store, remote, self._feed)
        connections = host_connections_of(config, credentials, self._tell_host) if environment.signals else None
        self._bridge = Bridge(self._endpoint.links, self._shared, connections, config.timeouts)
        self._sender = TensorSender(self._endpoint, self._worker_links.relay, self._feed)
        self._snapshots = SnapshotWriter(self._store, str(self._shared.path), self._tell_host, self._feed)
        self._parity = ParityBuilder(self._store, remote, self._owner_id)
        stack.push_async_callback(self._close)
        self._engine_hosts = EngineHosts(
            config, environment, self._folder.name, self._shared, self._kernel_dir, self._host_said, self._host_lost,
            self._host_back,
        )  # fmt: skip
        self._hosts = self._engine_hosts.hosts
        self._tasks = Tasks()
        self._tuner = IdleTuner(config, self._tasks, self._has_work)
        self._reports: tuple[DeviceReport, ...] = ()
        self._state: WorkerState | None = None
        self._ready = asyncio.Event()
        self._stopped: asyncio.Future[int] = self._loop.create_future()
        self._inbox: deque[ev.Event] = deque()
        self._handling = False
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._next_request = 1
        self._seeking: asyncio.Task[None] | None = None  # for the coordinator whose link ended
        self._watch: LinkWatch | None = None
        self._announcer: Announcer | None = None
        self._failures: dict[str, str] = {}  # why an address was not reached when it was last dialled
        self._coordinator: Identity | None = None  # whose worker this is, or was last
        self._arriving: dict[int, str] = {}  # id of a stream's buffer -> name of its file
        self._written: dict[int, list[str]] = {}  # by device: inputs in files for the part it was given last
        self._ticker: asyncio.TimerHandle | None = None
        self._beater: asyncio.TimerHandle | None = None
        self._beats = 0
        self._lag_s = 0.0
        self._performers = self._performers_by_action()

    def _performers_by_action(self) -> dict[type, Callable[[Any], object]]:
        """The method that performs each action of the machine."""
        return {
            ev.Reply: self._reply,
            ev.Refuse: self._refuse,
            ev.ReplyRan: self._reply_ran,
            ev.ReplyJoined: self._reply_joined,
            ev.StartBeats: self._start_beats,
            ev.StopBeats: self._stop_beats,
            ev.SendBeat: self._send_beat,
            ev.AskOwner: lambda action: self._begin(action, self._ask_owner(action)),
            ev.CloseLink: self._close_link,
            ev.LinkTo: self._link_to,
            ev.Fetch: self._fetcher.begin,
            ev.AbandonFetch: self._fetcher.abandon,
            ev.PinBlobs: lambda action: self._store.pin(action.blobs),
            ev.DiscardBlobs: lambda action: self._store.discard(action.blobs),
            ev.UnpinBlobs: lambda action: self._store.unpin(action.blobs),
            ev.FreeCache: self._free_cache,
            ev.Prepare: self._prepare,
            ev.Unprepare: self._unprepare,
            ev.Execute: self._execute,
            ev.ExplainPart: self._explain,
            ev.Unbind: self._unbind,
            ev.MakeBlob: self._snapshots.begin,
            ev.StopRun: lambda action: self._hosts[action.device].stop_run(action.run),
            ev.Release: self._release,
            ev.SendPush: self._sender.push,
            ev.StopPush: self._sender.stop_push,
            ev.SendBegan: self._send_began,
            ev.StartHost: lambda action: self._begin(action, self._engine_hosts.restart(action.device)),
            ev.GiveUpDevice: self._give_up_device,
            ev.SendLeaving: self._send_leaving,
            ev.SendPaused: lambda action: self._notify(action.node, Paused(action.by)),
            ev.KeepPause: lambda action: self.pauses.keep(action.by),
            ev.LookForOwner: self._look_for_owner,
            ev.Stop: self._stop,
        }

    async def run(self) -> int:
        """Start, serve, and return the exit code."""
        for peer in self._config.peers:
            parse_address(peer)  # a wrong one must be known now
        if self._environment.signals:
            watch_signals(self._loop, self.leave)
        await self._engine_hosts.start(selections(self._config.devices))
        port = await self._endpoint.listen(self._config.host, self._config.port, self._config.last_port)
        self._reports = await self._engine_hosts.opened()
        memory_bytes = self._config.memory_bytes or memory_bytes_of(self._reports)
        times = self._config.timeouts
        bounds = Bounds(
            memory_bytes=memory_bytes,
            keep_orphans_s=times.keep_orphans_s,
            lost_link_grace_s=times.lost_link_grace_s,
        )
        own = self._identity
        self._state = self._environment.machine(own.node_id, len(self._hosts), own.incarnation, bounds)
        self.pauses.look()
        self._ready.set()
        self._watch = self._environment.watch(self._endpoint, self._config, port)
        self._watch.needed = self._state.needed
        self._announce(port)
        self._watch.woke.append(lambda: self.wake(announced=False))
        config, keep = self._config, self._tasks.keep
        keep("the watch over links", self._watch.run)
        if self._environment.signals:
            keep("looking for pauses", self.pauses.run)
            keep("looking for idle moments", self._tuner.run)
            if not config.exit_with_stdin:  # else whom it would tell sleeps at the same time
                keep("listening for sleep", lambda: SleepWatch(self._fall_asleep, self.wake).run())
        keep("looking at the machine's memory", self._look_at_memory)
        for peer in config.peers:
            self._stay_linked((peer,))
        if not config.exit_with_stdin:
            warning_s = config.timeouts.no_coordinator_warning_s
            keep("waiting for a coordinator", lambda: warn_without_coordinator(warning_s, self._owner_id, self._advice))
        if self._membership is None and not config.exit_with_stdin:
            keep("looking for a membership", self._look_for_membership)
        if self._membership:
            keep("keeping the certificate", self._membership.keep)
            if self._membership.coordinator and not config.peers:
                self._seeking = self._stay_linked(self._membership.coordinator)
        if config.discoverable:
            told = self._membership, config, self._stopped, self._announced
            keep("announcing this worker", lambda: advertise(self._endpoint, port, *told))
        await watch_parent(self._loop, self._config, self.leave)
        return await self._stopped

    # -- start and end

    def _announce(self, port: int) -> None:
        address = next(iter(self._endpoint.identity.addresses), f"{shown(self._config.host)}:{port}")
        log.info("mesh-worker %s ready on %s with %s", self._folder.name, address, devices_text(self._reports))
        if self._config.announce_json:
            fields = ready_fields(self._identity, address, port, os.getpid(), self._reports)
            print(json.dumps(fields), flush=True)

    def _owner_id(self) -> str:
        owner = self._state.owner if self._state else None
        return owner.node if owner else ""

    @property
    def queue_depth(self) -> int:
        """Parts that are ready or running."""
        return self._state.queue_depth if self._state is not None else 0

    def _has_work(self) -> bool:
        """Whether there is work, or it is not known yet, or there is to be none."""
        state = self._state
        return state is None or bool(state.paused or state.queue_depth or state.working(self._loop.time()))

    def _duty(self) -> str:
        state = self._state
        if state is None or not state.paused:
            return SERVING
        return FINISHING if state.queue_depth else PAUSED

    def leave(self, reason: str) -> None:
        """Hand unfinished work back and end, as on SIGTERM."""
        if self._state is not None:
            self._feed(ev.DrainAsked(reason))
        elif not self._stopped.done():
            self._stopped.set_result(0)

    def sleep(self) -> None:
        """The machine is about to sleep: hand the work back, and be nobody's until `wake`."""
        self._feed(ev.SleepAsked())

    def _fall_asleep(self) -> Awaitable[None]:
        """Go to sleep.  The result is to be awaited: the coordinator has been told then."""
        link = self._endpoint.links.get(self._owner_id())
        self.sleep()
        return self._last_words(link)

    async def _last_words(self, link: Link | None) -> None:
        """Wait until the coordinator ends the link, as it does once it is told that this worker leaves."""
        if link is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(link.wait_closed(), LAST_WORDS_S)

    def wake(self, announced: bool = True) -> None:
        """The machine is awake, or seems to have been away: find the coordinator at once."""
        if self._membership:
            self._membership.woke()
        self._feed(ev.Woke(announced))

    async def _close(self) -> None:
        """Let the last messages out, end the children, release what is ours; nothing is decided any more."""
        self._state = None
        self._tasks.cancel()
        self._fetcher.close()
        self._sender.close()
        self._bridge.close()
        self._snapshots.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._endpoint.close(), self._config.timeouts.worker_drain_s)
        for host in self._hosts:
            host.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(host.exited.wait() for host in self._hosts)), 0.5)

    # -- the machine

    def _feed(self, event: ev.Event) -> None:
        """Handle an event and perform what follows; events raised on the way are handled after it."""
        state = self._state
        if state is None:
            return  # nothing is known yet that could be affected
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox:
                event = self._inbox.popleft()
                log.debug("%s", event)
                for action in state.handle(event, self._loop.time()):
                    self._perform(action)
        finally:
            self._handling = False
        self._arm_ticker(state)

    def _perform(self, action: ev.Action) -> None:
        try:
            self._performers[type(action)](action)
        except Exception as fault:
            self._failed(action, as_error(f"{doing(action)} failed", fault))

    def _failed(self, action: ev.Action, error: MeshError) -> None:
        """Tell whoever waits for an action's answer that it failed."""
        if isinstance(action, ev.Reply | ev.ReplyRan | ev.ReplyJoined):
            self._refuse(ev.Refuse(action.request, error))
        elif (event := failure_of(action, error)) is not None:
            self._feed(event)
        else:
            log.warning("%s", error)

    def _begin(self, action: ev.Action, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.run(doing(action), work, lambda error: self._failed(action, error))

    def _arm_ticker(self, state: WorkerState) -> None:
        deadline = state.next_deadline()
        if self._ticker is not None:
            if deadline is None or self._ticker.when() <= deadline:
                return
            self._ticker.cancel()
        if deadline is not None:
            self._ticker = self._loop.call_at(deadline, self._tick, deadline)

    def _tick(self, asked: float) -> None:
        self._ticker = None
        late_s = self._loop.time() - asked
        self._feed(ev.Tick(late_s if late_s > LATE_S_MIN else 0.0))

    async def _ask(self, make_event: Callable[[int], ev.Event]) -> Message:
        """Put a request to the machine and wait for its answer."""
        request = self._next_request
        self._next_request += 1
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._answers[request] = answer
        try:
            self._feed(make_event(request))
            return await answer
        except asyncio.CancelledError:
            if self._answers.pop(request, None):
                self._feed(ev.RequestGone(request))
            raise

    # -- links: the Handler

    async def on_request(self, link: Link, body: Message) -> Message:
        await self._ready.wait()
        node = link.peer.node_id
        self._feed(ev.Heard(node))
        match body:
            case Run():
                here = (feed for feed in body.feeds if is_here(feed.value))
                feeds = tuple((feed.part, feed.slot, tensor_of(link, feed.value)) for feed in here)
                step = body.step, feeds, body.committed
                return await self._ask(lambda request: ev.RunAsked(node, request, body.plan, *step))
            case Deploy():
                return await self._ask(lambda request: ev.DeployAsked(node, request, body))
            case Explain():
                return await self._ask(lambda request: ev.ExplainAsked(node, request, body))
            case Relay():
                arrived = self._worker_links.take(node, body)
                if arrived is not None:
                    self._feed(arrived)
                return Done()
            case Drop():
                self._worker_links.forget(body.plan)
                return await self._ask(lambda request: ev.DropAsked(node, request, body.plan, body.free))
            case Snapshot(plan, number):
                return await self._ask(lambda request: ev.SnapshotAsked(node, request, plan, number))
            case Combine():
                return await self._parity.answer(node, body)
            case Join():
                return await self._join(link, body)
            case Pause(on):
                return await self._ask(lambda request: ev.PauseAsked(node, request, on))
            case FetchBlob():
                await self._store.find(body.blob)
                return await self._exchange.serve(link, body)
            case Probe():
                return await self._worker_links.probe(node, body)
            case TailLog(lines):
                return LogLines(tuple(self._log_lines)[-lines:] if lines else ())
        raise ProtocolError(f"a worker does not answer {type(body).__name__}")

    async def _join(self, link: Link, body: Join) -> Message:
        peer, held = link.peer, self._store.held()
        if peer.role != "coordinator":
            raise NotTrusted(f"{peer.name} is a {peer.role}: a worker works for coordinators only")
        joined = await self._ask(
            lambda request: ev.JoinAsked(
                peer.node_id, request, peer.name, body.epoch, body.beat_s, body.silence_s, held, body.kept, body.earlier
            )
        )
        self._coordinator = peer
        if self._watch is not None:
            self._watch.answer_s = max(self._config.timeouts.keepalive_answer_s, 1.5 * body.silence_s)
        self._patience_s = max(self._config.timeouts.worker_link_s, body.silence_s)
        if self._membership:
            self._membership.met(peer.addresses or ((link.address,) if link.address else ()))
        if self._seeking is not None:
            self._seeking.cancel()
            self._seeking = None
        return joined

    def on_notify(self, link: Link, body: Message) -> None:
        node = link.peer.node_id
        match body:
            case Push():
                self._feed(ev.Heard(node))
                tensor = tensor_of(link, body.value)
                self._feed(ev.TensorArrived(node, body.plan, body.step, body.part, body.slot, tensor))
            case Revocations(data, authority, former, theirs):
                if self._membership and link.peer.role == "coordinator":
                    self._membership.trust(self._endpoint, data, authority, (former, theirs))
            case CancelStep():
                self._worker_links.forget(body.plan, body.step)
                self._feed(ev.CancelAsked(node, body.plan, body.step))
            case Letter() | LettersRead() | GaveUp() | Meet():
                self._bridge.take(link, body)
            case Landed():
                self._worker_links.meter.landed(link, body)
            case Suspected():
                self._feed(ev.SuspectedBy(node, body.incarnation))
            case _:
                self._feed(ev.Heard(node))

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        match header:
            case BlobStream():
                return self._exchange.open_stream(header, size_bytes)
            case Letter():
                return self._bridge.open_stream(link, header, size_bytes)
            case Ballast():
                return self._worker_links.meter.open_stream(size_bytes)
            case Push(plan, step, _, _, value):
                self._check_stream(plan, value, size_bytes)
                try:
                    segment = self._shared.allocate(size_bytes)
                except Exception as fault:
                    self._feed(ev.TensorLost(plan, step, as_error("taking a tensor failed", fault)))
                    raise
                self._arriving[id(segment.buffer)] = segment.name
                return segment.buffer
        raise ProtocolError(f"a worker takes no stream of {type(header).__name__}")

    def _check_stream(self, plan: Any, value: Value, size_bytes: int) -> None:
        owner = self._state.owner if self._state else None
        if owner is None or plan.epoch != owner.epoch:
            raise StaleGeneration("this stream belongs to no plan of this worker")
        if math.prod(value.shape) * dtype_named(value.dtype).itemsize != size_bytes:
            raise ProtocolError(f"a stream of {size_bytes} bytes for a tensor {value.dtype}{list(value.shape)}")

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        match header:
            case BlobStream():
                self._exchange.stream_done(header, buffer, error)
            case Letter():
                self._bridge.stream_done(header, error)
            case Ballast():
                self._worker_links.meter.stream_done(link, header, error)
            case Push(plan, step, part, slot, value):
                name = self._arriving.pop(id(buffer))
                tensor = ev.SharedFile(value.dtype, value.shape, str(self._shared.path), name)
                if error is not None:
                    self._release(ev.Release(tensor))
                else:
                    self._feed(ev.TensorArrived(link.peer.node_id, plan, step, part, slot, tensor))

    def on_linked(self, link: Link) -> None:
        log.info("linked to %s %s", link.peer.role, link.peer.name)
        self._bridge.linked(link.peer.node_id)
        self._feed(ev.NodeLinked(link.peer.node_id))

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        log.info("link to %s %s ended%s", link.peer.role, link.peer.name, f": {error}" if error else "")
        silent, goodbye = error is not None and error.cause == SILENT, error is None
        self._feed(ev.NodeUnlinked(link.peer.node_id, silent, goodbye))
        if self._state is None or self._seeking is not None:
            return  # it ends, or seeks already
        owner = self._coordinator
        if owner is not None and owner.node_id == link.peer.node_id and owner.addresses:
            self._seeking = self._stay_linked(owner.addresses)

    async def _look_at_memory(self) -> None:
        """What is kept for a coordinator that is silent is not to cost other programs theirs."""
        while (memory := self._environment.memory) is not None:
            await asyncio.sleep(MEMORY_LOOK_S)
            if self._owner_id() and self._state is not None and not self._state.served:
                self._feed(memory())

    def _free_cache(self, action: ev.FreeCache) -> None:
        log.warning("%s", action.why)
        self._store.free_memory()
        for host in self._hosts:
            host.send(hm.FreeUnused())

    def _stay_linked(self, addresses: Sequence[str]) -> asyncio.Task[None]:
        def failed(error: MeshError) -> None:
            self._failures[addresses[0]] = str(error)

        return self._tasks.keep("staying linked", lambda: stay_linked(self._endpoint, lambda: addresses, failed=failed))

    def _look_for_owner(self, _action: ev.LookForOwner) -> None:
        """Dial the coordinator of before at once, whatever wait the attempts so far have come to."""
        before = self._membership.coordinator if self._membership else ()
        known = self._coordinator.addresses if self._coordinator else before
        if known:
            if self._seeking is not None:
                self._seeking.cancel()
            self._seeking = self._stay_linked(known)

    def _advice(self, waited_s: float) -> str:
        tallies = self._announcer.tallies if self._announcer else ()
        failures = {peer: self._failures[peer] for peer in self._config.peers if peer in self._failures}
        return text_without_coordinator(waited_s, self._endpoint.identity.addresses, tallies, failures)

    async def _look_for_membership(self) -> None:
        """A worker that started before its mesh had an authority starts again once it is let in, if nobody needs it."""
        find = self._environment.credentials
        while self._state is None or self._state.served or not find(self._folder.path, self._folder.name):
            await asyncio.sleep(MEMBERSHIP_LOOK_S)
        log.info("this worker is a member of mesh %s now, and starts again as one", self._config.mesh_name)
        if not self._stopped.done():
            self._stopped.set_result(AGAIN)

    def _announced(self, announcer: Announcer) -> None:
        self._announcer = announcer

    # -- actions: answers

    def _reply(self, action: ev.Reply) -> None:
        self._answer(action.request, action.message)

    def _answer(self, request: int, message: Message) -> None:
        answer = self._answers.pop(request, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _refuse(self, action: ev.Refuse) -> None:
        answer = self._answers.pop(action.request, None)
        if answer is not None and not answer.done():
            action.error.node = action.error.node or self._folder.name
            answer.set_exception(action.error)

    def _reply_joined(self, action: ev.ReplyJoined) -> None:
        budget = self._config.memory_bytes or memory_bytes_of(self._reports)
        here = self._reports, budget, action.blobs, platform.system()
        self._answer(action.request, Joined(*here, action.paused, action.kept, self._engine_hosts.without_gpu))

    def _reply_ran(self, action: ev.ReplyRan) -> None:
        self._answer(action.request, self._sender.answer_run(action))

    # -- actions: heartbeats and links

    def _start_beats(self, action: ev.StartBeats) -> None:
        self._stop_beats(None)
        self._beat(action, self._loop.time())

    def _stop_beats(self, _action: Any) -> None:
        self._worker_links.forget()
        if self._beater is not None:
            self._beater.cancel()
            self._beater = None

    def _beat(self, action: ev.StartBeats, due_s: float) -> None:
        now = self._loop.time()
        self._lag_s = max(0.0, now - due_s)
        self._send_beat(None)
        if self._state is not None:
            self._step_keepalive.check(self._state.used())
        due_s = max(due_s + action.beat_s, now)
        self._beater = self._loop.call_at(due_s, self._beat, action, due_s)

    def _send_beat(self, _action: Any) -> None:
        state = self._state
        if state is None or state.owner is None or not state.served:
            return
        self._beats += 1
        self._notify(
            state.owner.node,
            Beat(state.incarnation, self._beats, self._lag_s, state.queue_depth, state.working(self._loop.time())),
        )

    def _notify(self, node: str, message: Message) -> None:
        link = self._endpoint.links.get(node)
        if link is not None and not link.closed:
            link.notify(message)

    async def _ask_owner(self, action: ev.AskOwner) -> None:
        link = self._endpoint.links.get(action.node)
        if link is None:
            return
        with contextlib.suppress(MeshError):  # the machine notices the silence
            await link.ping(OWNER_ANSWER_S)
            self._feed(ev.Heard(action.node))

    def _send_began(self, action: ev.SendBegan) -> None:
        self._notify(action.node, action.began)

    def _close_link(self, action: ev.CloseLink) -> None:
        link = self._endpoint.links.get(action.node)
        if link is not None:
            link.close(action.reason)

    def _link_to(self, action: ev.LinkTo) -> None:
        link = self._endpoint.links.get(action.node)
        if link is not None and self._loop.time() - link.heard_s < self._config.timeouts.keepalive_idle_s:
            self._feed(ev.NodeLinked(action.node))
        else:
            self._begin(action, self._dial(action))

    async def _dial(self, action: ev.LinkTo) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._worker_links.linked(action.node, action.addresses)
        except TimeoutError:
            raise ConnectFailed(f"no link within {self._patience_s:g} s", node=action.node) from None
        self._feed(ev.NodeLinked(action.node))

    # -- actions: engine hosts

    def _prepare(self, action: ev.Prepare) -> None:
        self._tuner.give_way()
        paths = {blob: self._store.path(blob) for blob in action.blobs}
        gang = self._bridge.prepare(action.prepared, *action.gang) if action.gang else None
        params = tuple(hm.BoundParam(position, blob, paths[blob]) for position, blob in action.params)
        counts = action.inputs, action.outputs
        what = action.prepared, action.graph, action.encoded
        kept, send = action.kept_bytes, self._hosts[action.device].send
        send(hm.PreparePart(*what, *counts, params, paths, action.force, gang, kept))

    def _unprepare(self, action: ev.Unprepare) -> None:
        self._bridge.unprepare(action.prepared)
        self._hosts[action.device].send(hm.Unprepare(action.prepared))

    def _execute(self, action: ev.Execute) -> None:
        self._tuner.give_way()
        wanted = tuple(hm.OutputRequest(wish.keep, wish.copies) for wish in action.outputs)
        try:
            gang = action.step + 1, self._bridge.directories(action.prepared)
            inputs, self._written[action.device] = host_inputs_of(action.inputs, self._shared)
        except Exception:
            for use in action.inputs:
                if use.last:
                    self._release(ev.Release(use.tensor))
            raise
        self._hosts[action.device].send(hm.ExecutePart(action.run, action.prepared, inputs, wanted, *gang))

    def _explain(self, action: ev.ExplainPart) -> None:
        self._tuner.give_way()
        self._tell_host(action.device, hm.ExplainPart(action.run, action.prepared, action.texts, action.kernel))

    def _tell_host(self, device: int, message: hm.ToHost) -> None:
        self._hosts[device].send(message)

    def _unbind(self, action: ev.Unbind) -> None:
        self._tell_host(action.device, hm.Unbind(action.prepared, tuple(sorted(action.positions))))

    def _release(self, action: ev.Release) -> None:
        match action.tensor:
            case ev.SharedFile(_, _, directory, name):
                remove(directory, name)
            case ev.DeviceTensor(_, _, device, tensor):
                self._hosts[device].send(hm.Forget((tensor,)))

    def _host_said(self, host: EngineHost, message: hm.FromHost) -> None:
        device = host.device
        match message:
            case hm.BuffersChanged() | hm.Listening() | hm.Disconnected():
                self._bridge.host_said(device, message)
            case hm.Executed(run, compute_s, outputs):
                made = tuple(made_of(output, device, str(self._shared.path)) for output in outputs)
                costs = message.exchange_s, message.readback_s, message.encode_s
                sizes = message.sent_bytes, message.uploaded_bytes, message.readback_bytes
                self._feed(ev.PartExecuted(run, made, compute_s, *costs, *sizes))
            case hm.ExecuteFailed(run, error):
                self._feed(ev.ExecuteFailed(run, from_fields(error)))
            case hm.Explained(run):
                self._feed(ev.PartExplained(run, explained_of(message, self._reports[device])))
            case hm.Exported():
                self._snapshots.exported(device, message)
            case hm.Prepared(prepared, compile_s, from_cache, working_bytes, untuned):
                self._tuner.met(host.selection, self._reports[device], untuned)
                self._feed(ev.PartPrepared(prepared, compile_s, from_cache, working_bytes))
            case hm.PrepareFailed(prepared, error):
                self._feed(ev.PrepareFailed(prepared, from_fields(error)))

    def _host_lost(self, host: EngineHost, error: MeshError) -> None:
        log.error("device %d: %s", host.device, error)
        error.log_lines = tuple(self._log_lines)[-LOG_LINES_MAX:]
        self._snapshots.lost(host.device, error)
        for name in self._written.pop(host.device, ()):
            remove(self._shared.path, name)
        self._feed(ev.HostLost(host.device, error))

    def _host_back(self, device: int) -> None:
        self._feed(ev.HostReady(device))

    def _give_up_device(self, action: ev.GiveUpDevice) -> None:
        log.error("device %d %s", action.device, action.reason)
        self._reports = tuple(
            without_ops(report) if report.index == action.device else report for report in self._reports
        )
        self._notify(action.node, Devices(self._reports, f"device {action.device} {action.reason}"[:4096]))

    # -- actions: the end

    def _send_leaving(self, action: ev.SendLeaving) -> None:
        lines = tuple(self._log_lines)[-LEAVING_LOG_LINES:] if action.failed else ()
        self._notify(action.node, Leaving(action.reason[:4096], lines))

    def _stop(self, action: ev.Stop) -> None:
        log.info("leaving: %s", action.reason)
        if not self._stopped.done():
            self._stopped.set_result(action.code)


__all__ = ["WorkerConfig", "run_worker"]
