"""Auto strategy: the plans that `auto` chooses among, each with what it is predicted to take.  Pure.

They are one worker, a cut across all of them, the cheapest placement of single nodes, and the program split along one
axis or two, over several numbers of ranks.  All are judged by the same timeline, and those by which the program was
called already by what its calls took.  What cannot be better than the best one so far, by a bound that costs nothing,
is not made; the reasons name every strategy, made or not.

To add a strategy: how it is made here (`_splits`), and its class in wire/policy/strategies.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from wire.errors import InputError, PlacementError
from wire.ir.graph import WireGraph
from wire.passes.simplify import simplify
from wire.policy.batch_shares import uneven
from wire.policy.strategies import Auto, DataParallel, DataTensor, FullySharded, Split, TensorParallel, strategy_of
from wire.sharding.op_cost import Rates
from wire.units import counted, time_text

from .model.plan import REASONS_MAX, Candidate, Plan
from .model.profiles import CLIENT, Profiles, WorkerProfile
from .model.timeline import timeline
from .model.unit_work import graph_seconds
from .spmd.collective_cost import BEGIN_S
from .spmd.rank_planner import plan_ranks
from .spmd.split_strategies import CarriedParams, counts, rates_of, split
from .spmd.uneven_ranks import plan_shares

GAIN_MIN = 0.05  # of a call's time: what saves less is not worth another worker, nor another order of additions
COMMON = 0.25  # as a power: how much of the error of predictions for several workers those for one have, and conversely
BY_SPEED_GAIN_MIN = 0.2  # many parts are dispatched, and are too short to show how well a device is
NODES_MAX = 4_000  # of all programs that are split together: the partitioner takes 0.2 to 0.7 ms for a node
NOTABLE = 2.0  # how many times slower or further away a worker without work is, for a plan's reasons to name it
PROBE_BYTES = 1 << 20
BATCHES_MAX = 3  # sizes of first dimensions that are tried as the batch's


SplitPrograms = dict[tuple[Split, int, Rates], WireGraph]  # of one graph, by strategy, ranks, and how fast these are
Measured = tuple[tuple[str, float], ...]  # of candidates by name: the seconds that calls by their plans took


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """A plan that was made, and what the strategy that it follows is called."""

    name: str
    plan: Plan
    seconds: float

    @property
    def gain_min(self) -> float:
        """What it has to save of a call's time."""
        strategy = strategy_of(self.plan.strategy)
        if isinstance(strategy, DataParallel) and strategy.by_speed:
            return BY_SPEED_GAIN_MIN
        return GAIN_MIN if isinstance(strategy, Split) or self.workers > 1 else 0.0

    @property
    def workers(self) -> int:
        """How many workers have work by it."""
        return len({part.node for part in self.plan.parts})

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.name, self.seconds, self.workers)


class CandidatePlans:
    """Plans of one program as they are made; `accept` may change one, or refuse it with None.

    `measured` are the seconds that calls took by some of them, by their names.
    """

    def __init__(
        self,
        profiles: Profiles,
        strategy: Auto,
        accept: Callable[[Plan], Plan | None] = lambda plan: plan,
        measured: Measured = (),
    ) -> None:
        self.made: list[CandidatePlan] = []
        self.known: list[Candidate] = []  # whose plans were not made, though what they take is known
        self.left_out: list[Candidate] = []
        self._profiles, self._strategy, self._accept = profiles, strategy, accept
        self._measured: Mapping[str, float] = dict(measured)

    def add(self, name: str, plan: Plan) -> None:
        """Make a plan by the strategy of this name."""
        self.known += [candidate for candidate in plan.candidates if candidate.name != name]
        accepted = self._accept(plan)
        if accepted is None:
            self.leave_out(name, "its state would not be made where it is read, or has no room")
        else:
            self.have(name, accepted, as_it_was=accepted is plan and not plan.gangs)

    def have(self, name: str, plan: Plan, as_it_was: bool = True) -> None:
        """Make a plan that was accepted before; its own prediction stands, if it is as it was made."""
        seconds = plan.seconds if as_it_was else timeline(plan, self._profiles).seconds
        self.made.append(CandidatePlan(name, replace(plan, seconds=seconds), seconds))

    def leave_out(self, name: str, why: str) -> None:
        self.left_out.append(Candidate(name, None, 0, why))

    @property
    def best_s(self) -> float:
        return min((draft.seconds for draft in self._fitting()), default=float("inf"))

    def best(self) -> Plan:
        """The plan that takes least, with the others as candidates and reasons; PlacementError if there is none."""
        fitting = self._fitting()
        if not fitting:
            most = max((draft.workers for draft in self.made), default=0)
            raise PlacementError(
                f"no plan gives all {len(self._profiles.workers)} workers work: {most} at most",
                next_step="Leave out use_all, or give the program more to do",
            )
        best = min(fitting, key=lambda draft: draft.seconds / (1 - draft.gain_min))
        compared_with = (*self.known, *(draft.candidate for draft in self._judged()))
        by_name = {candidate.name: candidate for candidate in compared_with}
        compared = sorted(by_name.values(), key=_seconds)
        candidates = (*compared, *self.left_out)
        plan = replace(
            best.plan, strategy=self._strategy.text, how=best.plan.strategy, candidates=candidates,
            seconds=best.seconds, candidate=best.name, measured=tuple(self._measured.items()),
        )  # fmt: skip
        everybody = len(self._profiles.workers)
        rivals = [
            candidate for candidate in candidates if not self._strategy.use_all or candidate.workers in (0, everybody)
        ]
        reasons = (
            *best.plan.reasons,
            *_reasons(best, rivals),
            *self._experience(),
            *_idle(best, candidates, self._profiles),
        )
        return replace(plan, reasons=reasons[:REASONS_MAX])

    def _fitting(self) -> list[CandidatePlan]:
        everybody = len(self._profiles.workers)
        return [draft for draft in self._judged() if not self._strategy.use_all or draft.workers == everybody]

    def _judged(self) -> list[CandidatePlan]:
        """The plans with what they are expected to take: what calls took, else what is predicted, with its error."""
        off = {True: list[float](), False: list[float]()}  # logarithms of errors, of plans for one worker and for more
        for draft in self.made:
            took_s = self._measured.get(draft.name, 0.0)
            if took_s > 0 and draft.seconds > 0:
                off[draft.workers > 1].append(math.log(took_s / draft.seconds))

        def expected_s(draft: CandidatePlan) -> float:
            alike, others = off[draft.workers > 1], off[draft.workers <= 1]
            error = fmean(alike) if alike else COMMON * fmean(others) if others else 0.0
            return self._measured.get(draft.name, draft.seconds * math.exp(error))

        return [replace(draft, seconds=expected_s(draft)) for draft in self.made]

    def _experience(self) -> Iterator[str]:
        """What calls by some of the plans took, for people."""
        if self._measured:
            fastest_first = sorted(self._measured.items(), key=lambda pair: pair[1])
            yield f"calls took {', '.join(f'{time_text(seconds)} by {name}' for name, seconds in fastest_first)}"


def needs_ranks(graph: WireGraph) -> bool:
    """Whether a program says itself how it is split."""
    return graph.has_spmd or any(node.op == "constraint" for node in graph.nodes)


def whole_name(plan: Plan) -> str:
    """What a plan without ranks is called."""
    workers = len({part.node for part in plan.parts})
    return f"cut {workers}" if workers > 1 else "single"


def add_splits(
    drafts: CandidatePlans,
    graph: WireGraph,
    profiles: Profiles,
    auto: Auto,
    carries: CarriedParams = (),
    programs: SplitPrograms | None = None,
) -> None:
    """Split the program in every way that may be better than what there is.  What is among `programs` is not split
    again; what is split is added to them."""
    if len(profiles.workers) < 2:
        return
    programs = {} if programs is None else programs
    left, whole_s = NODES_MAX, _whole_s(graph, profiles)
    for name, strategy, ranks in _splits(drafts, graph, profiles, carries):
        if auto.use_all and ranks < len(profiles.workers):
            continue
        by_speed = isinstance(strategy, DataParallel) and bool(strategy.by_speed)  # then none waits for another
        bound_s = _least_s(graph, profiles, ranks, whole_s) + (0.0 if by_speed else BEGIN_S * ranks)
        if bound_s >= drafts.best_s * (1 - GAIN_MIN):
            drafts.leave_out(name, f"takes {time_text(bound_s)} at least")
            continue
        left -= len(graph)
        if left < 0:
            drafts.leave_out(
                name, f"not tried: a program of {counted(len(graph), 'node')} takes too long to split often"
            )
            continue
        try:
            if isinstance(strategy, DataParallel) and by_speed:
                drafts.add(name, plan_shares(graph, strategy, profiles))
            else:
                exactly = replace(strategy, reproducible=auto.reproducible)
                key = exactly, ranks, rates_of(profiles)
                if key not in programs:
                    programs[key] = simplify(split(graph, exactly, ranks, profiles, carries))
                drafts.add(name, plan_ranks(programs[key], profiles, strategy.text))
        except (InputError, PlacementError) as error:
            drafts.leave_out(name, error.message)


def _splits(
    drafts: CandidatePlans, graph: WireGraph, profiles: Profiles, carries: CarriedParams
) -> Iterator[tuple[str, Split, int]]:
    """Strategies with numbers of ranks, those first that are best most often."""
    batches = _batches(graph)
    many = len(batches) > 1
    for inputs in batches:
        strategy = DataParallel(inputs=inputs)
        of = f" by {inputs[0]}" if many else ""
        yield from ((f"{_name_of(strategy, ranks)}{of}", strategy, ranks) for ranks in _counts(strategy, profiles))
        if not carries and uneven([_speed(worker) for worker in profiles.workers]):
            yield f"data by speed{of}", replace(strategy, by_speed=True), len(profiles.workers)
    if not any(len(kind.shape) > 1 for kind in graph.param_types.values()):
        return
    split = [draft for draft in drafts.made if strategy_of(draft.plan.strategy).word == DataParallel.word]
    best = min(split, key=lambda draft: draft.seconds, default=None)
    chosen = getattr(strategy_of(best.plan.strategy), "inputs", ()) if best else next(iter(batches), ())
    others: list[Split] = [TensorParallel()]
    others += [FullySharded(inputs=chosen), DataTensor(inputs=chosen)] if chosen else []
    for other in others:
        yield from ((_name_of(other, ranks), other, ranks) for ranks in _counts(other, profiles))


def _counts(strategy: Split, profiles: Profiles) -> Iterator[int]:
    try:
        yield from counts(strategy, profiles)
    except PlacementError:
        return


def _name_of(strategy: Split, ranks: int) -> str:
    sizes = " x ".join(map(str, strategy.grid(ranks).values()))
    return f"{strategy.word} {sizes}"


def _batches(graph: WireGraph) -> list[tuple[str, ...]]:
    """Inputs that are as long as each other, those first that have most bytes."""
    by_rows: dict[int, list[str]] = {}
    for name, kind in graph.input_types.items():
        if kind.shape and kind.shape[0] > 1:
            by_rows.setdefault(kind.shape[0], []).append(name)
    sizes = {rows: sum(graph.input_types[name].size_bytes for name in names) for rows, names in by_rows.items()}
    return [tuple(by_rows[rows]) for rows in sorted(by_rows, key=lambda rows: -sizes[rows])][:BATCHES_MAX]


def _least_s(graph: WireGraph, profiles: Profiles, ranks: int, whole_s: Sequence[float]) -> float:
    """The seconds that `ranks` ranks take if the work divides evenly, nothing is exchanged and the fastest devices do
    it.

    `whole_s` is what each worker takes for all of it.
    """
    rates = sorted(whole_s)[:ranks]
    computing_s = 1.0 / sum(1.0 / seconds for seconds in rates) if rates and rates[0] > 0 else 0.0
    nodes = [worker.node_id for worker in profiles.workers]
    feeding_s = min(profiles.link(CLIENT, node).latency_s for node in nodes) if graph.inputs else 0.0
    dispatch_s = min(device.dispatch_s for worker in profiles.workers for device in worker.devices)
    returning_s = min(profiles.link(node, CLIENT).latency_s for node in nodes)
    return computing_s + feeding_s + dispatch_s + returning_s


def _whole_s(graph: WireGraph, profiles: Profiles) -> list[float]:
    """What each worker's fastest device takes for all of it."""
    return [min(graph_seconds(graph, device) for device in worker.devices) for worker in profiles.workers]


def _seconds(candidate: Candidate) -> float:
    return float("inf") if candidate.seconds is None else candidate.seconds


def _reasons(best: CandidatePlan, candidates: Sequence[Candidate]) -> Iterator[str]:
    """What the best of every other strategy would take."""
    by_strategy: dict[str, Candidate] = {}
    for candidate in candidates:
        by_strategy.setdefault(candidate.name.partition(" ")[0], candidate)
    others = [
        f"{candidate.name} {candidate.why or time_text(_seconds(candidate))}"
        for candidate in by_strategy.values()
        if candidate.name != best.name
    ]
    if others:
        yield f"{best.name} is predicted to take least, {time_text(best.seconds)}; {', '.join(others)}"


def _idle(best: CandidatePlan, candidates: Sequence[Candidate], profiles: Profiles) -> Iterator[str]:
    """Sentences about workers without work: why they have none, and what a call would take if all had some."""
    used = {part.node for part in best.plan.parts}
    everybody = len(profiles.workers)
    if not used or len(used) == everybody:
        return
    whole = next(
        (candidate for candidate in candidates if candidate.workers == everybody and candidate.seconds is not None),
        None,
    )
    if whole is not None:
        yield f"with all {everybody} workers it would take {time_text(_seconds(whole))} ({whole.name})"
    fastest = max((worker for worker in profiles.workers if worker.node_id in used), key=_speed)
    nearest = min((profiles.link(CLIENT, node) for node in used), key=lambda link: link.seconds(PROBE_BYTES))
    for worker in profiles.workers:
        link = profiles.link(CLIENT, worker.node_id)
        if worker.node_id in used:
            continue
        times = _speed(fastest) / _speed(worker)
        if times > NOTABLE:
            yield f"{worker.name} has no work: it is {_times(times)} times slower than {fastest.name}"
        elif link.seconds(PROBE_BYTES) > NOTABLE * nearest.seconds(PROBE_BYTES):
            bits = 8e-6 * link.bytes_per_s
            yield f"{worker.name} has no work: its link carries {bits:.3g} Mbit/s after {time_text(link.latency_s)}"


def _speed(worker: WorkerProfile) -> float:
    return max(device.gflops for device in worker.devices) or 1e-9


def _times(times: float) -> str:
    return f"{times:.2g}" if times < 10 else f"{times:.0f}"
