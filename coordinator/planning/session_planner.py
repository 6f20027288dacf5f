"""The plan of a session: as that of a call, and what of the state is where.  Pure.

A tensor of the state, or the window of it that a rank has, has to be made on the device where the next step reads it.
A plan for one worker has it so, and one of ranks that make what they read.  Where the best plan over several workers
has it otherwise, the nodes that read or make one tensor are kept together (`placement/state_colocation.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from wire.errors import InputError, PlacementError
from wire.ir.graph import WireGraph
from wire.ir.ops import LEAVES
from wire.passes.simplify import simplify
from wire.policy.redundancy import copies_of
from wire.policy.strategies import FOR_ANY_GRAPH, Auto, Pipeline, Single, Split, Strategy, strategy_of
from wire.units import counted

from .auto_strategy import CandidatePlans, SplitPrograms, add_splits, needs_ranks, whole_name
from .model.chosen_workers import chosen_profiles, for_chosen
from .model.cost_model import CostModel
from .model.device_constraints import by_worker
from .model.graph_index import GraphIndex
from .model.memory_check import does_not_fit, memory_by_worker, missing, tightened
from .model.plan import Carry, FromParam, FromPart, FromState, Part, Plan, Window
from .model.plan_builder import assigned_plan
from .model.profiles import Profiles
from .model.reproducible import check_split, may_split, reproducible_profiles, with_exclusions
from .placement.state_colocation import StateColocation
from .placement.sticky_placement import STICKY_STRATEGIES, Homes
from .planner import make_plan
from .redundancy.redundancy_memory import with_copies
from .redundancy.state_redundancy_memory import OWN_SHARE, session_kept

BUDGETS_TRIED_MAX = 4
RANKS_TRIED_MAX = 16


@dataclass(frozen=True, slots=True)
class Stateful:
    """The state of a session's graph: params by name, each with the position of the output that is its next value.

    The caller gets the first `returned_count` outputs.  Workers hold `values` values of the state while steps run.
    """

    carries: tuple[tuple[str, int], ...]
    returned_count: int
    values: int = 2


@dataclass(frozen=True, slots=True)
class SessionQuestion:
    """All that the plan of a session follows from: a Question (planner.py) of one that has a state.

    `copies` are those of the state, `weights` those of what its steps only read.
    """

    graph: WireGraph
    strategy: str
    profiles: Profiles
    state: Stateful
    copies: str = "none"
    weights: str = "checkpoint"

    def answer(self) -> Plan:
        """The plan, with room for its copies if there is such a one (`redundancy/redundancy_memory.py`); PlacementError
        if nothing fits."""
        if (self.copies, self.weights) == ("none", "checkpoint") or not self.profiles.workers:
            return self._plan(self.profiles)
        plan = partial(self._plan, programs=SplitPrograms())
        keeps = session_kept(self.profiles, self.copies, self.weights)
        of_weights = f", {self.weights} of weights," if copies_of(self.weights).on_workers else ""
        text, instead = f"{self.copies}{of_weights}", "copies go to this process instead"
        return with_copies(plan, self.profiles, text, keeps, OWN_SHARE, instead)

    def _plan(self, profiles: Profiles, programs: SplitPrograms | None = None) -> Plan:
        return session_plan(self.graph, profiles, self.strategy, self.state, programs)


def session_plan(
    graph: WireGraph, profiles: Profiles, strategy: str, state: Stateful, programs: SplitPrograms | None = None
) -> Plan:
    """The plan for the steps of a session; PlacementError if nothing fits, or nothing that has the state in place.
    `programs` are as for `make_plan`."""
    parsed, graph = strategy_of(strategy), by_worker(graph, profiles)
    if parsed.workers:
        rest = replace(parsed, workers=())
        chosen = chosen_profiles(profiles, parsed)
        return for_chosen(session_plan(graph, chosen, rest.text, state, programs), parsed)
    graph = simplify(graph)
    if parsed.reproducible and profiles.workers:
        alike = reproducible_profiles(profiles, graph, parsed)
        check_split(parsed, alike, graph)
        return with_exclusions(_make_plan(graph, alike, parsed, state, programs), parsed, profiles, graph)
    return _make_plan(graph, profiles, parsed, state, programs)


def _make_plan(
    graph: WireGraph, profiles: Profiles, strategy: Strategy, state: Stateful, programs: SplitPrograms | None
) -> Plan:
    refusal = PlacementError("there is no worker to plan for", next_step="Start mesh-worker")
    text = strategy.plain.text
    if isinstance(strategy, Auto) and profiles.workers and not needs_ranks(graph):
        return _cheapest(graph, profiles, strategy, state, programs)
    if isinstance(strategy, Single) and profiles.workers and not needs_ranks(graph):
        return _best_colocated(graph, profiles, text, state)
    for tried in _tried(strategy.text, len(profiles.workers)):
        budgets = profiles
        for _ in range(BUDGETS_TRIED_MAX if isinstance(strategy, Pipeline) else 1):
            try:
                plan = make_plan(graph, budgets, tried, state.carries)
            except PlacementError as error:
                refusal = error if budgets is profiles else refusal
                break
            stateful = _with_state(plan, state, graph)
            if stateful is None:
                refusal = _not_in_place(plan, state)
                break
            stateful = _counted(stateful)
            short = missing(stateful, profiles)
            if not any(short):
                return stateful
            refusal = does_not_fit(stateful, short)
            budgets = tightened(budgets, short)  # stages hold more of a state than was predicted of them
    if text not in FOR_ANY_GRAPH:
        raise refusal
    return _best_colocated(graph, profiles, text, state)


def sticky_session_plan(
    graph: WireGraph, profiles: Profiles, strategy: str, state: Stateful, homes: Homes
) -> Plan | None:
    """A plan that leaves whole tensors of the state, and weights, where their `homes` are, for what follows a death;
    None where there is none like that; PlacementError where no worker is there that may compute."""
    graph = simplify(by_worker(graph, profiles))
    parsed = strategy_of(strategy)
    whole = parsed.plain.text in STICKY_STRATEGIES and not graph.has_spmd and not needs_ranks(graph)
    if not (whole and homes and profiles.workers):
        return None
    profiles = chosen_profiles(profiles, parsed)
    colocation = _colocation(
        graph, reproducible_profiles(profiles, graph, parsed) if parsed.reproducible else profiles, state
    )
    assignment = colocation.sticky(homes)
    if assignment is None:
        return None
    try:
        return _colocated(colocation, assignment, strategy, state, "what lives stays where it is")
    except PlacementError:
        return None


def _cheapest(
    graph: WireGraph, profiles: Profiles, strategy: Auto, state: Stateful, programs: SplitPrograms | None
) -> Plan:
    """The cheapest of all plans that have the state in place: one worker, groups of nodes shared out, or a split."""

    def accept(plan: Plan) -> Plan | None:
        stateful = _with_state(plan, state, graph)
        return None if stateful is None or any(missing(stateful, profiles)) else _counted(stateful)

    drafts = CandidatePlans(profiles, strategy, accept)
    refusals = []
    for name in ("pipeline",) if strategy.use_all else ("single", "auto"):
        try:
            shared = _best_colocated(graph, profiles, name, state)
            drafts.have(whole_name(shared), shared)
        except PlacementError as error:
            refusals.append(error)
    if not strategy.reproducible or may_split(profiles, graph):
        add_splits(drafts, graph, profiles, strategy, state.carries, programs)
    if refusals and not drafts.made:
        raise refusals[-1]
    return drafts.best()


def _tried(strategy: str, workers: int) -> Iterator[str]:
    """The strategy, and where that leaves the number of ranks open, also fewer than are fastest: they may divide what
    those do not."""
    yield strategy
    parsed = strategy_of(strategy)
    if isinstance(parsed, Split) and not parsed.ranks:
        fewer = filter(parsed.divides, range(min(workers, RANKS_TRIED_MAX), 1, -1))
        yield from (replace(parsed, ranks=ranks).text for ranks in fewer)


def interim_plan(
    graph: WireGraph, profiles: Profiles, strategy: Strategy, state: Stateful, lacking: PlacementError
) -> Plan:
    """A plan for as long as there are too few workers for what was asked, which says so: of fewer stages, or of one."""
    graph, profiles = by_worker(graph, profiles), chosen_profiles(profiles, strategy)
    count, text = len(profiles.workers), Single(reproducible=strategy.reproducible, workers=strategy.workers).text
    if isinstance(strategy, Pipeline) and count > 1:
        data = min(strategy.data, count // 2)
        text = replace(strategy, stages=min(strategy.stages, count // data), data=data).text
    plan = session_plan(graph, profiles, text, state)
    return replace(plan, reasons=(*plan.reasons, f"for the time being, since {lacking.message}"))


def _not_in_place(plan: Plan, state: Stateful) -> PlacementError:
    names = ", ".join(name for name, _ in state.carries[:4])
    return PlacementError(
        f"by the strategy {plan.strategy!r} some of the state ({names}, ...) would not be made where it is read",
        next_step="Choose sizes that the ranks divide, or another strategy",
    )


def check_carried(graph: WireGraph, state: Stateful) -> None:
    """Check that every next value is computed and every state is read; InputError if not."""
    simple = simplify(graph)
    names = {node.attrs["name"] for node in simple.nodes if node.op == "param"}
    for name, position in state.carries:
        if simple.nodes[simple.outputs[position]].op in LEAVES or name not in names:
            raise InputError(f"the state {name!r} is not read, or its next value is not computed")


def _with_state(plan: Plan, state: Stateful, graph: WireGraph) -> Plan | None:
    """A call's plan as one of a session; None if some of the state is not made where it is read."""
    carries = dict(state.carries)

    def stateful(part: Part) -> Part:
        sources = (
            FromState(source.name, source.window, state.values)
            if isinstance(source, FromParam) and source.name in carries
            else source
            for source in part.sources
        )
        return replace(part, sources=tuple(sources))

    parts = tuple(stateful(part) for part in plan.parts)
    made: dict[tuple[FromState, tuple[str, int]], FromPart] = {}
    for name, position in carries.items():
        for maker, window in _makers(plan, position):
            made.setdefault((FromState(name, window, state.values), _site(parts[maker.part])), maker)
    read = {(source, _site(part)): None for part in parts for source in part.sources if isinstance(source, FromState)}
    kinds = graph.param_types
    clean = isinstance(strategy_of(plan.strategy), Split)  # the partitioner leaves zeros there
    if read.keys() - made.keys() or not (
        clean or not any(_beyond(piece, kinds[piece.name].shape) for piece, _ in read)
    ):
        return None
    carried = tuple(Carry(piece, made[piece, site]) for piece, site in read)
    params = tuple(place for place in plan.params if place.name not in carries)
    return replace(plan, parts=parts, outputs=plan.outputs[: state.returned_count], params=params, carries=carried)


def _beyond(piece: FromState, shape: tuple[int, ...]) -> bool:
    """Whether a window is larger than the tensor: the rest has to be zeros in every step, and what is carried of it
    might be anything."""
    if piece.window is None:
        return False
    ends = (start + size for start, size in zip(piece.window.starts, piece.window.sizes, strict=True))
    return any(end > dim for end, dim in zip(ends, shape, strict=True))


def _makers(plan: Plan, position: int) -> Iterable[tuple[FromPart, Window | None]]:
    """The parts that make an output, or a window of it: of ranks each one."""
    output, ranks = plan.outputs[position], plan.lying[position] if plan.lying else ()
    if ranks:
        return ranks
    return [(output, None)] if isinstance(output, FromPart) else []


def _site(part: Part) -> tuple[str, int]:
    return part.node, part.device


def _counted(plan: Plan) -> Plan:
    """The plan with the memory that its workers need, state included."""
    memory = memory_by_worker(plan)
    return replace(plan, workers=tuple(replace(w, memory_bytes=memory.get(w.node, 0)) for w in plan.workers))


def _best_colocated(graph: WireGraph, profiles: Profiles, strategy: str, state: Stateful) -> Plan:
    colocation = _colocation(graph, profiles, state)
    return _colocated(colocation, colocation.best(strategy), strategy, state)


def _colocation(graph: WireGraph, profiles: Profiles, state: Stateful) -> StateColocation:
    """The search for a step of this state: several values of it are held, and none of it is returned."""
    index, carries = GraphIndex.of(graph), dict(state.carries)
    carried = {node for node in graph.params if graph.nodes[node].attrs["name"] in carries}
    held = {leaf: size * (state.values if leaf in carried else 1) for leaf, size in index.leaf_bytes.items()}
    returned = index.returned.intersection(graph.outputs[: state.returned_count])
    model = CostModel(graph, profiles, replace(index, leaf_bytes=held, returned=returned))
    return StateColocation(model, {name: graph.outputs[position] for name, position in carries.items()})


def _colocated(colocation: StateColocation, assignment: list[int], strategy: str, state: Stateful, *more: str) -> Plan:
    """The plan of an assignment with the state in place, and `more` reasons; PlacementError if it does not fit."""
    model = colocation.model
    groups = f"{counted(len(colocation.groups), 'group')} of nodes, each on one worker: state is made where it is read"
    plan = assigned_plan(model, strategy, assignment, "step", groups, *more)
    in_place = _with_state(plan, state, model.graph)
    assert in_place is not None, "the groups are together"
    in_place = _counted(in_place)
    short = missing(in_place, model.profiles)
    if any(short):
        raise does_not_fit(in_place, short)
    return in_place
