"""Coordinator: the shell that performs what `calls/state.py` and `workers/failure_detector.py` decide, over links.

It owns the links to workers, the tensors this process holds for them, and the clock.  It decides nothing about plans,
calls or deaths.  One object serves both the embedded coordinator (`Mesh.builder()`) and the daemon (`mesh-coord
serve`); everything runs on one event loop, except planning, hashing and copies over 1 MiB, which run in threads so that
heartbeats are read on time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.addresses import shown
from wire.errors import LOG_LINES_MAX, Cancelled, MeshError, NodeLost, ProtocolError
from wire.ir.graph import WireGraph
from wire.link.endpoint import Endpoint as AnyEndpoint
from wire.link.identity import member_id
from wire.link.keepalive import LinkWatch
from wire.link.link import Handler, Link
from wire.link.reconnect import stay_linked
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import (
    Beat,
    Began,
    CancelStep,
    Devices,
    Explained,
    ExplainGraph,
    FetchBlob,
    Join,
    Joined,
    Landed,
    Leaving,
    Message,
    NodeReport,
    PairReport,
    Pause,
    Paused,
    PlanKey,
    Push,
    Relay,
    Revocations,
    Run,
    Suspected,
    Working,
    with_fields,
)
from wire.protocol.peer import Identity
from wire.protocol.versions import usable_ops
from wire.system.shared_memory import SharedDir
from wire.system.tasks import Tasks, as_error, unheard
from wire.transfer.content_exchange import BlobExchange
from wire.transfer.link_probe import Meter
from wire.units import counted

from .calls import events as ev
from .calls.action_failures import doing, failure_of
from .calls.error_context import disagreement, in_quarantine, lost_node, no_worker_left
from .calls.state import CoordinatorState
from .config import CoordinatorConfig
from .delivery.deployer import Deployer
from .delivery.explainer import Explainer
from .delivery.input_sender import run_step
from .delivery.output_receiver import OutputReceiver, tensor_of
from .delivery.param_slices import ParamSlices
from .delivery.relay import RelayServer
from .delivery.tensor_store import TensorStore
from .plan_service.plan_service import PlanService
from .plan_service.planner_client import PlannerClient, PlannerProcess
from .plan_service.straggler_mitigation import CoordinatorHooks, StragglerMitigation
from .plan_service.warm_up import WarmUp
from .plan_service.weight_redundancy import WeightRedundancy
from .planning import plan_messages
from .planning.audit.result_audit import TRUSTED, Auditor
from .planning.contingency import ContingencyPlans
from .planning.model.plan import Plan
from .planning.model.profiles import CLIENT, worker_profile
from .planning.model.program import Program, Sampled, Trial, program_of
from .planning.placement.sticky_placement import Homes
from .sessions.open_sessions import Sessions
from .sessions.session_context import SessionContext
from .workers import worker_names
from .workers.call_report import CallReport
from .workers.event_feed import EventFeed
from .workers.failure_detector import AskPeer, Cause, Decision, FailureDetector, Health, ProbeSelf, Transition
from .workers.indirect_probes import IndirectProber
from .workers.link_prober import LinkProber
from .workers.records import Call, Deployment, Member, work_by_plan
from .workers.straggler_detector import StragglerDetector

log = logging.getLogger("graph_mesh.coordinator")

DOUBTS_MAX = 4  # how often a call is computed again because workers disagree
READ_PASSES = 3  # passes of the loop until all that the sockets hold is read: it is polled, parsed and delivered


class Coordinator:
    """The coordinator runs programs on the workers that it is connected to.  It belongs to one event loop; `close` it.

    coordinator = Coordinator(CoordinatorConfig("home", "me"), identity)
    await coordinator.connect("127.0.0.1", 7100)
    outputs, report = await coordinator.call(program, {"x": array})
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        identity: Identity,
        shared: SharedDir | None,
        endpoint: Callable[[Identity, Handler], AnyEndpoint] = Endpoint,
        machine: Callable[[float], CoordinatorState] = CoordinatorState,
        answerer: PlannerClient | None = None,
    ) -> None:
        self.config = config
        self.identity = identity
        self.epoch = time.time_ns() // 1000  # grows across restarts, also on a machine whose monotonic clock restarts
        self.unlinked: list[Callable[[Link, MeshError | None], None]] = []  # told of every link that ends, and why
        self.last_words: Callable[[int], tuple[str, ...]] = lambda pid: ()  # the log of a lost worker that we started
        self.endpoint = endpoint(identity, self)
        self._shared, self._held = shared, TensorStore()
        self.hold, self.release, self._slices = self._held.hold, self._held.release, ParamSlices(self._held)
        self.blobs = BlobExchange(shared, self._slices.find)
        self._calls: dict[int, Call] = {}
        self._relay_server = RelayServer(self._link_to, self._calls, lambda: self.epoch)
        self.requests: dict[type, Callable[[Link, Any], Awaitable[Message]]] = {
            FetchBlob: self._slices.before(self.blobs.serve),
            Relay: self._relay_server.serve,
        }
        self._loop = asyncio.get_running_loop()
        self._detector = FailureDetector(config.health)
        self._state = machine(config.timeouts.worker_wait_s)
        self._stragglers, self._auditor = StragglerDetector(), Auditor(config.audit)
        self.quarantined: set[str] = set()  # node ids of workers that were wrong too often
        self._members: dict[str, Member] = {}
        self._known: dict[str, NodeReport] = {}  # the workers that joined, and those that are gone, for people
        self._deployments: dict[int, Deployment] = {}
        self._events = EventFeed(self._known, self._calls)
        self._publish, self.events, self.watchers = self._events.publish, self._events.events, self._events.watchers
        self._call_numbers, self._crowded = itertools.count(1), 0  # none up to the crowded one was alone to its end
        self._tasks = Tasks()
        self._wake, self._closing = asyncio.Event(), False
        self._revocations: Revocations | None = None  # the newest list, where the mesh has one
        self._joins: dict[Link, asyncio.Task[NodeReport]] = {}
        self._staying: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._meter = Meter()
        self._receiver = OutputReceiver(lambda: self.epoch, self.blobs, self._meter, self._output, self._output_lost)
        probe_s = config.timeouts.link_probe_s
        self.prober = LinkProber(identity.node_id, self._meter, self._link_to, self._profiles_changed, probe_s)
        self._deployer = Deployer(self._members, self.prober, self._slices, config.timeouts.collective_timeout_s)
        self._explainer = Explainer(self._deployer, self._held, self._spare_key, self._tasks)
        ahead = ContingencyPlans(config.plan_ahead_min if config.plan_ahead else None)
        rehearsed = self._spare_key, self._tasks, config.rehearsed_bytes_max
        self._rehearsing = WarmUp(ahead, self._members, self._deployer, *rehearsed)
        planner = answerer or PlannerProcess(config.timeouts.planner_idle_s)
        self._planning = PlanService(
            self._members, self._stragglers, self.prober, self._usable, ahead, planner, self._rehearsing.changed
        )
        keeping = self._spare_key, self._tasks, self._publish, self._planning
        self._guards = WeightRedundancy(self._members, self._deployer, self._usable, *keeping)
        self.sessions = Sessions(self._session_context())
        self._pacing = StragglerMitigation(
            config.follow_pace, self._stragglers, self._planning.calibration, self._lent()
        )
        self._perform: dict[type, Callable[[Any], object]] = {
            ev.MakePlan: self._make_plan,
            ev.SendDeploy: lambda action: self._begin(action, self._send_deploy(action)),
            ev.SendRun: self._start_run,
            ev.SendCancel: self._send_cancel,
            ev.SendDrop: self._send_drop,
            ev.ReportStalled: lambda action: self._publish("stalled", "", str(action.error), action.generation),
            ev.ForgetPlan: self._forget_plan,
            ev.Resolve: self._resolve,
            ev.Reject: self._reject,
        }
        opinions = IndirectProber(self._members, self._publish, self._probed, self._self_probed, self._tasks)
        self._judged: dict[type, Callable[[Any], object]] = {
            Transition: self._changed,
            AskPeer: opinions.ask_peer,
            ProbeSelf: opinions.probe_self,
        }
        self.notices: dict[type, Callable[[Link, Any], None]] = {
            Beat: self._on_beat,
            Began: self._on_began,
            Push: self._receiver.pushed,
            Leaving: self._on_leaving,
            Paused: self._on_paused,
            Devices: self._on_devices,
            Landed: self._meter.landed,
        }
        self.link_watch = LinkWatch(self.endpoint)
        self.link_watch.answer_s = max(config.timeouts.keepalive_answer_s, 2 * config.health.node_timeout_s)
        for task in (self.link_watch, self.prober, self._planning, self._rehearsing, self._pacing):
            self._tasks.keep(type(task).__name__, task.run)
        self._tasks.keep("watching the time", self._watch_time)

    # -- what callers use

    async def connect(self, host: str, port: int) -> NodeReport:
        """Join the worker at an address and stay joined: a lost link is dialled again until `close`.

        Raises ConnectFailed, VersionMismatch, WrongMesh or Busy if the first attempt fails.
        """
        return await self.adopt(await self.endpoint.dial(host, port), host, port)

    async def adopt(self, link: Link, host: str, port: int) -> NodeReport:
        """Join the worker at the other end of a link dialled at this address, and stay joined."""
        report = await self._joining(link)
        if (host, port) not in self._staying:
            stay = partial(self._stay_connected, f"{shown(host)}:{port}", link)
            self._staying[host, port] = self._tasks.keep("staying connected", stay)
        return report

    def forget(self, host: str, port: int) -> None:
        """Stop dialling an address; an open link is kept."""
        staying = self._staying.pop((host, port), None)
        if staying is not None:
            staying.cancel()

    def revoke(self, revocations: Revocations, node_ids: Collection[str]) -> None:
        """End the links of revoked nodes, and send the list to all others, now and when they connect."""
        self._revocations = revocations
        for link in list(self.endpoint.links.values()):
            if member_id(link.peer.node_id) in node_ids:
                log.warning("%s was revoked", link.peer.name)
                link.close("this node was revoked")
            else:
                link.notify(revocations)

    def nodes(self) -> list[NodeReport]:
        """Every worker that joined since the start, with its present state, by name."""
        reports = []
        for node_id, report in self._known.items():
            health = self._detector.health(node_id)
            paused = node_id in self._members and bool(self._members[node_id].paused)
            present = worker_names.state_of(health, paused, node_id in self._state.stuck, node_id in self.quarantined)
            heard_s = self._detector.heard_s(node_id)
            silent_s = 0.0 if heard_s is None else self._now() - heard_s
            reports.append(with_fields(report, state=present, silent_s=silent_s))
        return sorted(reports, key=lambda report: report.name)

    def pairs(self) -> list[PairReport]:
        """The reports on the links between the connected workers and this process, by names."""
        names = {node: member.profile.name for node, member in self._members.items()} | {CLIENT: self.identity.name}
        return self.prober.reports(names)

    async def plan(self, graph: WireGraph, strategy: str = "auto", copies: str = "checkpoint") -> Plan:
        """The plan that a call would use now; nothing is sent.  PlacementError if there is none."""
        if not self._members:
            raise NodeLost("no worker is connected, so there is nothing to plan for", next_step="Start mesh-worker")
        if worker_names.all_paused(self._members.values()):
            raise no_worker_left(0.0, len(self._members), None)
        firm = self._guards.is_new(graph, strategy, copies)
        return await self._planning.plan(graph, strategy, self._state.nodes, copies, firm)

    async def preview(self, graph: WireGraph, strategy: str = "auto", *more: str) -> dict[str, Any]:
        """The plan as plain data (`Planning.described`); `more`: the copies of params, and the worker that dies."""
        return await self._planning.described(await self.plan(graph, strategy, *more[:1]), graph, strategy, *more)

    async def explain(self, graph: WireGraph, question: ExplainGraph) -> Explained:
        """Ask a worker for the kernels that it compiles a graph to, measured there with random inputs.

        InputError if there is no such worker or device, or a constant of the graph is not here.  Cancelling the task
        ends it on the worker.
        """
        if question.worker:
            member = worker_names.member_called(self._members, question.worker)
        else:
            parts = (await self.plan(graph, "single")).parts  # none where nothing is computed
            member = self._members[parts[0].node if parts else min(self._usable())]
        return await self._explainer.explain(member, graph, question)

    async def pause(self, name: str, on: bool) -> None:
        """Pause a worker, or end its pause; InputError if there is no such worker, Busy if its own machine paused it.

        `name` is its name, its id or the first characters of that.
        """
        answer_s = self.config.timeouts.pause_answer_s
        await worker_names.member_called(self._members, name).link.request(Pause(on), timeout_s=answer_s)

    def submit(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        patient: bool = False,
        trial: Trial | None = None,
    ) -> tuple[int, asyncio.Future[list[NDArray[Any]]], CallReport]:
        """Start a call: its number, a future of the outputs (C-contiguous arrays in graph order) and its report.

        `inputs` are C-contiguous arrays of exactly the graph's types, by name.  A patient call waits for a worker as
        long as it takes.
        """
        number = next(self._call_numbers)
        now = self._now()
        report = CallReport()
        future: asyncio.Future[list[NDArray[Any]]] = self._loop.create_future()
        self._crowded = number if self._calls else self._crowded
        self._calls[number] = Call(program, inputs, future, report, now, alone=not self._calls and trial is None)
        variant = self._auditor.pick(self._parts_of(program)) if self.config.audit and trial is None else None
        job = trial or (program if variant is None else Sampled(program, variant))
        others = frozenset(self._members) - {trial.node} if trial else frozenset[str]()
        self._feed(ev.CallSubmitted(number, job, others, patient))
        self._report_waiting()
        return number, future, report

    def forget_program(self, program: Program) -> None:
        """Drop the plans of a program that is not called any more, and the weights that no other program uses."""
        self._guards.forget(program)
        self._feed(ev.JobForgotten(program))

    async def call(
        self, program: Program, inputs: Mapping[str, NDArray[Any]], patient: bool = False
    ) -> tuple[list[NDArray[Any]], CallReport]:
        """Evaluate a program; cancelling the awaiting task cancels the call on the workers."""
        number, future, report = self.submit(program, inputs, patient)
        try:
            return await future, report
        except asyncio.CancelledError:
            self.cancel(number)
            raise

    @property
    def idle(self) -> bool:
        """Whether no call is in progress."""
        return self._state.idle

    @property
    def live(self) -> bool:
        """Whether any worker is connected."""
        return bool(self._members)

    @property
    def no_worker_reason(self) -> str:
        """Why no worker can be given work now, for people; "" if one can."""
        return worker_names.no_worker_reason(self._members.values(), self._state.nodes)

    def cancel(self, call: int) -> None:
        """Stop a call; its future gets Cancelled.  A finished call is left alone."""
        self._feed(ev.CallCancelled(call))

    async def close(self) -> None:
        """Drop every link and end every wait."""
        self._closing = True
        self.sessions.close()
        for call in list(self._calls):
            self.cancel(call)
        self._tasks.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.endpoint.close()
        if self._shared is not None:
            self._shared.close()

    # -- links (wire.link.websocket_carrier.Handler)

    def on_linked(self, link: Link) -> None:
        """A link is up, whichever side dialled; a worker then joins."""
        if self._revocations is not None and link.peer.role != "coordinator":  # one of those dialled by mistake
            link.notify(self._revocations)
        if link.peer.role == "worker" and not self._closing:
            self._joining(link)

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        if self._closing:
            return
        for told in self.unlinked:
            told(link, error)
        member = self._members.get(link.peer.node_id)
        if member is not None and member.link is link:
            self._judge(self._detector.lost(link.peer.node_id, self._now(), str(error or "connection closed")))

    async def on_request(self, link: Link, body: Message) -> Message:
        answer = self.requests.get(type(body))
        if answer is None:
            raise ProtocolError(f"this coordinator does not answer {type(body).__name__}")
        return await answer(link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        handler = self.notices.get(type(body))
        if handler is None:
            raise ProtocolError(f"a coordinator does not take {type(body).__name__}")
        handler(link, body)

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        return self._receiver.open_stream(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        self._receiver.stream_done(link, header, buffer, error)

    # -- joining and staying joined

    def _joining(self, link: Link) -> asyncio.Task[NodeReport]:
        task = self._joins.get(link)
        if task is None:
            task = self._joins[link] = self._tasks.run("joining a worker", self._join(link), unheard)
        return task

    async def _join(self, link: Link) -> NodeReport:
        health = self.config.health
        earlier = self.sessions.earlier
        mine = tuple(sorted(self._kept().difference(key.generation for key in earlier)))
        join = Join(self.epoch, health.beat_s, self.identity.node_id, health.lease_s, mine, earlier)
        try:
            joined = await link.request(join, timeout_s=self.config.timeouts.worker_join_s)
            if not isinstance(joined, Joined):
                raise ProtocolError(f"expected Joined, got {type(joined).__name__}", node=link.peer.name)
            peer, now = link.peer, self._now()
            name = worker_names.name_for(peer, self._members)
            profile = worker_profile(peer.node_id, name, joined, usable_ops(self.identity, peer))
        except Exception:
            link.close("could not join")
            raise
        finally:
            self._joins.pop(link, None)
        again = self._link_to(peer.node_id) is link  # it had joined over this link, so its ways are known
        before = self._members[peer.node_id] if again else None
        graphs, blobs = (before.graphs, before.blobs) if before else (set[bytes](), set[bytes]())
        self._members[peer.node_id] = Member(link, joined, profile, graphs, blobs | set(joined.blobs))
        report = self._known[peer.node_id] = worker_names.node_report(peer, name, joined)
        self._forget_gone()
        self._pacing.forget(peer.node_id)
        self._judge(self._detector.joined(peer.node_id, peer.incarnation, now))
        self._set_pause(peer.node_id, joined.paused, joining=True)
        self.sessions.back(peer.node_id, frozenset(joined.kept))
        for generation in frozenset(joined.kept).difference(self._kept()):  # its session ended meanwhile
            drop = self._deployer.drop(peer.node_id, self.sessions.key(generation))
            self._tasks.run("dropping a plan", drop, unheard)
        if not again:
            self.prober.joined(peer.node_id)
        self._wake.set()
        return report

    def _forget_gone(self) -> None:
        """Forget the workers that have been gone the longest, once more have come than may be connected at once."""
        gone = sorted(self._known.keys() - self._members.keys(), key=lambda node: self._detector.heard_s(node) or 0.0)
        for node in gone[: max(0, len(self._known) - self.endpoint.limits.nodes_max)]:
            del self._known[node]
            self._detector.forget(node)

    def _kept(self) -> frozenset[int]:
        """The plans that workers keep across a lost link, by generation."""
        return self.sessions.kept.union(self._guards.kept, self._deployments)

    async def _stay_connected(self, address: str, link: Link) -> None:
        """Dial again whenever the link is lost, without end: at this address, and at all that the worker announced."""
        node = link.peer.node_id

        def addresses() -> Sequence[str]:
            known = self._known.get(node)
            return tuple(dict.fromkeys((address, *(known.addresses if known else ()))))

        await stay_linked(self.endpoint, addresses, self._joining, link, judged=True)

    def _on_leaving(self, link: Link, body: Leaving) -> None:
        member = self._members.get(link.peer.node_id)
        if member is not None:
            member.leaving, member.last_words = True, body.log
        self._publish("leaving", link.peer.node_id, body.reason)
        for line in body.log:
            log.warning("%s: %s", link.peer.name, line)
        self._judge(self._detector.lost(link.peer.node_id, self._now(), f"left: {body.reason}"))

    def _on_paused(self, link: Link, body: Paused) -> None:
        if self._link_to(link.peer.node_id) is link:
            self._set_pause(link.peer.node_id, body.by)

    def _set_pause(self, node: str, by: str, joining: bool = False) -> None:
        """Note whether a connected worker is paused, and by whom."""
        member = self._members[node]
        was, member.paused = member.paused, by
        if by == was and not joining:
            return
        if by:
            self._publish("paused", node, worker_names.PAUSED_BY.get(by, f"paused by its {by}"))
            self._feed(ev.NodePaused(node))
            self._report_waiting()
            return
        if was:
            self._publish("resumed", node, "it takes work again")
        if node not in self.quarantined:
            self._feed(ev.NodeJoined(node))

    def _report_waiting(self) -> None:
        if self._calls and self.no_worker_reason:
            self._publish("waiting", "", self.no_worker_reason)

    def _on_devices(self, link: Link, body: Devices) -> None:
        """A worker gave a device up: it is still connected, and has fewer devices."""
        node = link.peer.node_id
        member = self._members.get(node)
        if member is None or member.link is not link:
            return
        was = member.joined
        member.joined = Joined(body.devices, was.memory_bytes, was.blobs, was.system, without_gpu=was.without_gpu)
        member.profile = worker_profile(node, member.profile.name, member.joined, member.profile.ops)
        self._known[node] = with_fields(self._known[node], devices=body.devices)
        self._planning.times.forget()
        self._publish("devices", node, body.reason)
        self._profiles_changed()

    # -- health

    def _on_beat(self, link: Link, body: Beat) -> None:
        node = link.peer.node_id
        self._judge(self._detector.heard(node, body.incarnation, self._now()))
        if body.working or node in self._state.stuck:
            mine = self.sessions.working(node, [run for run in body.working if self._is_call(run)])
            runs = tuple(plan_messages.working(run) for run in mine)
            was = self._state.stuck
            self._feed(ev.WorkReported(node, runs))
            if node in self._state.stuck - was:
                self._publish("stuck", node, "a part takes far too long")
                for generation, step, part, took_s in runs:
                    deployment = self._deployments.get(generation)
                    if deployment is not None and step != plan_messages.PREPARING:
                        self._pacing.late(deployment, part, took_s, len(self._calls))
            if node in self._state.stuck:
                self.sessions.stuck(node)
            elif node in was:
                self._publish("unstuck", node, "it goes on")

    def _is_call(self, run: Working) -> bool:
        """Whether a worker's run is this coordinator's, and none that explains."""
        return run.plan.epoch == self.epoch and run.plan.generation not in self._explainer.asked

    def _judge(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._judged[type(decision)](decision)

    def _changed(self, change: Transition) -> None:
        member = self._members.get(change.node)
        self._publish("joined" if change.was is None else change.health.value, change.node, change.reason)
        if member is None:
            return
        if change.health is Health.SUSPECT:
            member.link.notify(Suspected(change.incarnation))
        elif change.health is Health.DEAD:
            del self._members[change.node]
            self.prober.left(change.node)
            level = logging.INFO if member.leaving else logging.WARNING
            member.link.fail(NodeLost(change.reason), level)  # no goodbye: it may find us again
            error = lost_node(member.profile.name, change, self.config.health)
            error.log_lines = (member.last_words or self.last_words(member.link.peer.pid))[-LOG_LINES_MAX:]
            crashed = change.cause is Cause.CLOSED and not member.leaving
            work = work_by_plan(self._deployments, change.node) if crashed else {}
            self._feed(ev.NodeGone(change.node, error, work, not member.leaving))
            self._report_waiting()

    def _probed(self, ask: AskPeer, reached: bool | None) -> None:
        self._judge(self._detector.probed(ask, reached, self._now()))
        self._wake.set()

    def _self_probed(self, well: bool) -> None:
        self._judge(self._detector.self_probed(well, self._now()))
        self._wake.set()

    async def _watch_time(self) -> None:
        """Wake when the detector or the state machine has something due; the detector is told how late that was."""
        while True:
            dues = self._detector.next_deadline(), self._state.next_deadline()
            wake_s = min((due_s for due_s in dues if due_s is not None), default=self._now() + 1.0)
            self._wake.clear()
            try:
                async with asyncio.timeout(max(wake_s - self._now(), 0.0)):
                    await self._wake.wait()
            except TimeoutError:
                # Beats that arrived while this loop was busy are read before anybody is judged.
                late_s = self._now() - wake_s
                for _ in range(READ_PASSES):
                    await asyncio.sleep(0)
                self._judge(self._detector.tick(self._now(), late_s))
                self._feed(ev.Tick())

    # -- performing what the machine decided

    def _feed(self, event: ev.Event) -> None:
        for action in self._state.handle(event, self._now()):
            try:
                self._perform[type(action)](action)
            except Exception as fault:
                self._failed(action, as_error(f"{doing(action)} failed", fault))
        self._rehearsing.calls(not self._state.idle)
        if type(event) in ev.NODE_EVENTS:
            self._planning.changed()
            self._guards.nodes_changed()
            gone = (event.error, event.away) if isinstance(event, ev.NodeGone) else (None, False)
            self.sessions.nodes_changed(*gone)

    def _begin(self, action: ev.Action, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.run(doing(action), work, lambda error: self._failed(action, error))

    def _failed(self, action: ev.Action, error: MeshError) -> None:
        """Report the failure of an action to whoever waits for its result."""
        if isinstance(action, ev.SendRun):
            self.prober.lost_between(action.node, error)
        event = failure_of(action, error, self._known, self._members, self._deployments)
        if event is None:
            log.warning("%s", error)
        else:
            self._feed(event)

    def _make_plan(self, action: ev.MakePlan) -> None:
        program = program_of(action.job)
        self._deployments[action.generation] = Deployment(program, trial=isinstance(action.job, Trial))
        homes, planning = self._guards.homes(program, action.nodes), self._planning
        cached = self._guards.standby(program, action.nodes)
        if cached is None and not homes[0]:
            cached = planning.found(program.graph, program.strategy, action.nodes, program.copies)
        if cached is not None and cached.unkept is None and action.job is program:
            self._begin(action, self._tell_soon(action.generation, cached))
        else:
            self._begin(action, self._plan_then_tell(action, homes))

    async def _tell_soon(self, generation: int, plan: Plan) -> None:
        self._plan_made(generation, plan)

    async def _plan_then_tell(self, action: ev.MakePlan, homes: tuple[Homes, Homes]) -> None:
        firm = self._guards.is_new(*program_of(action.job).likeness)
        self._plan_made(action.generation, await self._planning.plan_for(action.job, action.nodes, homes, firm))

    def _lent(self) -> CoordinatorHooks:
        """What straggler mitigation needs of the coordinator."""
        return CoordinatorHooks(
            lambda program: self.plan(*program.likeness),
            lambda: self._planning.profiles(self._members),
            lambda program: self._planning.experience(program.graph, program.strategy),
            lambda node, program: self._members[node].holds(program),
            lambda generation: self._feed(ev.PlanOutdated(generation)),
            lambda trial: self.submit(trial.program, {}, trial=trial)[1],
            lambda kind, node, text: self._publish(kind, node, text),
            self._planning.times.forget,
        )

    def _session_context(self) -> SessionContext:
        """What sessions need of the coordinator."""
        return SessionContext(
            lambda: self.epoch,
            {},
            self._members,
            self._deployer,
            self._planning,
            self._usable,
            self._held,
            self.blobs,
            self._shared,
            self._state.spare_generation,
            self._tasks,
            self._publish,
            self.config.timeouts,
            self._stragglers,
            self._guards.deployed,
            lambda *ran: self._pacing.session_ran(*ran),
        )

    # -- ways between nodes

    def _link_to(self, node: str) -> Link | None:
        member = self._members.get(node)
        return None if member is None else member.link

    def _profiles_changed(self) -> None:
        self._feed(ev.ProfilesChanged())

    def _plan_made(self, generation: int, plan: Plan) -> None:
        deployment = self._deployments.get(generation)
        if deployment is not None:
            deployment.plan, deployment.feeds = plan, plan_messages.feeds(plan)
            self._guards.admit(deployment.program, plan)
            deployment.settled = self._pacing.opinion(deployment.program)
            if not deployment.trial:
                self._publish("planned", "", "; ".join(plan.reasons), generation)
            self._events.note_plan(deployment.program, generation)
            if not deployment.trial:
                self._planning.use(deployment.program, plan_messages.nodes(plan))
        nodes, outputs = plan_messages.nodes(plan), plan_messages.output_count(plan)
        timed = plan_messages.part_seconds(plan), plan_messages.prepare_seconds(plan), plan.seconds
        self._feed(ev.PlanMade(generation, nodes, outputs, *timed))

    def _forget_plan(self, action: ev.ForgetPlan) -> None:
        self._deployments.pop(action.generation, None)

    async def _send_deploy(self, action: ev.SendDeploy) -> None:
        member = self._members.get(action.node)
        deployment = self._deployments.get(action.generation)
        if member is None or deployment is None or deployment.plan is None:
            return
        key = PlanKey(self.epoch, action.generation)
        bindings, forced = deployment.program.bindings, deployment.program.forced > 0
        answer = await self._deployer.deploy(deployment.plan, action.node, key, bindings, force=forced)
        deployment.results[action.node] = answer
        if not deployment.trial and deployment.results.keys() >= plan_messages.nodes(deployment.plan):
            self._guards.deployed(deployment.program, deployment.plan)
        text = f"{counted(answer.compiled, 'kernel')} compiled, {answer.from_cache} from cache"
        self._publish("deployed", action.node, text, action.generation)
        self._feed(ev.DeployDone(action.generation, action.node))

    def _start_run(self, action: ev.SendRun) -> None:
        member = self._members.get(action.node)
        call = self._calls.get(action.call)
        deployment = self._deployments.get(action.generation)
        if member is None or call is None or deployment is None:
            return
        call.report.add_generation(action.generation)
        call.steps[action.generation] = action.step
        self._begin(action, self._run(action, member, call, deployment))

    async def _run(self, action: ev.SendRun, member: Member, call: Call, deployment: Deployment) -> None:
        began_s, run = self._loop.time(), Run(PlanKey(self.epoch, action.generation), action.step)
        answer = await run_step(member.link, run, deployment.feeds.get(action.node, ()), call.inputs, self._shared)
        took_s = self._loop.time() - began_s
        for output in answer.outputs:
            if output.value.data is not None or output.value.shared:
                self._output(action.generation, action.step, output.slot, tensor_of(member.link, output.value))
        call.ran[action.generation, action.node] = answer
        self._events.publish_progress("ran", action.node, f"its parts of step {action.step}", action.generation)
        seconds = {run.part: run.compute_s for run in answer.parts}
        self._pacing.ran((action.generation, action.step), action.node, deployment, answer, took_s, len(self._calls))
        self._feed(ev.NodeRan(action.generation, action.step, action.node, seconds))

    def _send_cancel(self, action: ev.SendCancel) -> None:
        member = self._members.get(action.node)
        if member is not None:
            member.link.notify(CancelStep(PlanKey(self.epoch, action.generation), action.step))

    def _send_drop(self, action: ev.SendDrop) -> None:
        if action.node in self._members:
            drop = self._deployer.drop(action.node, PlanKey(self.epoch, action.generation), action.free)
            self._tasks.run("dropping a plan", drop, unheard)

    # -- outputs

    def _output_lost(self, generation: int, step: int, node: str, error: MeshError) -> None:
        if not self.sessions.run_failed(generation, step, node, error):
            self._failed(ev.SendRun(generation, step, node, 0), error)

    def _output(self, generation: int, step: int, slot: int, array: NDArray[Any]) -> None:
        if self.sessions.output(generation, step, slot, array):
            return
        self._feed(ev.OutputArrived(generation, step, slot, array))

    def _resolve(self, action: ev.Resolve) -> None:
        call = self._calls.pop(action.call)
        try:
            self._answer(action, call)
        except Exception as fault:
            if not call.future.done():
                call.future.set_exception(as_error("putting the outputs together failed", fault))

    def _answer(self, action: ev.Resolve, call: Call) -> None:
        deployment = self._deployments[action.generation]
        assert deployment.plan is not None
        if not self._audit(deployment.plan, action.outputs):
            self._ask_again(action.call, call)
            return
        self._events.complete_report(call, action.generation, deployment)
        if (
            self.config.follow_pace
            and call.alone
            and action.call > self._crowded
            and call.report.generations == [action.generation]
        ):
            self._planning.took(call.program, deployment.plan, action.generation, call.report.seconds)
        if not self._state.stuck and not self._pacing.is_settled(deployment):
            self._tasks.run("following the pace", self._pacing.finished(action.generation, deployment), unheard)
        bindings = call.program.bindings
        params = {name: self._held.of(blob, kind) for name, (blob, kind) in bindings.items() if blob in self._held}
        outputs = plan_messages.outputs(deployment.plan, action.outputs, call.inputs, params)
        if not call.future.done():
            call.future.set_result(outputs)

    def _reject(self, action: ev.Reject) -> None:
        call = self._calls.pop(action.call)
        call.report.seconds = self._now() - call.began_s
        if call.future.done():
            return
        if isinstance(action.error, Cancelled):
            call.future.cancel()
        else:
            call.future.set_exception(action.error)

    # -- audits

    def _parts_of(self, program: Program) -> int:
        deployments = self._deployments.values()
        plans = (d.plan for d in deployments if d.plan is not None and d.program == program)
        return max((len(plan.parts) for plan in plans if plan.audit is None), default=1)

    def _audit(self, plan: Plan, outputs: Mapping[int, NDArray[Any]]) -> bool:
        """Whether the answer can be trusted.  A worker that was wrong is reported, and quarantined the second time."""
        verdict = self._auditor.judge(plan.audit, plan_messages.counts(plan, outputs)) if plan.audit else TRUSTED
        if verdict.event:
            self._publish(verdict.event, verdict.node, f"about {plan_messages.audited_text(plan)}: {verdict.text}")
        if verdict.quarantined and verdict.node not in self.quarantined:
            self._quarantine(verdict.node)
        return verdict.trusted

    def _quarantine(self, node: str) -> None:
        self.quarantined.add(node)
        self._publish("quarantined", node, "it was wrong twice, and gets no work any more")
        for generation, deployment in self._deployments.items():
            if deployment.plan is not None and node in plan_messages.nodes(deployment.plan):
                self._send_drop(ev.SendDrop(generation, node))
        self._feed(ev.NodeGone(node, in_quarantine(worker_names.name_of(self._known, node))))

    def _ask_again(self, number: int, call: Call) -> None:
        """Compute a call again whose answer is doubted."""
        call.doubts += 1
        self._calls[number] = call
        if call.doubts > DOUBTS_MAX:
            self._reject(ev.Reject(number, disagreement(call.doubts)))
        else:
            self._feed(ev.CallSubmitted(number, Sampled(call.program, self._auditor.again())))

    # -- telling people

    def _on_began(self, link: Link, body: Began) -> None:
        if body.plan.epoch == self.epoch and body.plan.generation in self._deployments:  # not a session's
            self._feed(ev.NodeBegan(body.plan.generation, body.step, link.peer.node_id))
        self._events.publish_progress(
            "began", link.peer.node_id, f"part {body.part} of step {body.step}", body.plan.generation
        )

    # -- helpers

    def begin_above(self, generation: int) -> None:
        """Give no plan a number up to this one, before any worker joins."""
        self._state.begin_above(generation)

    def _spare_key(self) -> PlanKey:
        return PlanKey(self.epoch, self._state.spare_generation())

    def _now(self) -> float:
        return self._loop.time()

    def _usable(self) -> frozenset[str]:
        return self._state.nodes


__all__ = ["Coordinator", "CoordinatorConfig"]
