"""The plan of a session: as that of a call, and what of the state is where.  Pure.

A tensor of the state, or the window of it that a rank has, has to be made on the device where the next step reads it.
A plan for one worker has it so, and one of ranks that make what they read.  Where the best plan over several workers
has it otherwise, the nodes that read or make one tensor are kept together, and the best way to share out these groups
is looked for: whole groups in the order of the graph, cut where the slowest worker has least to do, and then single
groups moved while that helps.  What belongs to no group goes where its operands are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wire.errors import InputError, PlacementError
from wire.ir.graph import WireGraph
from wire.ir.ops import LEAVES
from wire.passes.simplify import simplify
from wire.policy.redundancy import copies_of
from wire.policy.strategies import FOR_ANY_GRAPH, Auto, Pipeline, Single, Split, Strategy, strategy_of
from wire.units import counted, time_text

from .auto_strategy import Drafts, add_splits, needs_ranks, whole_name
from .model.cost_model import CostModel, Prediction
from .model.memory_check import does_not_fit, memory_by_site, missing
from .model.plan import Carry, FromParam, FromPart, FromState, Part, Plan, Window, WorkerShare
from .model.profiles import Profiles
from .model.reproducible import alike, told
from .model.subgraphs import edges_of, output_source, param_places, parts_of
from .placement.sticky_placement import NOWHERE, STAYS, Homes, cuts, proposals_max
from .planner import make_plan
from .redundancy.redundancy_memory import with_copies
from .redundancy.state_redundancy_memory import OWN_SHARE, session_kept

BUDGETS_TRIED_MAX = 4
ORDERS_MAX = 24  # of workers, that are tried
MOVES_MAX = 200
RANKS_TRIED_MAX = 16


@dataclass(frozen=True, slots=True)
class Stateful:
    """Which params of a graph are a state: by name the output that is the next value of it.  The outputs before `told`
    are told to the caller.  So many `values` of the state are held while steps are under way."""

    carries: tuple[tuple[str, int], ...]
    told: int
    values: int = 2


@dataclass(frozen=True, slots=True)
class SessionQuestion:
    """What the plan of a session follows from, all of it: a Question (planner.py) of one that has a state.  `copies`
    are those of the state, `weights` those of what its steps only read."""

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
            return self._made(self.profiles)
        keeps = session_kept(self.profiles, self.copies, self.weights)
        of_weights = f", {self.weights} of weights," if copies_of(self.weights).on_workers else ""
        text, instead = f"{self.copies}{of_weights}", "copies go to this process instead"
        return with_copies(self._made, self.profiles, text, keeps, OWN_SHARE, instead)

    def _made(self, profiles: Profiles) -> Plan:
        return session_plan(self.graph, profiles, self.strategy, self.state)


def session_plan(graph: WireGraph, profiles: Profiles, strategy: str, state: Stateful) -> Plan:
    """The plan for the steps of a session; PlacementError if nothing fits, or nothing that has the state in place."""
    graph = simplify(graph)
    asked = strategy_of(strategy)
    if asked.reproducible and profiles.workers:
        return told(_made(graph, alike(profiles), asked, state), asked, profiles)
    return _made(graph, profiles, asked, state)


def _made(graph: WireGraph, profiles: Profiles, asked: Strategy, state: Stateful) -> Plan:
    refusal = PlacementError("there is no worker to plan for", next_step="Start mesh-worker")
    strategy = asked.plain.text
    if isinstance(asked, Auto) and profiles.workers and not needs_ranks(graph):
        return _cheapest(graph, profiles, asked, state)
    for tried in _tried(asked.text, len(profiles.workers)):
        budgets = profiles
        for _ in range(BUDGETS_TRIED_MAX if isinstance(asked, Pipeline) else 1):
            try:
                plan = make_plan(graph, budgets, tried, state.carries)
            except PlacementError as error:
                refusal = error if budgets is profiles else refusal
                break
            found = _with_state(plan, state, graph)
            short = missing(found, profiles) if found is not None else []
            if found is not None and not any(short):
                return _counted(found)
            refusal = _not_in_place(plan, state) if found is None else does_not_fit(_counted(found), short)
            budgets = _tightened(budgets, short)
    if strategy not in FOR_ANY_GRAPH:
        raise refusal
    return _counted(Together(graph, profiles, state).plan(strategy))


def _tightened(budgets: Profiles, short: Sequence[int]) -> Profiles:
    """Workers with less room by what they lacked: stages hold more of a state than was predicted of them."""
    pairs = zip(budgets.workers, short, strict=False)
    return replace(budgets, workers=tuple(replace(w, memory_bytes=w.memory_bytes - size) for w, size in pairs))


def staying_session(graph: WireGraph, profiles: Profiles, strategy: str, state: Stateful, homes: Homes) -> Plan | None:
    """A plan that leaves whole tensors of the state, and weights, where their `homes` are, for what follows a death;
    None where there is none like that."""
    graph = simplify(graph)
    asked = strategy_of(strategy)
    whole = asked.plain.text in STAYS and not graph.has_spmd and not needs_ranks(graph)
    if not (whole and homes and profiles.workers):
        return None
    plan = Together(graph, alike(profiles) if asked.reproducible else profiles, state).staying(strategy, homes)
    return None if plan is None else _counted(plan)


def _cheapest(graph: WireGraph, profiles: Profiles, asked: Auto, state: Stateful) -> Plan:
    """The cheapest of all plans that have the state in place: one worker, groups of nodes shared out, or a split."""

    def accept(plan: Plan) -> Plan | None:
        found = _with_state(plan, state, graph)
        return None if found is None or any(missing(found, profiles)) else _counted(found)

    drafts = Drafts(profiles, asked, accept)
    refusals = []
    for strategy in ("pipeline",) if asked.use_all else ("single", "auto"):
        try:
            if strategy == "single":
                drafts.add("single", make_plan(graph, profiles, strategy))
            else:
                shared = _counted(Together(graph, profiles, state).plan(strategy))
                drafts.have(whole_name(shared), shared)
        except PlacementError as error:
            refusals.append(error)
    if not asked.reproducible:
        add_splits(drafts, graph, profiles, asked.use_all, state.carries)
    if refusals and not drafts.made:
        raise refusals[-1]
    return drafts.best()


def _tried(strategy: str, workers: int) -> Iterator[str]:
    """The strategy, and where that leaves the number of ranks open, also fewer than are fastest: they may divide what
    those do not."""
    yield strategy
    asked = strategy_of(strategy)
    if isinstance(asked, Split) and not asked.ranks:
        yield from (replace(asked, ranks=ranks).text for ranks in range(min(workers, RANKS_TRIED_MAX), 1, -1))


def meanwhile(graph: WireGraph, profiles: Profiles, asked: Strategy, state: Stateful, lacking: PlacementError) -> Plan:
    """A plan for as long as there are too few workers for what was asked, which says so: of fewer stages, or of one."""
    count, strategy = len(profiles.workers), Single(reproducible=asked.reproducible).text
    if isinstance(asked, Pipeline) and count > 1:
        data = min(asked.data, count // 2)
        strategy = replace(asked, stages=min(asked.stages, count // data), data=data).text
    plan = session_plan(graph, profiles, strategy, state)
    return replace(plan, reasons=(*plan.reasons, f"for the time being, since {lacking.message}"))


def _not_in_place(plan: Plan, state: Stateful) -> PlacementError:
    names = ", ".join(name for name, _ in state.carries[:4])
    return PlacementError(
        f"by the strategy {plan.strategy!r} some of the state ({names}, ...) would not be made where it is read",
        next_step="Choose sizes that the ranks divide, or another strategy",
    )


def check_carried(graph: WireGraph, state: Stateful) -> None:
    """InputError unless every next value is computed, and every state is read."""
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
    read = {(each, _site(part)): None for part in parts for each in part.sources if isinstance(each, FromState)}
    kinds = graph.param_types
    clean = isinstance(strategy_of(plan.strategy), Split)  # the partitioner leaves zeros there
    if read.keys() - made.keys() or not (
        clean or not any(_beyond(piece, kinds[piece.name].shape) for piece, _ in read)
    ):
        return None
    found = tuple(Carry(piece, made[piece, site]) for piece, site in read)
    params = tuple(place for place in plan.params if place.name not in carries)
    return replace(plan, parts=parts, outputs=plan.outputs[: state.told], params=params, carries=found)


def _beyond(piece: FromState, shape: tuple[int, ...]) -> bool:
    """Whether a window is larger than what there is: the rest has to be zeros in every step, and what is carried of it
    might be anything."""
    if piece.window is None:
        return False
    ends = (start + size for start, size in zip(piece.window.starts, piece.window.sizes, strict=True))
    return any(end > dim for end, dim in zip(ends, shape, strict=True))


def _makers(plan: Plan, position: int) -> Iterable[tuple[FromPart, Window | None]]:
    """Who makes an output, or a window of it: of ranks each one."""
    output, ranks = plan.outputs[position], plan.lying[position] if plan.lying else ()
    if ranks:
        return ranks
    return [(output, None)] if isinstance(output, FromPart) else []


def _site(part: Part) -> tuple[str, int]:
    return part.node, part.device


def _counted(plan: Plan) -> Plan:
    """With what the workers hold of the state."""
    memory = memory_by_site(plan.parts, plan.ordered and not plan.gangs)
    totals: dict[str, int] = {}
    for (node, _), size in memory.items():
        totals[node] = totals.get(node, 0) + size
    return replace(plan, workers=tuple(replace(w, memory_bytes=totals.get(w.node, 0)) for w in plan.workers))


class Together:
    """Assignments that keep together what has to be."""

    def __init__(self, graph: WireGraph, profiles: Profiles, state: Stateful) -> None:
        self._graph = graph
        self._profiles = profiles
        self._state = state
        self.model = CostModel(graph, profiles)
        carries = dict(state.carries)
        for index, node in enumerate(graph.nodes):
            if node.op == "param" and node.attrs["name"] in carries:
                self.model.leaf_bytes[index] *= state.values
        self._given_back = set(self.model.outputs)
        told = set(graph.outputs[: state.told])
        self._told = {unit for unit in self._given_back if told & set(self.model.members[unit])}
        self._groups = self._find_groups(carries)
        self._group_of = {unit: group for group in self._groups for unit in group}
        self._able = {group: self._able_of(group) for group in self._groups}

    def plan(self, strategy: str) -> Plan:
        model = self.model
        model.outputs = self._told  # the rest is not sent back
        proposals = {tuple(each) for each in self._proposals(strategy)}
        if not proposals:
            raise PlacementError("no worker has one device that computes all that reads or makes one tensor of a state")
        best = min(((model.predict(each), list(each)) for each in proposals), key=lambda each: each[0].objective)
        assignment = self._refined(*best)[1] if strategy == "auto" else best[1]
        return self._plan(strategy, assignment, "")

    def staying(self, strategy: str, homes: Homes) -> Plan | None:
        """The plan that leaves tensors where their homes are, and shares out those that have none; None if there is
        none like that."""
        model = self.model
        model.outputs = self._told
        workers = self._profiles.workers
        having = [
            {
                number
                for number, worker in enumerate(workers)
                if all(worker.node_id in homes.get(name, ()) for name in names)
            }
            for names in map(self._read_by, self._groups)
        ]
        places = [
            min(has & set(self._able[group]), default=-1) for has, group in zip(having, self._groups, strict=True)
        ]
        lost = [number for number, place in enumerate(places) if place < 0]
        sizes = [self._bytes_of(self._groups[number]) or 1 for number in lost]
        judged = []
        ways = cuts(sizes, [self._able[self._groups[number]] for number in lost], model.by_speed)
        for way in itertools.islice(ways, proposals_max(model)):
            chosen = dict(zip(lost, way, strict=True))
            for assignment in self._placed([chosen.get(number, place) for number, place in enumerate(places)], homes):
                found = model.predict(assignment)
                judged.append((*found.objective, assignment))
        if not judged or len(lost) == len(places):
            return None
        try:
            return self._plan(strategy, min(judged)[-1], "what lives stays where it is")
        except PlacementError:
            return None

    def _read_by(self, units: Iterable[int]) -> set[str]:
        """The names of the params that these units read."""
        nodes = (self._graph.nodes[leaf] for unit in units for leaf in self.model.leaves[unit])
        return {node.attrs["name"] for node in nodes if node.op == "param"}

    def _bytes_of(self, units: Iterable[int]) -> int:
        leaves = {leaf for unit in units for leaf in self.model.leaves[unit]}
        return sum(self.model.leaf_bytes[leaf] for leaf in leaves)

    def _plan(self, strategy: str, assignment: list[int], more: str) -> Plan:
        model = self.model
        prediction, sketches = model.arrange(assignment)
        model.outputs = self._given_back
        parts, place = parts_of(model, sketches)
        workers = self._profiles.workers
        used = sorted({workers[worker].name for worker in assignment})
        names = ", ".join(used)
        whole = Plan(
            strategy,
            self._graph,
            parts,
            edges_of(parts),
            tuple(output_source(self._graph, index, place) for index in self._graph.outputs),
            param_places(self._graph, parts),
            tuple(self._share(index, parts, prediction) for index in range(len(workers))),
            prediction.seconds,
            prediction.cut_bytes,
            (
                f"{len(used)} of {len(workers)} workers ({names}), predicted {time_text(prediction.seconds)} per step",
                f"{counted(len(self._groups), 'group')} of nodes, each on one worker: state is made where it is read",
                *([more] if more else ()),
            ),
        )
        plan = _with_state(whole, self._state, self._graph)
        assert plan is not None, "the groups are together"
        short = missing(plan, self._profiles)
        if any(short):
            raise does_not_fit(_counted(plan), short)
        return plan

    def _share(self, index: int, parts: Sequence[Part], prediction: Prediction) -> WorkerShare:
        worker = self._profiles.workers[index]
        mine = sum(part.node == worker.node_id for part in parts)
        busy_s, bytes_in = prediction.busy_s[index], prediction.bytes_in[index]
        return WorkerShare(worker.node_id, worker.name, mine, busy_s, 0, worker.memory_bytes, bytes_in)

    def _find_groups(self, carries: Mapping[str, int]) -> list[tuple[int, ...]]:
        """The units that read or make one tensor of the state; groups that share a unit are one."""
        model, graph = self.model, self._graph
        place = {node: unit for unit, members in enumerate(model.members) for node in members}
        root = list(range(len(model.units)))

        def find(unit: int) -> int:
            while root[unit] != unit:
                root[unit] = unit = root[root[unit]]
            return unit

        bound: set[int] = set()
        names = {index: node.attrs["name"] for index, node in enumerate(graph.nodes) if node.op == "param"}
        members: dict[str, list[int]] = {name: [place[graph.outputs[at]]] for name, at in carries.items()}
        for unit, leaves in enumerate(model.leaves):
            for leaf in leaves:
                if names.get(leaf) in members:
                    members[names[leaf]].append(unit)
        for units in members.values():
            bound.update(units)
            for unit in units[1:]:
                root[find(unit)] = find(units[0])
        groups: dict[int, list[int]] = {}
        for unit in sorted(bound):
            groups.setdefault(find(unit), []).append(unit)
        return [tuple(group) for group in groups.values()]

    def _able_of(self, group: Iterable[int]) -> list[int]:
        """The workers one device of which computes all of it."""
        found = []
        for worker in range(len(self._profiles.workers)):
            sites = {self.model.site[worker][unit] for unit in group}
            if len(sites) == 1 and -1 not in sites:
                found.append(worker)
        return found

    def _proposals(self, strategy: str) -> Iterator[list[int]]:
        """Groups in the order of the graph, shared out over some workers."""
        model = self.model
        count = len(self._profiles.workers)
        most = min(count, len(self._groups))
        counts = {"single": [1], "pipeline": [most]}.get(strategy, list(range(1, most + 1)))
        weight = [min(sum(model.seconds[w][unit] for unit in group) for w in range(count)) for group in self._groups]
        for several in counts:
            for order in itertools.islice(itertools.permutations(model.by_speed[: max(several, 1)]), ORDERS_MAX):
                yield from self._placed([order[at] for at in _even(weight, several)])

    def _placed(self, chosen: Sequence[int], homes: Homes = NOWHERE) -> Iterator[list[int]]:
        """The groups on these workers, or on others where they cannot be; nothing if they can be nowhere.  What is in
        no group goes where it has a home, if it reads something that has one."""
        model = self.model
        assignment = [-1] * len(model.units)
        for group, worker in zip(self._groups, chosen, strict=True):
            able = self._able[group]
            if not able:
                return
            for unit in group:
                assignment[unit] = worker if worker in able else able[0]
        for unit in range(len(assignment)) if homes else ():
            read = self._read_by([unit]) if assignment[unit] < 0 else set[str]()
            there = [w for w in model.able[unit] if all(self._node(w) in homes.get(name, ()) for name in read)]
            assignment[unit] = there[0] if read and there else assignment[unit]
        for unit in range(len(assignment)):  # after their operands, and what has none before its readers
            if assignment[unit] < 0:
                assignment[unit] = self._near(unit, [assignment[each] for each in model.operands[unit]])
        for unit in reversed(range(len(assignment))):
            if assignment[unit] < 0:
                assignment[unit] = self._near(unit, [assignment[each] for each in model.consumers[unit]])
        if all(worker >= 0 for worker in assignment):
            yield assignment

    def _node(self, worker: int) -> str:
        return self._profiles.workers[worker].node_id

    def _near(self, unit: int, neighbours: Sequence[int]) -> int:
        there = [worker for worker in neighbours if worker >= 0]
        fit = [worker for worker in there if self.model.device[worker][unit] >= 0]
        if not there:
            return -1
        return max(fit, key=fit.count) if fit else self.model.able[unit][0]

    def _refined(self, prediction: Prediction, assignment: list[int]) -> tuple[Prediction, list[int]]:
        """Move groups, and single units of none, while that helps."""
        model, moves = self.model, 0
        loose = [(unit,) for unit in range(len(assignment)) if unit not in self._group_of]
        for group in (*self._groups, *loose):
            able = self._able.get(group, model.able[group[0]])
            near = {assignment[other] for unit in group for other in (*model.operands[unit], *model.consumers[unit])}
            for worker in sorted(near & set(able) - {assignment[group[0]]}):
                moved = list(assignment)
                for unit in group:
                    moved[unit] = worker
                candidate = model.predict(moved)
                moves += 1
                if candidate.objective < prediction.objective:
                    prediction, assignment = candidate, moved
            if moves >= MOVES_MAX:
                break
        return prediction, assignment


def _even(weights: Sequence[float], count: int) -> list[int]:
    """Which of `count` slices each of these is in, slices being about equally heavy and none empty."""
    total, before = sum(weights) or 1.0, 0.0
    slices: list[int] = []
    for index, weight in enumerate(weights):
        wanted = min(int((before + weight / 2) / total * count), count - 1)
        least = count - (len(weights) - index)  # what is left has to fill what is left
        following = slices[-1] + 1 if slices else 0
        slices.append(max(min(wanted, following), least))
        before += weight
    return slices
