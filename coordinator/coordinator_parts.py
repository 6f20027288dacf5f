"""The parts of a coordinator: they are made here, and joined.

`calls/state.py`, `sessions/state.py` and `workers/failure_detector.py` decide, and `runtime/` performs their actions.
Everything runs on one event loop, except planning, hashing and copies over 1 MiB, which run in threads so that
heartbeats are read on time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from wire.link.endpoint import Endpoint as AnyEndpoint
from wire.link.guard import Guard, Test
from wire.link.keepalive import LinkWatch
from wire.link.link import Handler, Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import (
    Beat,
    Began,
    BlobStream,
    Devices,
    FetchBlob,
    Landed,
    Leaving,
    NodeReport,
    Paused,
    PlanKey,
    Push,
    Relay,
)
from wire.protocol.peer import Identity
from wire.protocol.permissions import Receiver, Relation
from wire.system.shared_memory import SharedDir
from wire.system.tasks import Tasks
from wire.transfer.content_exchange import BlobExchange
from wire.transfer.link_probe import Meter

from .calls import events as ev
from .calls.state import CoordinatorState
from .config import CoordinatorConfig
from .delivery.deployer import Deployer
from .delivery.explainer import Explainer
from .delivery.output_receiver import OutputReceiver
from .delivery.param_slices import ParamSlices
from .delivery.relay import RelayServer
from .delivery.tensor_store import TensorStore
from .lifecycle.plan_context import PlanContext
from .lifecycle.plan_shell import PlanShell
from .plan_service.plan_service import PlanService
from .plan_service.planner_client import PlannerClient, PlannerProcess
from .plan_service.straggler_mitigation import CoordinatorHooks, StragglerMitigation
from .plan_service.warm_up import WarmUp
from .plan_service.weight_redundancy import WeightRedundancy
from .planning.contingency import ContingencyPlans
from .runtime.call_runner import CallContext, CallRunner
from .runtime.health_watch import HealthWatch
from .runtime.message_router import MessageRouter
from .runtime.plan_questions import PlanQuestions
from .runtime.worker_registry import WorkerRegistry
from .sessions.open_sessions import Sessions
from .sessions.session_context import SessionContext
from .workers.event_feed import EventFeed
from .workers.link_prober import LinkProber
from .workers.records import Call, Deployment, Member, link_to
from .workers.straggler_detector import StragglerDetector


class CoordinatorParts:
    """The parts of one coordinator, which belong to one event loop."""

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
        self.identity = identity = replace(identity, reproducible=config.reproducible)
        self.epoch = time.time_ns() // 1000  # grows across restarts, also on a machine whose monotonic clock restarts
        self._members: dict[str, Member] = {}
        self._router = MessageRouter(self._members)
        self.requests, self.notices, self.unlinked = self._router.requests, self._router.notices, self._router.unlinked
        self._guard = Guard(self._router, Receiver.COORDINATOR, self._relations())
        self.endpoint = endpoint(identity, self._guard)
        self._state = machine(config.timeouts.worker_wait_s)
        self._shared, self._held = shared, TensorStore()
        self.hold, self.release, self._slices = self._held.hold, self._held.release, ParamSlices(self._held)
        self.blobs = BlobExchange(shared, self._slices.find)
        self._known: dict[str, NodeReport] = {}  # the workers that joined, and those that are gone, for people
        self._calls: dict[int, Call] = {}
        self._events = EventFeed(self._known, self._calls)
        self.events, self.watchers = self._events.events, self._events.watchers
        self._tasks = Tasks()
        self._make_planning(answerer)
        self._make_runtime()
        self._make_tables()
        self._begin()

    def _make_planning(self, answerer: PlannerClient | None) -> None:
        config, members, tasks = self.config, self._members, self._tasks
        self._meter = Meter()
        self.prober = LinkProber(
            self.identity.node_id,
            self._meter,
            partial(link_to, members),
            lambda: self._runner.feed(ev.ProfilesChanged()),
            config.timeouts.link_probe_s,
        )
        self._deployer = Deployer(members, self.prober, self._slices, config.timeouts.collective_timeout_s)
        self._explainer = Explainer(self._deployer, self._held, self._spare_key, tasks)
        ahead = ContingencyPlans(config.plan_ahead_min if config.plan_ahead else None)
        self._rehearsing = WarmUp(ahead, members, self._deployer, self._spare_key, tasks, config.rehearsed_bytes_max)
        planner = answerer or PlannerProcess(config.timeouts.planner_idle_s)
        self._stragglers = StragglerDetector()
        self._planning = PlanService(
            members, self._stragglers, self.prober, self._usable, ahead, planner, self._rehearsing.changed
        )
        keeping = self._spare_key, tasks, self._events.publish, self._planning
        self._guards = WeightRedundancy(members, self._deployer, self._usable, *keeping)
        self._pacing = StragglerMitigation(
            config.follow_pace,
            self._stragglers,
            self._planning.calibration,
            CoordinatorHooks(
                lambda program: self.plan(*program.likeness),
                lambda: self._planning.profiles(members),
                lambda program: self._planning.experience(program.graph, program.strategy),
                lambda node, program: members[node].holds(program),
                lambda generation: self._runner.feed(ev.PlanOutdated(generation)),
                lambda trial: self._runner.submit(trial.program, {}, trial=trial)[1],
                lambda kind, node, text: self._events.publish(kind, node, text),
                self._planning.times.forget,
            ),
        )
        questions = PlanQuestions(members, self._state, self._planning, self._guards, self._explainer)
        self.plan, self.preview, self.explain = questions.plan, questions.preview, questions.explain

    def _make_runtime(self) -> None:
        plans = PlanContext(
            epoch=lambda: self.epoch,
            members=self._members,
            known=self._known,
            deployer=self._deployer,
            planning=self._planning,
            prober=self.prober,
            events=self._events,
            held=self._held,
            shared=self._shared,
            tasks=self._tasks,
            refuse=self._guard.count,
        )
        self.sessions = Sessions(
            SessionContext(
                plans=plans,
                usable=self._usable,
                blobs=self.blobs,
                generation=self._state.spare_generation,
                timeouts=self.config.timeouts,
                stragglers=self._stragglers,
                guarded=self._guards.deployed,
                ran=self._pacing.session_ran,
            )
        )
        context = CallContext(
            config=self.config,
            plans=plans,
            guards=self._guards,
            rehearsing=self._rehearsing,
            pacing=self._pacing,
            sessions=self.sessions,
        )
        self._runner = CallRunner(context, self._state, self._calls)
        self.health = HealthWatch(context, self._runner, self._members, self._explainer)
        joined = self._members, self._known
        self._registry = WorkerRegistry(context, self.identity, self.endpoint, self._runner, self.health, *joined)

    def _make_tables(self) -> None:
        """Say what takes each message; others add their rows."""
        self._router.join, self._router.lost = self._registry.join, self.health.lost
        receiver = self._router.receiver = OutputReceiver(
            lambda: self.epoch,
            self.blobs,
            self._meter,
            self._owner,
        )
        relay = RelayServer(partial(link_to, self._members), self._calls, lambda: self.epoch, self._deployment)
        self.requests |= {FetchBlob: self._slices.before(self.blobs.serve), Relay: relay.serve}
        self.notices |= {
            Beat: self.health.beat,
            Began: self._began,
            Push: receiver.pushed,
            Leaving: self._registry.leaving,
            Paused: self._registry.paused,
            Devices: self._registry.devices_changed,
            Landed: self._meter.landed,
        }

    def _relations(self) -> Mapping[Relation, Test]:
        """What the node at the other end of a link is to this coordinator."""
        asked: dict[type, Test] = {
            BlobStream: lambda link, body: self.blobs.asked(link, body),
            Landed: lambda link, body: self._meter.asked(link, body),
        }
        return {
            Relation.JOINED: lambda link, body: link_to(self._members, link.peer.node_id) is link,
            Relation.SOURCE: self._is_source,
            Relation.ASKED: lambda link, body: asked[type(body)](link, body),
        }

    def _is_source(self, link: Link, body: Push) -> bool:
        if link.peer.role != "worker" or body.plan.epoch != self.epoch:
            return link.peer.role == "worker"
        generation = body.plan.generation
        return self._owner(generation).may_send(link.peer.node_id, generation, body.slot)

    def _begin(self) -> None:
        """Begin with what lasts until the end."""
        times = self.config.timeouts
        self.link_watch = LinkWatch(self.endpoint)
        self.link_watch.answer_s = max(times.keepalive_answer_s, 2 * self.config.health.node_timeout_s)
        for each in (self.link_watch, self.prober, self._planning, self._rehearsing, self._pacing, self.health):
            self._tasks.keep(type(each).__name__, each.run)

    # -- what its parts need of it

    def _owner(self, generation: int) -> PlanShell:
        """The shell that has the plan of this number."""
        return self.sessions.of(generation) or self._runner

    def _deployment(self, generation: int) -> Deployment | None:
        return self._owner(generation).deployments.get(generation)

    def _began(self, link: Link, body: Began) -> None:
        """A worker has begun with a part of a step."""
        if body.plan.epoch == self.epoch:
            generation = body.plan.generation
            self._owner(generation).began(generation, body.step, link.peer.node_id, body.part)

    def _spare_key(self) -> PlanKey:
        return PlanKey(self.epoch, self._state.spare_generation())

    def _usable(self) -> frozenset[str]:
        return self._state.nodes
