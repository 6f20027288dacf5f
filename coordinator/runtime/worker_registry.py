"""Worker registry: the workers that joined, and those that are gone.  It joins a worker whenever a link to it stands,
dials it again when the link is lost, and notes pauses and devices that were given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from wire.addresses import shown
from wire.errors import NodeLost, ProtocolError
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.link.reconnect import stay_linked
from wire.protocol.messages import Devices, Join, Joined, Leaving, NodeReport, Paused, with_fields
from wire.protocol.peer import Identity
from wire.protocol.versions import usable_ops
from wire.system.steady_log import steady_logger
from wire.system.tasks import unheard

from ..calls import events as ev
from ..planning.model.profiles import worker_profile
from ..workers import worker_names
from ..workers.records import Enrolled, Member, link_to
from .call_runner import CallContext, CallRunner
from .health_watch import HealthWatch

log = steady_logger("graph_mesh.coordinator")


class WorkerRegistry:
    """`members` are the workers that are connected, `known` also those that are gone, for people."""

    def __init__(
        self,
        context: CallContext,
        identity: Identity,
        endpoint: Endpoint,
        runner: CallRunner,
        health: HealthWatch,
        members: dict[str, Member],
        known: dict[str, NodeReport],
    ) -> None:
        plans = context.plans
        self._config, self._epoch, self._tasks = context.config, plans.epoch, plans.tasks
        self._sessions, self._guards, self._deployer = context.sessions, context.guards, plans.deployer
        self._planning, self._pacing, self._prober = plans.planning, context.pacing, plans.prober
        self._publish = plans.events.publish
        self.epochs: tuple[int, ...] = ()  # with a standby: of all coordinators that this one goes on from, and its own
        self.enrolled: Callable[[str], Enrolled | None] | None = None  # what the mesh's authority says of a node
        self._identity = identity
        self._endpoint = endpoint
        self._runner = runner
        self._health = health
        self._members = members
        self._known = known
        self._names = worker_names.NamesTaken(members)
        self._now = asyncio.get_running_loop().time  # also asked from other threads
        self._joins: dict[Link, asyncio.Task[NodeReport]] = {}
        # Of workers that are about to join, the latest of each kind.
        self._early_reports: dict[Link, dict[type, Paused | Devices]] = {}
        self._dial_tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def adopt(self, link: Link, host: str, port: int) -> NodeReport:
        """Join the worker at the other end of a link dialled at this address, and stay joined."""
        report = await self.join(link)
        if (host, port) not in self._dial_tasks:
            stay = partial(self._stay_connected, f"{shown(host)}:{port}", link)
            self._dial_tasks[host, port] = self._tasks.keep("staying connected", stay)
        return report

    def forget(self, host: str, port: int) -> None:
        """Stop dialling an address; an open link is kept."""
        dialling = self._dial_tasks.pop((host, port), None)
        if dialling is not None:
            dialling.cancel()

    def join(self, link: Link) -> asyncio.Task[NodeReport]:
        """Join the worker at the other end of a link, once."""
        task = self._joins.get(link)
        if task is None:
            task = self._joins[link] = self._tasks.run("joining a worker", self._join(link), unheard)
        return task

    async def _join(self, link: Link) -> NodeReport:
        health = self._config.health
        earlier = self._sessions.earlier
        mine = tuple(sorted(self._plans_to_keep().difference(key.generation for key in earlier)))
        join = Join(self._epoch(), health.beat_s, self._identity.node_id, health.lease_s, mine, earlier, self.epochs)
        try:
            joined = await link.request(join, timeout_s=self._config.timeouts.worker_join_s)
            if not isinstance(joined, Joined):
                raise ProtocolError(f"expected Joined, got {type(joined).__name__}", node=link.peer.name)
            peer = link.peer
            ours = await asyncio.to_thread(self.enrolled, peer.node_id) if self.enrolled is not None else None
            if link.closed:  # meanwhile: nobody would notice, and a newer link may have joined
                raise NodeLost("the link ended before the worker had joined", node=link.peer.name)
            name = self._names.give(peer.node_id, (ours.name if ours else "") or peer.name)
            profile = worker_profile(peer.node_id, name, joined, usable_ops(self._identity, peer))
            if ours is not None and ours.untrusted:
                profile = replace(profile, trusted=False)
        except Exception:
            link.close("could not join")
            raise
        finally:
            self._joins.pop(link, None)
            early_reports = self._early_reports.pop(link, {})
        again = link_to(self._members, peer.node_id) is link  # it had joined over this link, so its ways are known
        before = self._members[peer.node_id] if again else None
        member = Member(link, joined, profile, before.graphs, before.blobs) if before else Member(link, joined, profile)
        member.blobs.update(reversed(joined.blobs))
        self._members[peer.node_id] = member
        report = self._known[peer.node_id] = worker_names.node_report(peer, name, joined)
        self._forget_gone()
        self._pacing.forget(peer.node_id)
        self._health.joined(peer.node_id, peer.incarnation)
        self._set_pause(peer.node_id, joined.paused, joining=True)
        steps_done = dict(zip(joined.deployed, joined.steps_done, strict=False))  # an older worker does not send it
        self._sessions.node_returned(peer.node_id, dict.fromkeys(joined.deployed, 0) | steps_done)
        for generation in frozenset(joined.deployed).difference(self._plans_to_keep()):  # its session ended meanwhile
            drop = self._deployer.drop(peer.node_id, self._sessions.key(generation))
            self._tasks.run("dropping a plan", drop, unheard)
        if not again:
            self._prober.joined(peer.node_id)
        for news in early_reports.values():  # after it had answered
            self.devices_changed(link, news) if isinstance(news, Devices) else self.paused(link, news)
        return report

    def _forget_gone(self) -> None:
        """Forget the workers that have been gone the longest, once more have come than may be connected at once."""
        detector, count = self._health.detector, len(self._known)
        too_many = min(count - self._endpoint.limits.nodes_max, count - len(self._members))
        if too_many <= 0:
            return
        gone = sorted(self._known.keys() - self._members.keys(), key=lambda node: detector.heard_s(node) or 0.0)
        for node in gone[:too_many]:
            del self._known[node]
            self._names.forget(node)
            self._pacing.forget(node)
            detector.forget(node)

    def _plans_to_keep(self) -> frozenset[int]:
        """The plans that workers keep across a lost link, by generation."""
        return self._sessions.kept_plans.union(self._guards.pinning_plans, self._runner.deployments)

    async def _stay_connected(self, address: str, link: Link) -> None:
        """Dial again whenever the link is lost, without end: at this address, and at all that the worker announced."""
        node = link.peer.node_id

        def addresses() -> Sequence[str]:
            known = self._known.get(node)
            return tuple(dict.fromkeys((address, *(known.addresses if known else ()))))

        await stay_linked(self._endpoint, addresses, self.join, link, judged=True)

    def leaving(self, link: Link, body: Leaving) -> None:
        """A worker says that it goes."""
        member = self._members.get(link.peer.node_id)
        if member is not None:
            member.leaving, member.last_words = True, body.log
            self._known[link.peer.node_id] = with_fields(self._known[link.peer.node_id], state=worker_names.LEFT)
        self._publish("leaving", link.peer.node_id, body.reason)
        for line in body.log:
            log.warning("%s: %s", link.peer.name, line)
        self._health.lost(link.peer.node_id, f"left: {body.reason}")

    def paused(self, link: Link, body: Paused) -> None:
        """A worker was paused by its machine, or is so no more."""
        self._note(link, body)
        if link_to(self._members, link.peer.node_id) is link:
            self._set_pause(link.peer.node_id, body.by)

    def _note(self, link: Link, news: Paused | Devices) -> None:
        """Note what a worker says that has answered, and is looked up in the roster: it does not say it again."""
        if link in self._joins:
            self._early_reports.setdefault(link, {})[type(news)] = news

    def _set_pause(self, node: str, by: str, joining: bool = False) -> None:
        """Note whether a connected worker is paused, and by whom."""
        member = self._members[node]
        was, member.paused = member.paused, by
        if by == was and not joining:
            return
        if by:
            self._publish("paused", node, worker_names.PAUSED_BY.get(by, f"paused by its {by}"))
            self._runner.feed(ev.NodePaused(node))
            self._health.report_waiting()
            return
        if was:
            self._publish("resumed", node, "it takes work again")
        if node not in self._runner.quarantined:
            self._runner.feed(ev.NodeJoined(node))

    def devices_changed(self, link: Link, body: Devices) -> None:
        """A worker gave a device up: it is still connected, and has fewer devices."""
        self._note(link, body)
        node = link.peer.node_id
        member = self._members.get(node)
        if member is None or member.link is not link:
            return
        was = member.joined
        member.joined = with_fields(was, devices=body.devices, paused="", deployed=(), steps_done=())
        profile = worker_profile(node, member.profile.name, member.joined, member.profile.ops)
        member.profile = replace(profile, trusted=member.profile.trusted)
        self._known[node] = with_fields(self._known[node], devices=body.devices)
        self._planning.times.forget()
        self._publish("devices", node, body.reason)
        self._runner.feed(ev.ProfilesChanged())

    def nodes(self) -> list[NodeReport]:
        """Every worker that joined since the start, with its present state, by name."""
        reports, detector, now = [], self._health.detector, self._now()
        stuck, quarantined = self._runner.machine.stuck, self._runner.quarantined
        for node_id, report in self._known.items():
            member = self._members.get(node_id)
            paused = member is not None and bool(member.paused)
            lag_s = member.loop_lag_s if member is not None else 0.0
            health = detector.health(node_id)
            left = report.state == worker_names.LEFT
            present = worker_names.state_of(health, paused, node_id in stuck, node_id in quarantined, left)
            heard_s = detector.heard_s(node_id)
            silent_s = 0.0 if heard_s is None else now - heard_s
            reports.append(with_fields(report, state=present, silent_s=silent_s, loop_lag_s=lag_s))
        return sorted(reports, key=lambda report: report.name)
