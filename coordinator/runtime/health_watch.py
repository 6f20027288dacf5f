"""Health watch: the shell of the failure detector.  It gives beats and answers of probes to the detector, and does what
follows: a Suspect worker gets a message that says so, and a Dead one is no longer a member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wire.errors import LOG_LINES_MAX, MeshError, NodeLost
from wire.link.link import Link
from wire.protocol.messages import Beat, Suspected, Working
from wire.system.steady_log import steady_logger
from wire.system.tasks import isolated

from ..calls import events as ev
from ..delivery.explainer import Explainer
from ..lifecycle.error_context import lost_node
from ..planning import plan_messages
from ..workers import worker_names
from ..workers.failure_detector import AskPeer, Cause, Decision, FailureDetector, Health, ProbeSelf, Transition
from ..workers.indirect_probes import IndirectProber
from ..workers.records import Member, work_by_plan
from .call_runner import CallContext, CallRunner

log = steady_logger("graph_mesh.coordinator")

READ_PASSES = 3  # passes of the loop until all that the sockets hold is read: it is polled, parsed and delivered


class HealthWatch:
    """`members` are the workers that joined: those that die are removed.  `last_words` gives the end of the log of a
    process that this program started."""

    def __init__(
        self,
        context: CallContext,
        runner: CallRunner,
        members: dict[str, Member],
        explainer: Explainer,
    ) -> None:
        self.detector = FailureDetector(context.config.health)
        self.last_words: Callable[[int], tuple[str, ...]] = lambda pid: ()
        self._config, self._epoch = context.config, context.plans.epoch
        self._sessions, self._pacing, self._prober = context.sessions, context.pacing, context.plans.prober
        self._publish = context.plans.events.publish
        self._runner, self._machine = runner, runner.machine
        self._members = members
        self._explainer = explainer
        self._now = asyncio.get_running_loop().time
        self._wake = asyncio.Event()
        probes = IndirectProber(members, self._publish, self._probed, self._self_probed, context.plans.tasks)
        self._performers: dict[type, Callable[[Any], object]] = {
            Transition: self._changed,
            AskPeer: probes.ask_peer,
            ProbeSelf: probes.probe_self,
        }

    def joined(self, node: str, incarnation: int) -> None:
        """A worker joined."""
        self._judge(self.detector.joined(node, incarnation, self._now()))
        self._wake.set()

    def lost(self, node: str, reason: str) -> None:
        """A worker left, or its link ended."""
        self._judge(self.detector.lost(node, self._now(), reason))

    def report_waiting(self) -> None:
        """Say that calls wait for a worker, if they do."""
        if self._runner.calls and (
            reason := worker_names.no_worker_reason(self._members.values(), self._machine.nodes)
        ):
            self._publish("waiting", "", reason)

    def beat(self, link: Link, body: Beat) -> None:
        """A worker is alive, and says what it computes."""
        node = link.peer.node_id
        self._judge(self.detector.heard(node, body.incarnation, self._now()))
        if (member := self._members.get(node)) is not None:
            member.loop_lag_s, member.working = body.loop_lag_s, body.working
            if body.working:
                member.worked_s = self._now()
        if body.working or self._machine.is_stuck(node):
            mine = self._sessions.working(node, [run for run in body.working if self._is_call(run)])
            runs = tuple(plan_messages.working(run) for run in mine)
            was = self._machine.stuck
            self._runner.feed(ev.WorkReported(node, runs))
            if node in self._machine.stuck - was:
                self._publish("stuck", node, "a part takes far too long")
                for generation, step, part, took_s in runs:
                    deployment = self._runner.deployments.get(generation)
                    if deployment is not None and step != plan_messages.PREPARING:
                        self._pacing.late(deployment, part, took_s, len(self._runner.calls))
            if node in self._machine.stuck:
                self._sessions.stuck(node)
            elif node in was:
                self._publish("unstuck", node, "it goes on")

    def _is_call(self, run: Working) -> bool:
        """Whether a worker's run is this coordinator's, and none that explains."""
        return run.plan.epoch == self._epoch() and run.plan.generation not in self._explainer.asked

    def _judge(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            with isolated(f"what follows of {type(decision).__name__}"):  # others' deaths have to be heard of
                self._performers[type(decision)](decision)

    def _changed(self, change: Transition) -> None:
        member = self._members.get(change.node)
        with isolated("telling of a worker"):
            self._publish("joined" if change.was is None else change.health.value, change.node, change.reason)
        if member is None:
            return
        if change.health is Health.SUSPECT:
            member.link.notify(Suspected(change.incarnation))
        elif change.health is Health.DEAD:
            del self._members[change.node]
            self._died(change, member)

    def _died(self, change: Transition, member: Member) -> None:
        """Tell the machine of a death, for which calls wait, whatever fails of the rest that follows."""
        error: MeshError = NodeLost(change.reason)
        work: Mapping[int, frozenset[str]] = {}
        with isolated("forgetting the links of a dead worker"):
            self._prober.left(change.node)
        with isolated("ending the link of a dead worker"):
            level = logging.INFO if member.leaving else logging.WARNING
            member.link.fail(NodeLost(change.reason), level)  # no goodbye: it may find us again
        with isolated("explaining a death"):
            error = lost_node(member.profile.name, change, self._config.health)
            error.log_lines = (member.last_words or self.last_words(member.link.peer.pid))[-LOG_LINES_MAX:]
            if change.cause is Cause.CLOSED and not member.leaving:  # it crashed
                work = work_by_plan(self._runner.deployments, change.node)
        self._runner.feed(ev.NodeGone(change.node, error, work, not member.leaving))
        self.report_waiting()

    def _probed(self, ask: AskPeer, reached: bool | None) -> None:
        self._judge(self.detector.probed(ask, reached, self._now()))
        self._wake.set()

    def _self_probed(self, well: bool) -> None:
        self._judge(self.detector.self_probed(well, self._now()))
        self._wake.set()

    async def run(self) -> None:
        """Wake when the detector or the state machine has something due; the detector learns how late that was."""
        while True:
            dues = self.detector.next_deadline(), self._machine.next_deadline()
            wake_s = min((due_s for due_s in dues if due_s is not None), default=self._now() + 1.0)
            self._wake.clear()
            try:
                async with asyncio.timeout(max(wake_s - self._now(), 0.0)):
                    await self._wake.wait()
            except TimeoutError:
                # Beats that arrived while this loop was busy are read before any worker is declared dead.
                late_s = self._now() - wake_s
                for _ in range(READ_PASSES):
                    await asyncio.sleep(0)
                try:
                    self._judge(self.detector.tick(self._now(), late_s))
                finally:  # calls wait for time to pass, whatever becomes of the judgement
                    self._runner.feed(ev.Tick())
