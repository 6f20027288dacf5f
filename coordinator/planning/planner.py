"""make_plan: from a graph and the machines to a Plan.  A pure function.

The graph is simplified first (`wire/passes/simplify.py`): the values stay the same to the bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from wire.collector import collector_paused
from wire.errors import PlacementError
from wire.ir.graph import WireGraph
from wire.passes.simplify import simplify
from wire.passes.unroll_spmd import unroll
from wire.policy.redundancy import copies_of
from wire.policy.strategies import (
    Auto,
    DataParallel,
    DeviceMap,
    Pipeline,
    Ranks,
    Single,
    Split,
    Strategy,
    strategy_of,
)
from wire.sharding.partition import partition
from wire.units import counted, size_text, time_text

from .auto_strategy import CandidatePlans, Measured, SplitPrograms, add_splits, whole_name
from .model.chosen_workers import chosen_profiles, for_chosen
from .model.cost_model import CostModel, PartSketch, Prediction
from .model.device_constraints import by_worker, pins
from .model.memory_check import does_not_fit, missing, tightened
from .model.plan import REASONS_MAX, Candidate, Plan
from .model.plan_builder import plan_of
from .model.profiles import Profiles
from .model.reproducible import check_split, may_split, reproducible_profiles, with_exclusions
from .model.subgraphs import output_source, parts_of
from .pipeline.pipeline_planner import plan_pipeline
from .placement.device_map import named_workers, placed_by_map
from .placement.partition import Partitioner
from .redundancy.redundancy_memory import replicas_kept, share_of, weights_kept, with_copies
from .spmd.rank_planner import plan_ranks
from .spmd.split_strategies import CarriedParams, counts, rates_of, split
from .spmd.uneven_ranks import plan_shares


@dataclass(frozen=True, slots=True)
class Question:
    """All that a plan follows from: equal questions have equal plans.  `copies` are those of its params; `measured` is
    what calls by plans of `auto` took on these workers."""

    graph: WireGraph
    strategy: str
    profiles: Profiles
    copies: str = "checkpoint"
    measured: Measured = ()

    def answer(self) -> Plan:
        """The plan, with room for its copies if there is such a one (`redundancy/redundancy_memory.py`); PlacementError
        if nothing fits."""
        copies, profiles, programs = copies_of(self.copies), self.profiles, SplitPrograms()
        make = partial(self._make, programs=programs)  # which follow from the workers' speeds, not from their memory
        if not profiles.workers or not (copies.on_workers or copies.on_devices):
            return make(profiles)
        if copies.on_workers:
            share = share_of(copies, len(profiles.workers))
            return with_copies(make, profiles, self.copies, weights_kept(profiles, self.copies), share)
        return self._with_replicas()

    def _make(self, profiles: Profiles, programs: SplitPrograms | None = None) -> Plan:
        measured = self.measured if len(profiles.workers) == len(self.profiles.workers) else ()
        return make_plan(self.graph, profiles, self.strategy, measured=measured, programs=programs)

    def _with_replicas(self) -> Plan:
        plan, profiles, standby = self._make(self.profiles), self.profiles, dict[str, Plan]()
        for worker in profiles.workers if len(profiles.workers) > 1 else ():
            if all(part.node != worker.node_id for part in plan.parts):
                continue
            try:
                standby[worker.node_id] = self._make(profiles.without(worker.node_id))
            except PlacementError as error:
                lacking = f"copies replica cannot be kept: without {worker.name}, {error.message}"
                return replace(plan, unkept=(lacking, error.next_step), reasons=(*plan.reasons, lacking))
        return with_copies(lambda _: plan, profiles, self.copies, replicas_kept(standby), 1.0)


def make_plan(
    graph: WireGraph,
    profiles: Profiles,
    strategy: str = "auto",
    carries: CarriedParams = (),
    measured: Measured = (),
    programs: SplitPrograms | None = None,
) -> Plan:
    """The plan for one call of `graph`; `strategy` is the text of one (wire/policy/strategies.py).

    `carries` are params with the position of the output that is to lie as they do, where a strategy splits the program.
    `measured` are the seconds that calls took on these workers by plans that `auto` chose before, by candidate, and
    `programs` what it split the graph into before, for workers that may have had other memory.

    PlacementError with need and have per worker if nothing fits, InputError for a strategy that is not known.
    """
    parsed = strategy_of(strategy)
    if not profiles.workers:
        raise PlacementError("there is no worker to plan for", next_step="Start mesh-worker")
    graph = by_worker(graph, profiles)
    if parsed.workers:
        rest = replace(parsed, workers=())
        chosen = chosen_profiles(profiles, parsed)
        return for_chosen(make_plan(graph, chosen, rest.text, carries, measured, programs), parsed)
    with collector_paused():
        if not parsed.reproducible:
            return _make(simplify(graph), profiles, parsed, carries, measured, programs=programs)
        alike = reproducible_profiles(profiles, graph, parsed)
        check_split(parsed, alike, graph)
        plan = _make(simplify(graph), alike, parsed.plain, carries, measured, reproducible=True, programs=programs)
        return with_exclusions(plan, parsed, profiles, graph)


def _make(
    graph: WireGraph,
    profiles: Profiles,
    strategy: Strategy,
    carries: CarriedParams,
    measured: Measured,
    reproducible: bool = False,
    programs: SplitPrograms | None = None,
) -> Plan:
    whole = graph
    if isinstance(strategy, Split):
        return _split(graph, profiles, replace(strategy, reproducible=reproducible), carries)
    if isinstance(strategy, Pipeline) and (staged := _in_stages(graph, profiles, strategy, carries)) is not None:
        return staged
    if isinstance(strategy, Auto | Ranks) and any(node.op == "constraint" for node in graph.nodes):
        rates, in_order = rates_of(profiles), reproducible and may_split(profiles, graph)
        graph = simplify(partition(graph, rates=None if reproducible else rates, in_order=in_order))
        whole = graph if reproducible else whole
    if not graph.has_spmd and isinstance(strategy, Auto):
        splits = not reproducible or may_split(profiles, graph)
        drafts = CandidatePlans(profiles, strategy, measured=measured)
        add_all(drafts, graph, profiles, replace(strategy, reproducible=reproducible), carries, splits, programs)
        return drafts.best()
    if not graph.has_spmd:
        return _whole(graph, profiles, strategy)
    return _with_all(_plan_of_ranks(graph, whole, profiles, strategy, carries), profiles, strategy)


def _plan_of_ranks(
    graph: WireGraph, whole: WireGraph, profiles: Profiles, strategy: Strategy, carries: CarriedParams
) -> Plan:
    """A program that has ranks: each on a device of its own, or all of them as one program, as that was written."""
    why = "nobody asked for ranks apart"
    if isinstance(strategy, Auto | Ranks) and any(node.op == "spmd" for node in graph.nodes):
        try:
            return plan_ranks(graph, profiles, strategy.text, state=[name for name, _ in carries])
        except PlacementError as error:
            if isinstance(strategy, Ranks):
                raise
            why = error.message
    plan = _whole(simplify(unroll(whole)), profiles, strategy)
    return replace(plan, reasons=(*plan.reasons, f"all ranks are computed as one program, since {why}"))


def _with_all(plan: Plan, profiles: Profiles, strategy: Strategy) -> Plan:
    """Check that a plan gives every worker work if that was asked for; PlacementError if it does not."""
    used = len({part.node for part in plan.parts})
    if isinstance(strategy, Auto) and strategy.use_all and used < len(profiles.workers):
        raise PlacementError(
            f"the ranks of this program give {used} of {len(profiles.workers)} workers work",
            next_step="Make it of more ranks, or leave out use_all",
        )
    return plan


def add_all(
    drafts: CandidatePlans,
    graph: WireGraph,
    profiles: Profiles,
    strategy: Auto,
    carries: CarriedParams = (),
    splits: bool = True,
    programs: SplitPrograms | None = None,
) -> None:
    """Every plan of a program without ranks that may be the best one; PlacementError if not even one can be made."""
    refusal, searches = None, Searches()
    try:
        plan = _whole(graph, profiles, Pipeline() if strategy.use_all else Auto(), searches)
        drafts.add(whole_name(plan), plan)
        if drafts.made[-1].workers > 1 and not strategy.use_all:
            _add_single(drafts, graph, profiles, searches)
    except PlacementError as error:
        refusal = error
    if splits:
        add_splits(drafts, graph, profiles, strategy, carries, programs)
    if refusal is not None:
        if not drafts.made:
            raise refusal
        drafts.leave_out("single", refusal.message)


def _add_single(drafts: CandidatePlans, graph: WireGraph, profiles: Profiles, searches: Searches) -> None:
    """The plan of one worker beside a cut that is predicted to take less: calls may show otherwise."""
    with contextlib.suppress(PlacementError):
        alone = _whole(graph, profiles, Single(), searches)
        if whole_name(alone) == "single":
            drafts.add("single", alone)


def _in_stages(graph: WireGraph, profiles: Profiles, strategy: Pipeline, carries: CarriedParams) -> Plan | None:
    """The plan of a training step; None for another program, which is cut by what one call takes."""
    plan = plan_pipeline(graph, profiles, strategy, carries)
    if plan is None and strategy != Pipeline():
        raise PlacementError(
            f"this program has no loop over {strategy.micro_batches} micro-batches that could go through stages",
            next_step="Give a DistributedTrainer this strategy, or choose Pipeline()",
        )
    return plan


def _split(graph: WireGraph, profiles: Profiles, strategy: Split, carries: CarriedParams) -> Plan:
    """The fastest plan for any number of ranks that may be tried; PlacementError if none fits."""
    if isinstance(strategy, DataParallel) and strategy.by_speed:
        if carries:
            raise PlacementError("a session's state is not shared out by speed", next_step="Choose DataParallel()")
        return plan_shares(graph, strategy, profiles)
    plans: dict[int, Plan] = {}
    refusals: list[PlacementError] = []
    for ranks in counts(strategy, profiles):
        try:
            made = simplify(split(graph, strategy, ranks, profiles, carries))
            plans[ranks] = plan_ranks(made, profiles, strategy.plain.text)
        except PlacementError as error:
            refusals.append(error)
    if not plans:
        raise refusals[0]
    best = min(plans.values(), key=lambda plan: plan.seconds)
    others = (f"{ranks} would take {time_text(other.seconds)}" for ranks, other in plans.items() if other is not best)
    return replace(best, reasons=(*best.reasons, *others))


class Searches(dict[Profiles, Partitioner]):
    """The searches of one graph, by the workers and budgets that they are for; strategies share most of a search."""

    def of(self, graph: WireGraph, budgets: Profiles) -> Partitioner:
        if budgets not in self:
            self[budgets] = Partitioner(CostModel(graph, budgets))
        return self[budgets]


def _whole(graph: WireGraph, profiles: Profiles, strategy: Strategy, searches: Searches | None = None) -> Plan:
    """The plan of a graph without ranks."""
    text, searches = strategy.text, Searches() if searches is None else searches
    if isinstance(strategy, Ranks):
        raise PlacementError(
            "this program has no ranks", next_step="Make it of mesh.shard_map, or choose another strategy"
        )
    named = {device.worker for device in pins(graph).values()}
    if isinstance(strategy, DeviceMap):
        return _fitting(graph, named_workers(profiles, strategy, named), text, len(profiles.workers), searches)
    count = len(profiles.workers) if isinstance(strategy, Pipeline) else CANDIDATES_MAX
    while count < len(profiles.workers):
        try:
            return _fitting(graph, profiles.best(count, named), text, len(profiles.workers), searches)
        except PlacementError:
            count *= 2
    return _fitting(graph, profiles, text, len(profiles.workers), searches)


CANDIDATES_MAX = 16  # workers among which to choose; of many more, none but the best are looked at unless they must be


def _fitting(graph: WireGraph, profiles: Profiles, strategy: str, known: int, searches: Searches) -> Plan:
    """The best plan that fits; PlacementError if there is none.  `known` workers there are in all."""
    budgets = profiles
    refusals = []
    for _ in range(BUDGETS_TRIED_MAX):
        plan, prediction = _draft(graph, profiles, budgets, strategy, known, searches)
        short = missing(plan, profiles)
        if not any(short):
            return plan
        refusals.append(does_not_fit(plan, short))
        if not prediction.fits:
            break
        budgets = tightened(budgets, short, prediction.memory_bytes)
    raise refusals[0]


BUDGETS_TRIED_MAX = 4  # a part may hold slightly more than was predicted of it


def _draft(
    graph: WireGraph, profiles: Profiles, budgets: Profiles, strategy: str, known: int, searches: Searches
) -> tuple[Plan, Prediction]:
    """The best plan under these budgets, or the one that lacks least; the profiles have the real ones."""
    partitioner, parsed = searches.of(graph, budgets), strategy_of(strategy)
    model = partitioner.model
    if isinstance(parsed, DeviceMap):
        model, assignment = placed_by_map(model, parsed)
        partitioner = Partitioner(model)
    else:
        _, assignment = partitioner.best(strategy)
    prediction, sketches = model.arrange(assignment)
    parts, place = parts_of(model, sketches)
    outputs = tuple(output_source(graph, index, place) for index in graph.outputs)
    plan = plan_of(graph, parts, profiles, strategy, outputs, prediction)
    reasons = (*_reasons(partitioner, strategy, prediction, sketches, known), *_relays(profiles, plan))
    candidates = _compared_with(partitioner) if strategy == "auto" and model.index.units else ()
    return replace(plan, reasons=reasons, candidates=candidates), prediction


# -- the rest of a plan -----------------------------------------------------------------------------------


def _reasons(
    partitioner: Partitioner, strategy: str, chosen: Prediction, sketches: Sequence[PartSketch], known: int
) -> list[str]:
    """The reasons for the plan, a sentence each."""
    model = partitioner.model
    workers = model.profiles.workers
    used = sorted({part.site[0] for part in sketches})
    names = ", ".join(workers[worker].name for worker in used) or "none"
    reasons = [f"{len(used)} of {known} workers ({names}), predicted {time_text(chosen.seconds)} per call"]
    if strategy.startswith(DeviceMap.word):
        return [*reasons, "every layer where the device map says", *_detours(model, sketches)][:REASONS_MAX]
    if known > len(workers):
        reasons.append(f"chosen among the {len(workers)} fastest and roomiest")
    if strategy == "auto" and partitioner.exact:
        units, where = counted(len(model.index.units), "group"), counted(len(workers), "worker")
        reasons.append(f"the cheapest of all ways to place {units} of nodes on {where}")
    if strategy != "pipeline" and 0 < len(used) < len(workers):
        which = f"all {known} workers" if known == len(workers) else f"those {len(workers)}"
        reasons.append(_compared(f"cut across {which}", partitioner.pipeline[0], chosen))
    if strategy != "single" and len(used) > 1:
        reasons.append(_compared("on one worker", partitioner.single[0], chosen))
    return [*reasons, *_detours(model, sketches)][:REASONS_MAX]


def _compared_with(partitioner: Partitioner) -> tuple[Candidate, ...]:
    """The proposals that the cheapest placement was compared with."""
    by_name: dict[str, Candidate] = {}
    for prediction, assignment in (partitioner.pipeline, partitioner.single):
        workers = len(set(assignment))
        name = f"cut {workers}" if workers > 1 else "single"
        seconds, why = (prediction.seconds, "") if prediction.fits else (None, NO_ROOM)
        by_name[name] = Candidate(name, seconds, workers, why)
    return tuple(by_name.values())


NO_ROOM = "does not fit into the workers' memory"


def _compared(what: str, other: Prediction, chosen: Prediction) -> str:
    if not other.fits:
        return f"{what} it would need {size_text(sum(other.short_bytes))} more than there are"
    times = other.seconds / chosen.seconds
    return f"{what} a call would take {'about' if 0.95 < times < 1.05 else f'{times:.2g} times'} as long"


def _relays(profiles: Profiles, plan: Plan) -> list[str]:
    """The tensors that go through the coordinator, and what that is predicted to take."""
    names = {worker.node_id: worker.name for worker in profiles.workers}
    sizes: dict[tuple[str, str], int] = {}
    for edge in plan.edges:
        way = plan.parts[edge.source.part].node, plan.parts[edge.part].node
        if profiles.link(*way).relayed:
            sizes[way] = sizes.get(way, 0) + edge.size_bytes
    return [
        f"{names[source]} and {names[target]} cannot connect: {size_text(size_bytes)} per call go through the "
        f"coordinator, predicted {time_text(profiles.link(source, target).seconds(size_bytes))}"
        for (source, target), size_bytes in sizes.items()
    ]


def _detours(model: CostModel, sketches: Sequence[PartSketch]) -> list[str]:
    """Sentences about what does not run on a worker's first device though nobody said so, and why."""
    workers = model.profiles.workers
    detours: dict[str, None] = {}
    for part in sketches:
        worker, device = part.site
        if device:
            for index in (
                model.index.units[unit] for unit in part.units if model.index.units[unit] not in model.pinned
            ):
                what = f"{model.graph.nodes[index].op} on {model.graph.types[index].dtype.name}"
                first, other = workers[worker].devices[0].engine, workers[worker].devices[device].engine
                detours[f"{workers[worker].name} computes {what} on {other}, because its {first} device cannot"] = None
    return list(detours)
