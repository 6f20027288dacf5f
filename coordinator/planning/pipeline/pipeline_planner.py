"""Pipeline planner: the plan of a training step over stages of workers, micro-batch after micro-batch.  A pure
function.

The step has one loop over micro-batches (microbatch_loop.py).  It is cut into stages (stage_search.py), and each stage
is two parts for every micro-batch, forward and backward, of two graphs: so each is compiled once.  A worker does its
parts in the order of the schedule (wire/policy/pipeline_schedules.py), and what goes from stage to stage goes from
worker to worker.  What a stage needs again when it goes back stays on its device; what a tensor of the state becomes is
made where it is read.

Around the loop, each stage has a part for what it needs of inputs before it, and some for what the step does after it.
A tensor of the state that several stages read is held by the one that makes its next value, which sends it to others.

With `data` above 1 there are `data` columns, each a separate pipeline with every `data`-th micro-batch.  Columns
send each other what their loops add up, and each does what comes after for itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from wire.errors import InputError, PlacementError
from wire.ir.graph import WireGraph, const_value
from wire.ir.ops import LEAVES
from wire.policy.pipeline_schedules import SCHEDULES
from wire.policy.strategies import Pipeline

from ..model.cost_model import CostModel
from ..model.memory_check import does_not_fit, missing
from ..model.plan import Plan
from ..model.profiles import Profiles
from ..model.unit_work import needs
from ..spmd.rank_placement import Site
from ..spmd.split_strategies import CarriedParams
from .epilogue import Epilogue, gradient_consts
from .microbatch_loop import CARRY, FOLDED, FORWARD, Line, Loop, loop_of
from .stage_builder import StageBuilder
from .stage_search import Load, Stages, Team, best_stages

PLACES_MAX = 160  # places that are looked at when the line is cut
PLANS_MAX = 3  # numbers of stages of which plans are made, those first that look best
STATE_VALUES = 4  # of a large state: of steps in flight, and one that is made
MESSAGE_BYTES = 1 << 16  # what takes as long to send as the message for a tensor


def plan_pipeline(graph: WireGraph, profiles: Profiles, strategy: Pipeline, carries: CarriedParams = ()) -> Plan | None:
    """The plan of a step with a loop over `strategy.micro_batches` that reads params, None if it has none.

    PlacementError with need and have where there are too few workers or too little memory.
    """
    loop = loop_of(graph, strategy.micro_batches)
    if loop is None or not any(graph.nodes[operand].op == "param" for operand in loop.operands):
        return None
    return _Planner(graph, loop, profiles, strategy, carries).plan()


class _Planner:
    """Chooses stages, and makes the plan of them."""

    def __init__(
        self, graph: WireGraph, loop: Loop, profiles: Profiles, strategy: Pipeline, carries: CarriedParams
    ) -> None:
        self._graph, self._loop, self._profiles, self._strategy = graph, loop, profiles, strategy
        self._carries = dict(carries)
        self._line = Line(loop, gradient_consts(graph, loop, self._carries))
        self._schedule = SCHEDULES[strategy.schedule]
        if self._schedule.updates != bool(self._line.marked):
            how = "after each micro-batch" if self._line.marked else "once"
            raise InputError(f"this step changes its weights {how}, which the schedule {strategy.schedule!r} does not")
        if strategy.data > 1 and not (self._line.sums and _from_zero(graph, loop)):
            raise InputError("copies of stages share the micro-batches of a loop that adds up from 0, and no other")
        self._epilogue = Epilogue(graph, loop, self._line, self._carries)
        self._load = self._measured()
        self._sites = self._able()
        self._teams = self._teamed()

    def plan(self) -> Plan:
        """The fastest plan of any number of stages that may be tried."""
        plans: list[Plan] = []
        refusal: PlacementError | None = None
        proposed = [stages for count in self._counts() if (stages := self._stages(count)) is not None]
        for stages in sorted(proposed, key=self._bound_s)[:PLANS_MAX]:
            plan = StageBuilder(
                self._graph, self._line, self._epilogue, stages, self._columns(stages), self._strategy, self._profiles
            ).plan()
            short = missing(plan, self._profiles)
            if any(short):
                refusal = refusal or does_not_fit(plan, short)
            else:
                plans.append(plan)
        if not plans:
            raise refusal or PlacementError(
                f"no {self._strategy.stages or 'number of'} stages fit the workers' memory",
                next_step="Raise --max-memory, add a worker, or make more micro-batches",
            )
        return min(plans, key=lambda plan: plan.seconds)

    def _bound_s(self, stages: Stages) -> float:
        """The seconds that a step takes at least."""
        return (self._strategy.micro_batches / self._strategy.data + len(stages.teams) - 1) * stages.slowest_s

    def _counts(self) -> Iterator[int]:
        places = self._load.stages_max
        most = min(len(self._teams), places)
        least = self._strategy.stages or (1 if self._strategy.data > 1 else min(2, most))
        if places < least:
            raise PlacementError(
                f"the loop of this program can be cut into {places} stages at most, and {least} were asked for",
                next_step="Ask for fewer stages; what is inside of one branch or loop stays together",
            )
        if most < max(least, 1):
            what = (
                f"{least} stages of {self._strategy.data} workers each"
                if self._strategy.data > 1
                else f"{least} stages"
            )
            raise PlacementError(
                f"{what} need {least * self._strategy.data} workers that compute all of the program, and there are "
                f"{len(self._sites)}",
                next_step="Start another mesh-worker, or ask for fewer stages",
            )
        yield from (least,) if self._strategy.stages else range(least, most + 1)

    def _able(self) -> list[Site]:
        """The first device of every worker that computes all of the program."""
        graph = self._graph
        computed = (index for index, node in enumerate(graph.nodes) if node.op not in LEAVES)
        wanted = frozenset().union(*(needs(graph, index) for index in computed))
        sites = []
        for worker in self._profiles.workers:
            if all(need.op in worker.ops for need in wanted):
                able = (device for device in worker.devices if all(device.supports(*need) for need in wanted))
                sites += [Site(worker, device) for device in itertools.islice(able, 1)]
        return sites

    def _teamed(self) -> list[tuple[Team, tuple[Site, ...]]]:
        """Sites that compute a stage together, those that are about as fast."""
        alone = tuple(replace(site.worker, devices=(replace(site.device, index=0),)) for site in self._sites)
        if not alone:
            return []
        model = CostModel(self._loop.body, replace(self._profiles, workers=alone))
        place, size = self._line.place, self._line.length
        units = [(unit, place[index]) for unit, index in enumerate(model.index.units) if index in place]
        work = []
        for seconds in model.seconds:
            mine = np.zeros(size)
            np.add.at(mine, [at for _, at in units], [seconds[unit] for unit, _ in units])
            work.append(mine)
        order = sorted(range(len(alone)), key=lambda site: float(work[site].sum()))
        columns = self._strategy.data
        teams = []
        for first in range(0, len(order) - columns + 1, columns):
            chosen = order[first : first + columns]
            sites = tuple(self._sites[number] for number in chosen)
            memory = min(min(site.worker.memory_bytes, site.device.memory_bytes) for site in sites)
            dispatch_s = 2 * max(site.device.dispatch_s for site in sites)
            slowest = np.max([work[number] for number in chosen], axis=0)
            teams.append((Team(tuple(chosen), slowest, dispatch_s, memory), sites))
        return teams

    # -- where to cut

    def _measured(self) -> Load:
        """The load of every place: what it holds, and what crosses before it."""
        line, body, size = self._line, self._loop.body, self._line.length
        weights = np.zeros(size)
        for index in line.place:
            if line.roles[index] == FORWARD:
                weights[line.place[index]] += sum(self._is_param(operand) for operand in line.placed_operands(index))
        up, down, flying, fixed = np.zeros(size + 1), np.zeros(size + 1), np.zeros(size), np.zeros(size)
        readers: dict[int, list[int]] = {}
        for index in line.place:
            for operand in line.placed_operands(index):
                readers.setdefault(operand, []).append(index)
                while (
                    body.nodes[operand].op in FOLDED and line.roles[operand] == FORWARD and body.nodes[operand].inputs
                ):
                    operand = body.nodes[operand].inputs[0]
                    readers.setdefault(operand, []).append(index)
        for index, mine in readers.items():
            if index not in line.place or (body.nodes[index].op in FOLDED and line.roles[index] == FORWARD):
                continue
            own, size_bytes = line.place[index], body.types[index].size_bytes
            places = [line.place[reader] for reader in mine]
            if line.roles[index] == FORWARD:
                up[own + 1 : max(places) + 1] += size_bytes + MESSAGE_BYTES
                back = [line.place[reader] for reader in mine if line.roles[reader] != FORWARD]
                if back:
                    flying[max(back)] += size_bytes
            else:
                down[min(places) + 1 : own + 1] += size_bytes + MESSAGE_BYTES
        for output in body.outputs:
            if output in line.place:
                fixed[line.place[output]] += 2 * body.types[output].size_bytes
        for name, kind in self._graph.param_types.items():
            if name in self._carries:
                fixed[self._epilogue.owner.get(name, 0)] += STATE_VALUES * kind.size_bytes
        open_ = np.ones(size, bool)
        for first, last, size_bytes in self._spans():
            if self._schedule.updates:  # each stage changes its own weights, and has the versions that it reads
                open_[first + 1 : last + 1] = False
            up[first + 1 : last + 1] += (size_bytes + MESSAGE_BYTES) / self._loop.turns
        return Load(weights, fixed, flying, up[:-1], down[:-1], open_)

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """The first and last place that each tensor of the state has to do with, and its bytes: stages between which it
        is cut send it each other."""
        line, readers = self._line, dict[int, list[int]]()
        for index in line.place:
            if line.roles[index] == FORWARD:
                for operand in line.placed_operands(index):
                    if self._is_param(operand):
                        readers.setdefault(operand, []).append(line.place[index])
        for index, places in readers.items():
            name = self._graph.nodes[self._loop.operand(line.leaves[index])].attrs["name"]
            if name in self._epilogue.owner:
                places.append(self._epilogue.owner[name])
                yield min(places), max(places), line.body.types[index].size_bytes

    def _is_param(self, index: int) -> bool:
        leaf = self._line.leaves.get(index)
        return leaf is not None and self._graph.nodes[self._loop.operand(leaf)].op == "param"

    def _stages(self, count: int) -> Stages | None:
        teams = [team for team, _ in self._teams]
        groups = self._groups(teams)
        merged = _merged(self._load, groups)
        fewer = [replace(team, seconds=np.add.reduceat(team.seconds, groups)) for team in teams]
        turns = -(-self._strategy.micro_batches // self._strategy.data)
        best = best_stages(
            merged, fewer, count, self._send_s,
            lambda behind: self._schedule.in_flight(0, behind + 1, turns),
        )  # fmt: skip
        if best is None:
            return None
        ends = (*groups, self._line.length)
        return Stages(tuple(int(ends[cut]) for cut in best.cuts), best.teams, best.slowest_s)

    def _groups(self, teams: Sequence[Team]) -> list[int]:
        """The first places of at most PLACES_MAX groups of places, each where least crosses."""
        size = self._line.length
        if size <= PLACES_MAX:
            return list(range(size))
        work = np.cumsum(teams[0].seconds)
        which = np.minimum((work / max(work[-1], 1e-12) * PLACES_MAX).astype(int), PLACES_MAX - 1)
        crossing = np.where(self._load.open, self._load.up_bytes + self._load.down_bytes, np.inf)
        begins = [0]
        for group in range(1, PLACES_MAX):
            mine = np.flatnonzero(which == group)
            mine = mine[mine > begins[-1]]
            if len(mine):
                begins.append(int(mine[np.argmin(crossing[mine])]))
        return begins

    def _send_s(self, source: int, target: int, size_bytes: float) -> float:
        """Seconds between two teams, at worst: columns do not cross."""
        pairs = zip(self._teams[source][1], self._teams[target][1], strict=True)
        ways = (self._profiles.link(one.worker.node_id, other.worker.node_id) for one, other in pairs)
        return max(link.seconds(int(size_bytes)) for link in ways)

    def _columns(self, stages: Stages) -> list[tuple[Site, ...]]:
        """The sites of every column's stages."""
        return list(zip(*(self._teams[team][1] for team in stages.teams), strict=True))


def _merged(load: Load, groups: Sequence[int]) -> Load:
    held = (load.weights, load.fixed_bytes, load.flying_bytes)
    weights, fixed, flying = (np.add.reduceat(by_place, groups) for by_place in held)
    return Load(weights, fixed, flying, load.up_bytes[groups], load.down_bytes[groups], load.open[groups])


def _from_zero(graph: WireGraph, loop: Loop) -> bool:
    for carry in range(loop.carry):
        node = graph.nodes[loop.operand((CARRY, carry))]
        node = graph.nodes[node.inputs[0]] if node.op == "broadcast" else node
        if node.op != "const" or any(const_value(node, graph.blobs).tobytes()):
            return False
    return True
