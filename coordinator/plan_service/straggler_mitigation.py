"""Straggler mitigation: plans follow the pace of devices and of calls, where that is worth its cost; slow devices are
tried until they are well.

`coordinator/workers/straggler_detector.py` says which worker became slower, `coordinator/workers/call_times.py` what
calls took, and `coordinator/plan_service/migration_cost.py` what a move is worth.  This asks them after every call, has
another plan made where a verdict or a figure changed, and replaces a plan once that pays.  A slow device may have no
work any more that would show that it is well again.  So it is given a trial now and then, the same little program each
time, ever less often while it stays slow.  How slow it takes the trial is found out before any plan changes, between
runs of its work that were slow: what was over by then moves nothing.

It does not know how plans are made, deployed or dropped: the coordinator lends it what it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from wire.errors import MeshError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import PartRun, Ran
from wire.system.steady_log import steady_logger
from wire.system.tasks import isolated
from wire.units import time_text

from ..planning.auto_strategy import Measured
from ..planning.model.plan import Plan
from ..planning.model.profiles import DeviceProfile, Profiles
from ..planning.model.program import Program, Trial
from ..planning.model.timeline import timeline
from ..planning.planner import make_plan
from ..workers.collective_calibration import CollectiveCalibration
from ..workers.records import Deployment, Evidence
from ..workers.straggler_detector import KNOWN_MIN, SEEN, DeviceKey, StragglerDetector
from .migration_cost import StayCosts, may_pay, move_s

log = steady_logger("graph_mesh.coordinator")

TRIAL_S = 0.01  # of a device that is well: longer than a dispatch, and nothing to a caller that waits
TRIAL_LAYERS_MAX = 64
PROGRAMS_REMEMBERED = 16  # of trials: one for each width and number of layers
WIDTHS = ((1.0, 32), (100.0, 128), (math.inf, 512))  # of its matrices, up to so many GFLOP/s
RETRY_S_FIRST, RETRY_S_MAX = 15.0, 240.0


@dataclass(frozen=True, slots=True)
class CoordinatorHooks:
    """What the coordinator lends: to plan a program anew, to see machines and what calls took, to replace a plan by
    generation, to run a program on one device, to inform people (kind, node, text), to forget what calls took."""

    planned: Callable[[Program], Awaitable[Plan]]
    profiles: Callable[[], Profiles]
    experience: Callable[[Program], Measured]
    holds: Callable[[str, Program], Collection[str]]
    replaced: Callable[[int], object]
    run: Callable[[Trial], Awaitable[object]]
    tell: Callable[[str, str, str], object]
    forget: Callable[[], object]


@dataclass(slots=True)
class _Slow:
    trial: Trial
    due_s: float
    wait_s: float = RETRY_S_FIRST
    tried: bool = False  # so how it takes the trial is known
    sure: bool = False  # for it was slow after the trial too


class StragglerMitigation:
    """`on` is whether anything is done at all.  Made on the event loop; `run` tries slow devices for ever."""

    def __init__(
        self, on: bool, stragglers: StragglerDetector, calibration: CollectiveCalibration, lent: CoordinatorHooks
    ) -> None:
        self.stragglers = stragglers
        self.calibration = calibration
        self.trials = 0  # in flight
        self._on = on
        self._lent = lent
        self._now = asyncio.get_running_loop().time
        self._debts = StayCosts()
        self._asked: set[Program] = set()  # for which another plan is being made
        self._slow: dict[DeviceKey, _Slow] = {}
        self._settled = 0  # how many verdicts there were when all were sure
        self._news = asyncio.Event()

    def load(self, calls: int) -> int:
        """How many of these calls that are in flight are no trials."""
        return calls - self.trials

    def ran(
        self, step: Hashable, node: str, deployment: Deployment, parts: Sequence[PartRun], took_s: float, load: int,
        alone: bool,
    ) -> None:  # fmt: skip
        """A worker did its parts of a step, which took it `took_s` from the request to the answer, under this load or
        alone, without a trial beside it."""
        self._took(deployment, {run.part: run.compute_s for run in parts}, load)
        if self._on and deployment.plan is not None and alone:
            self.learn(step, node, deployment.plan, parts, took_s)

    def learn(self, step: Hashable, node: str, plan: Plan, parts: Sequence[PartRun], took_s: float) -> None:
        """What of its time a worker neither computed nor waited for inputs says how long collectives take."""
        if not plan.gangs:
            return
        worked_s = sum(run.compute_s for run in parts) + max((run.wait_s for run in parts), default=0.0)
        self.calibration.ran(step, plan, node, max(took_s - worked_s, 0.0))

    def session_ran(self, step: Hashable, node: str, plan: Plan, answer: Ran, took_s: float) -> int:
        """A worker did its parts of a step of a session; a number that is another one once a change of pace is sure."""
        if self._on:
            self._judge(plan, {run.part: run.compute_s for run in answer.parts}, 1)
            self.learn(step, node, plan, answer.parts, took_s)
            if self.sure:
                self._settled = self.stragglers.verdicts
        return self._settled

    @property
    def sure(self) -> bool:
        """Whether every device that is slow was so after its trial, too."""
        return all(slow.sure for slow in self._slow.values())

    def _took(self, deployment: Deployment, seconds: Mapping[int, float], load: int) -> None:
        if self._on and deployment.plan is not None:
            if deployment.trial:
                self._changed(self.stragglers.took(deployment.plan, seconds, 0), deployment.plan, seconds)
            else:
                self._judge(deployment.plan, seconds, load)

    def _judge(self, plan: Plan, seconds: Mapping[int, float], load: int) -> None:
        """Parts that are no trial took so long."""
        self._changed(self.stragglers.took(plan, seconds, load), plan, seconds)
        for part in seconds:
            site = plan.parts[part].node, plan.parts[part].device
            if site in self._slow and self._slow[site].tried and self.stragglers.ran_slowly(site):
                self._slow[site].sure = True

    def late(self, deployment: Deployment, part: int, took_s: float, calls: int) -> None:
        """A part runs for so long and is not done."""
        if self._on and deployment.plan is not None and part not in deployment.plan.ranks:
            load = 0 if deployment.trial else self.load(calls)
            changes = self.stragglers.late(deployment.plan.parts[part], took_s, load)
            self._changed(changes, deployment.plan, (part,))

    def forget(self, node: str) -> None:
        """The node is gone, or began anew."""
        self.stragglers.forget(node)
        self.calibration.forget(node)
        for site in [site for site in self._slow if site[0] == node]:
            del self._slow[site]

    def _changed(self, changes: Collection[str], plan: Plan, parts: Collection[int]) -> None:
        for text in changes:
            self._lent.tell("pace", plan.parts[next(iter(parts))].node, text)
        if changes:
            self._lent.forget()
            self._watch_slow()

    # -- replacing plans

    def evidence(self, program: Program) -> Evidence:
        """What is known that plans of a program follow from: another one asks for another look."""
        return self.stragglers.verdicts, self._lent.experience(program) if self._on else ()

    def is_settled(self, deployment: Deployment) -> bool:
        """Whether nothing is known now that was not when a plan was made or looked at last."""
        return deployment.settled == self.evidence(deployment.program)

    async def finished(self, generation: int, deployment: Deployment) -> None:
        """A call ran by a plan: replace it for later ones, if another has become so much better that it pays."""
        plan, program = deployment.plan, deployment.program
        if plan is None or plan.audit is not None or self.is_settled(deployment):
            return
        if deployment.trial or program in self._asked or not self.sure:
            return
        evidence = self.evidence(program)
        if deployment.settled[0] == evidence[0] and not may_pay(plan, deployment.settled[1], evidence[1]):
            deployment.settled = evidence
            return
        self._asked.add(program)
        try:
            other = await self._lent.planned(program)
        except MeshError as error:
            log.debug("no other plan: %s", error)
            return
        finally:
            self._asked.discard(program)
        profiles, debt = self._lent.profiles(), self._debts.of(program)
        if not {part.node for part in other.parts} <= {worker.node_id for worker in profiles.workers}:
            return  # a worker left meanwhile
        prices = self._prices(deployment, plan, other, profiles)
        if prices is None:
            return
        now_s, then_s = prices
        if not debt.gains(now_s, then_s):
            deployment.settled = evidence
            return
        compiled = other.candidate in dict(other.measured)  # calls ran by it before
        compile_s = max((result.compile_s for result in deployment.results.values() if not compiled), default=0.0)
        cost_s = move_s(other, profiles, lambda node: self._lent.holds(node, program), compile_s)
        if not debt.stays(now_s - then_s, cost_s, self._now()):
            times = f"{time_text(then_s)} a call instead of {time_text(now_s)}"
            self._lent.tell("moved", "", f"another plan takes {times}, for {time_text(cost_s)} of moving")
            self._lent.replaced(generation)

    def _prices(
        self, deployment: Deployment, plan: Plan, other: Plan, profiles: Profiles
    ) -> tuple[float, float] | None:
        """The seconds of a call by both plans: by what parts take where the pace of a device changed, since runs of
        before say that; else by what calls took.  None as long as that is not known of the plan that is used."""
        measured, paced = dict(other.measured), deployment.settled[0] != self.stragglers.verdicts
        if measured and not paced and plan.candidate != other.candidate:
            known = measured.get(plan.candidate)
            return None if known is None else (known, other.seconds)
        now_s, then_s = (timeline(each, profiles, self.stragglers.expected_s).seconds for each in (plan, other))
        return now_s, then_s

    # -- trying slow devices

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as trials:
            while True:
                for site, slow in self._slow.items():
                    if slow.due_s <= self._now():
                        slow.due_s = math.inf
                        trials.create_task(self._try(site, slow))
                due_s = min((slow.due_s for slow in self._slow.values()), default=math.inf)
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(None if due_s == math.inf else due_s):
                        await self._news.wait()

    async def _try(self, site: DeviceKey, slow: _Slow) -> None:
        """Try a slow device as often as a verdict needs; again later, unless it is well."""
        with isolated("trying a slow device"):  # a fault of this process keeps no other device from its trial
            await self._try_now(site, slow)
        slow.due_s, slow.wait_s = self._now() + slow.wait_s, min(slow.wait_s * 2, RETRY_S_MAX)
        self._news.set()

    async def _try_now(self, site: DeviceKey, slow: _Slow) -> None:
        if slow.tried and not slow.sure:  # it has no work any more, so nobody knows
            self.stragglers.pardon(site)
            self._watch_slow()
        for _ in range(SEEN if slow.tried else KNOWN_MIN):
            if self._slow.get(site) is not slow:
                return
            self.trials += 1
            try:
                await self._lent.run(slow.trial)
            except MeshError as error:
                log.debug("trying device %d of %s: %s", site[1], site[0], error)
                return
            finally:
                self.trials -= 1
        slow.tried = True

    def _watch_slow(self) -> None:
        slow = dict(self.stragglers.slow())
        for site in self._slow.keys() - slow.keys():
            del self._slow[site]
        devices = {
            (worker.node_id, device.index): device
            for worker in self._lent.profiles().workers
            for device in worker.devices
        }
        for site in slow.keys() & devices.keys() - self._slow.keys():
            device = devices[site]
            gflops = device.gflops * device.slower
            self._slow[site] = _Slow(Trial(_little_program(gflops), *site), self._now())
        self._news.set()


def trial_plan(trial: Trial, profiles: Profiles) -> Plan:
    """The trial's program on its device, and nowhere else.  PlacementError where that is gone or cannot."""
    workers = tuple(
        replace(worker, devices=tuple(_alone(device, trial.device) for device in worker.devices))
        for worker in profiles.workers
        if worker.node_id == trial.node
    )
    return make_plan(trial.program.graph, replace(profiles, workers=workers), "single")


def _alone(device: DeviceProfile, index: int) -> DeviceProfile:
    return device if device.index == index else replace(device, dtypes_by_op={})


def _little_program(gflops: float) -> Program:
    """Matrix products that take TRIAL_S at `gflops` GFLOP/s, of nothing that would have to be sent."""
    width = next(width for bound, width in WIDTHS if gflops <= bound)
    layers = math.ceil(TRIAL_S * gflops * 1e9 / (2 * width**3))
    return _products(width, min(max(layers, 1), TRIAL_LAYERS_MAX))


@lru_cache(PROGRAMS_REMEMBERED)
def _products(width: int, layers: int) -> Program:
    made = GraphBuilder()
    value = first = made.add("iota", shape=(width, width), dtype=F32.name, axis=0)
    for _ in range(layers):
        product = made.add("dot", value, first, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
        value = made.add("sin", product)
    total = made.add("reduce_sum", value, axes=(0, 1))
    return Program(made.build([total]), {}, "single")
