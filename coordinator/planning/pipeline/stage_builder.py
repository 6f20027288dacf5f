"""Stage builder: the plan of a training step whose loop over micro-batches was cut into stages.  Pure.

Parts stand in an order in which they can run: what of the state stages send others, what each needs before the loop,
the loop by its schedule, what several columns add up, and what comes after, in as many rounds as stages wait for each
other.  `pipeline_planner.py` chooses the stages; this only carries them out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wire.errors import PlacementError
from wire.ir.dtypes import DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.policy.pipeline_schedules import FORWARD, SCHEDULES, Event, bound, in_order
from wire.policy.strategies import Pipeline
from wire.units import counted, time_text

from ..model.liveness import DUPLICATED
from ..model.memory_check import memory_by_site
from ..model.plan import FromConst, FromInput, FromParam, FromPart, Output, Part, Plan, Source, Window, WorkerShare
from ..model.profiles import Profiles
from ..model.subgraphs import edges_of, param_places
from ..model.timeline import timeline
from ..spmd.rank_placement import Site
from .epilogue import After
from .microbatch_loop import CARRY, CONST, ROW, Cut, Key, Line, Loop
from .stage_search import Stages


@dataclass(slots=True, eq=False)
class _Draft:
    """A part before it has a number.  Its sources are leaves of the graph, or outputs of other drafts."""

    stage: int
    column: int
    graph: WireGraph
    sources: list[_From] = field(default_factory=list)
    made: tuple[Any, ...] = ()  # what its outputs are, where others ask for it by that


@dataclass(frozen=True, slots=True)
class _Of:
    """An output of a draft."""

    draft: _Draft
    slot: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    """An input or a param of the graph, or a window of it."""

    node: int
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the part before the loop makes for its stage: a node's value, or of its rows the one of a turn."""

    node: int
    turn: int = -1


_From = _Of | _Leaf | _Wanted


class StageParts:
    """The plan of these stages, whose columns are on these sites."""

    def __init__(
        self, graph: WireGraph, loop: Loop, line: Line, after: After, stages: Stages,
        columns: Sequence[tuple[Site, ...]], asked: Pipeline, profiles: Profiles,
    ) -> None:  # fmt: skip
        self._graph, self._loop, self._line, self._after = graph, loop, line, after
        self._stages, self._columns, self._asked, self._profiles = stages, columns, asked, profiles
        self._cut = Cut(line, stages.cuts)
        self._turned: dict[tuple[int, int, bool, int], _Draft] = {}  # by column, stage, way and number of micro-batch
        self._results = {index: number for number, index in loop.results.items()}
        self._added: dict[tuple[int, int], _Of] = {}  # what the loops of all columns add up, by carry and column
        self._made: dict[tuple[int | _Pack, int], _Of] = {}  # nodes behind the loop, by column

    def plan(self) -> Plan:
        """The plan; whether it fits is for the caller to see."""
        drafts = [*self._turns(), *self._sums(), *self._endings()]
        beginnings = self._beginnings(drafts)
        drafts = [*beginnings.values(), *drafts]
        shared = self._shared(drafts)
        drafts = [*shared.values(), *drafts]
        self._numbers = {draft: number for number, draft in enumerate(drafts)}
        parts = tuple(self._part(draft, beginnings, shared) for draft in drafts)
        plan = Plan(
            self._asked.text,
            self._graph,
            parts,
            edges_of(parts),
            tuple(self._output(index) for index in self._graph.outputs),
            param_places(self._graph, parts),
            (),
            0.0,
            0,
            (),
            ordered=True,
            lying=tuple(self._lying(index) for index in self._graph.outputs) if len(self._columns) > 1 else (),
        )
        return self._judged(plan)

    # -- the loop

    def _turns(self) -> list[_Draft]:
        drafts = []
        schedule, count = SCHEDULES[self._asked.schedule], len(self._columns)
        for column in range(count):
            turns = range(column, self._loop.turns, count)
            for stage, event in in_order(schedule, self._cut.stages, len(turns)):
                forward = event.kind == FORWARD
                piece = self._cut.piece(stage, forward)
                if piece.made:
                    draft = _Draft(stage, column, piece.graph)
                    draft.sources += [self._of_key(key, stage, column, event, turns) for key in piece.needs]
                    self._turned[column, stage, forward, event.batch] = draft
                    drafts.append(draft)
        return drafts

    def _of_key(self, key: Key, stage: int, column: int, event: Event, turns: Sequence[int]) -> _From:
        if key.kind == ROW:
            ahead = self._cut.piece(stage, True)
            leaf = self._line.body.inputs[self._loop.carry + self._loop.consts + key.number]
            if event.kind != FORWARD and leaf in ahead.made:
                return self._turn_made(column, stage, True, event.batch, leaf)
            return self._row(self._loop.operand((ROW, key.number)), turns[event.batch])
        if key.kind == CONST:
            return self._given(self._loop.operand((CONST, key.number)))
        if key.kind == CARRY:
            return self._carried(key.number, event.batch if key.newest else event.version, stage, column)
        home, forward = self._cut.home(key.number)
        return self._turn_made(column, home, forward, event.batch, key.number)

    def _turn_made(self, column: int, stage: int, forward: bool, batch: int, node: int) -> _Of:
        draft = self._turned.get((column, stage, forward, batch))
        if draft is None:
            raise PlacementError(f"stages that the schedule {self._asked.schedule!r} keeps apart read the same weights")
        return _Of(draft, self._cut.piece(stage, forward).made.index(node))

    def _carried(self, carry: int, version: int, stage: int, column: int) -> _From:
        """The value of a carry after so many turns of a column."""
        output = self._loop.body.outputs[carry]
        if version == 0 or self._line.leaves.get(output) == (CARRY, carry):
            return self._given(self._loop.operand((CARRY, carry)))
        if output in self._line.leaves:
            raise PlacementError("a loop that passes on what it is given is not cut into stages")
        return self._turn_made(column, self._cut.carry_stage(carry, stage), False, version - 1, output)

    def _row(self, node: int, turn: int) -> _From:
        """The rows of a turn: a window of an input, or what the part before the loop cuts."""
        graph = self._graph
        cut = graph.nodes[node]
        if cut.op == "reshape" and graph.nodes[cut.inputs[0]].op == "input":
            shape, rows = graph.types[cut.inputs[0]].shape, graph.types[node].shape
            if len(rows) == len(shape) + 1 and rows[0] * rows[1] == shape[0] and rows[2:] == shape[1:]:
                starts = (turn * rows[1], *(0,) * (len(shape) - 1))
                return _Leaf(cut.inputs[0], Window(starts, rows[1:]))
        return _Wanted(node, turn)

    def _given(self, node: int) -> _From:
        return _Leaf(node) if self._graph.nodes[node].op in ("input", "param") else _Wanted(node)

    # -- after the loop

    def _sums(self) -> list[_Draft]:
        """Where there are several columns: parts that add up what these did, in their order."""
        count, drafts = len(self._columns), []
        for stage in range(self._cut.stages if count > 1 else 0):
            mine = [each for each in sorted(self._loop.results) if self._cut.carry_stage(each, 0) == stage]
            if not mine:
                continue
            graph = self._sum_graph(mine, count)
            for column in range(count):
                sources = [self._last(carry, other) for carry in mine for other in range(count)]
                drafts.append(_Draft(stage, column, graph, sources))
                self._added.update({(carry, column): _Of(drafts[-1], slot) for slot, carry in enumerate(mine)})
        return drafts

    def _sum_graph(self, carries: Sequence[int], count: int) -> WireGraph:
        builder = GraphBuilder()
        made: list[int] = []
        for carry in carries:
            kind = self._loop.body.types[self._loop.body.outputs[carry]]
            first = len(made) * count
            terms = [builder.input(str(first + column), *kind) for column in range(count)]
            total = terms[0]
            for term in terms[1:]:
                total = builder.add("add", total, term)
            made.append(total)
        return builder.build(made)

    def _last(self, carry: int, column: int) -> _From:
        """What a column's loop makes of a carry."""
        turns = len(range(column, self._loop.turns, len(self._columns)))
        return self._carried(carry, turns, self._cut.carry_stage(carry, 0), column)

    def _endings(self) -> list[_Draft]:
        """The other nodes of the step, stage by stage, in as many parts as stages wait for each other."""
        graph, found, level = self._graph, dict[tuple[int, int], list[int]](), dict[int, int]()
        at = {index: self._cut.stage(self._after.place[index]) for index in self._after.members}
        for index in self._after.members:
            there = [(level[each] + (at[each] != at[index])) for each in graph.nodes[index].inputs if each in level]
            there += [
                int(self._cut.carry_stage(self._results[each], 0) != at[index])
                for each in graph.nodes[index].inputs
                if each in self._results
            ]
            level[index] = max(there, default=0)
            found.setdefault((level[index], at[index]), []).append(index)
        packs: dict[int, _Pack] = {}
        drafts = []
        for (_, stage), members in sorted(found.items()):
            mine = set(members)
            readers: dict[int, set[int]] = {}
            for index in at.keys() - mine:
                for each in mine.intersection(graph.nodes[index].inputs):
                    readers.setdefault(each, set()).add(at[index])
            near = [each for each in members if stage in readers.get(each, ()) or each in graph.outputs]
            far = [each for each in members if readers.get(each, set()) - {stage}]
            packed = _packed(graph, far)
            near += [each for each in far if each not in near and all(each not in pack.nodes for pack in packed)]
            foreign = {each: pack for each, pack in packs.items() if at[each] != stage}
            region = _Region(graph, mine, foreign)
            made = [region.value(each) for each in near] + [region.packed(pack) for pack in packed]
            built = region.builder.build(made)
            for column in range(len(self._columns)):
                draft = _Draft(stage, column, built, [self._behind(each, column) for each in region.needs])
                leaving: list[int | _Pack] = [*near, *packed]
                self._made.update({(each, column): _Of(draft, slot) for slot, each in enumerate(leaving)})
                drafts.append(draft)
            packs.update({each: pack for pack in packed for each in pack.nodes})
        return drafts

    def _behind(self, node: int | _Pack, column: int) -> _From:
        """A node's value, or those of several, for what comes after the loop."""
        if isinstance(node, _Pack):
            return self._made[node, column]
        if node in self._results:
            carry = self._results[node]
            return self._added[carry, column] if len(self._columns) > 1 else self._last(carry, column)
        return self._made[node, column] if (node, column) in self._made else _Leaf(node)

    # -- before the loop

    def _beginnings(self, drafts: Sequence[_Draft]) -> dict[tuple[int, int], _Draft]:
        """By stage and column the part that makes what the loop wants: of inputs, and what is added to."""
        wanted: dict[tuple[int, int], dict[_Wanted, None]] = {}
        for draft in drafts:
            mine = {each: None for each in draft.sources if isinstance(each, _Wanted)}
            wanted.setdefault((draft.stage, draft.column), {}).update(mine)
        found = {}
        for (stage, column), values in sorted(wanted.items()):
            if values:
                region = _Region(self._graph)
                made = [region.row(each.node, each.turn) for each in values]
                sources: list[_From] = [_Leaf(node) for node in region.needs if isinstance(node, int)]
                found[stage, column] = _Draft(stage, column, region.builder.build(made), sources, tuple(values))
        return found

    def _shared(self, drafts: Sequence[_Draft]) -> dict[tuple[int, int], _Draft]:
        """By stage and column the part that sends others what they read of the state that is there."""
        wanted: dict[tuple[int, int], dict[int, None]] = {}
        for draft in drafts:
            for each in draft.sources:
                if isinstance(each, _Leaf) and (owner := self._owner(each.node, draft.stage)) != draft.stage:
                    wanted.setdefault((owner, draft.column), {})[each.node] = None
        found = {}
        for (stage, column), nodes in sorted(wanted.items()):
            region = _Region(self._graph)
            graph = region.builder.build([region.value(each) for each in nodes])
            found[stage, column] = _Draft(stage, column, graph, [_Leaf(each) for each in nodes], tuple(nodes))
        return found

    def _owner(self, node: int, reader: int) -> int:
        """The stage that has a leaf; what is no state anybody can have."""
        place = self._after.owner.get(self._graph.nodes[node].attrs["name"])
        is_state = place is not None and self._graph.nodes[node].op == "param"
        return self._cut.stage(place) if is_state and place is not None else reader

    # -- the plan

    def _part(
        self, draft: _Draft, beginnings: Mapping[tuple[int, int], _Draft], shared: Mapping[tuple[int, int], _Draft]
    ) -> Part:
        site = self._columns[draft.column][draft.stage]

        def source(each: _From) -> Source:
            if isinstance(each, _Wanted):
                draws = beginnings[draft.stage, draft.column]
                return FromPart(self._numbers[draws], draws.made.index(each))
            if isinstance(each, _Of):
                return FromPart(self._numbers[each.draft], each.slot)
            name, owner = self._graph.nodes[each.node].attrs["name"], self._owner(each.node, draft.stage)
            if owner != draft.stage:
                sends = shared[owner, draft.column]
                return FromPart(self._numbers[sends], sends.made.index(each.node))
            kind = FromInput if self._graph.nodes[each.node].op == "input" else FromParam
            return kind(name, each.window)

        sources = tuple(source(each) for each in draft.sources)
        return Part(
            self._numbers[draft], site.worker.node_id, site.device.index, site.device.engine, draft.graph, sources,
            site.seconds(draft.graph), site.device.slower,
        )  # fmt: skip

    def _output(self, index: int, column: int = 0) -> Output:
        op = self._graph.nodes[index].op
        if op in ("const", "iota"):
            return FromConst(index)
        found = self._behind(index, column)
        if isinstance(found, _Of):
            return FromPart(self._numbers[found.draft], found.slot)
        name = self._graph.nodes[index].attrs["name"]
        return FromInput(name) if op == "input" else FromParam(name)

    def _lying(self, index: int) -> tuple[tuple[FromPart, Window | None], ...]:
        """An output as every column has it."""
        found = (self._output(index, column) for column in range(len(self._columns)))
        return tuple((each, None) for each in found if isinstance(each, FromPart))

    def _judged(self, plan: Plan) -> Plan:
        """With what it is predicted to take."""
        profiles, parts = self._profiles, plan.parts
        seconds = timeline(plan, profiles).seconds
        memory = memory_by_site(parts, in_turn=True)
        bytes_in = dict.fromkeys((worker.node_id for worker in profiles.workers), 0)
        for part in parts:
            bytes_in[part.node] += sum(part.sizes(FromInput).values())
            sizes = part.sizes(FromPart).items()
            bytes_in[part.node] += sum(size for each, size in sizes if parts[each.part].node != part.node)
        shares = tuple(
            WorkerShare(
                worker.node_id,
                worker.name,
                sum(part.node == worker.node_id for part in parts),
                sum(part.seconds for part in parts if part.node == worker.node_id),
                sum(size for (node, _), size in memory.items() if node == worker.node_id),
                worker.memory_bytes,
                bytes_in[worker.node_id],
            )
            for worker in profiles.workers
        )
        back = sum(
            parts[each.part].graph.types[parts[each.part].graph.outputs[each.slot]].size_bytes
            for each in plan.arrivals.values()
        )
        whole = replace(plan, workers=shares, seconds=seconds, cut_bytes=sum(bytes_in.values()) + back)
        return replace(whole, reasons=self._reasons(whole))

    def _reasons(self, plan: Plan) -> tuple[str, ...]:
        names = [[site.worker.name for site in sites] for sites in self._columns]
        stages, turns = self._cut.stages, self._loop.turns
        order = ", then ".join(" and ".join(mine) for mine in zip(*names, strict=True))
        took, slowest = time_text(plan.seconds), time_text(self._stages.slowest_s)
        busy = bound(stages, turns // len(names))
        said = [f"{counted(stages, 'stage')} ({order}), {turns} micro-batches by {self._asked.schedule}"]
        said.append(f"predicted {took} per step; the slowest stage takes {slowest} a micro-batch")
        said.append(f"stages are busy {busy:.0%} of the time at best")
        if len(names) > 1:
            said.append(f"{len(names)} columns share the micro-batches, and add up what they found")
        return tuple(said)


@dataclass(frozen=True, slots=True)
class _Pack:
    """Single numbers of one dtype that travel as one tensor."""

    nodes: tuple[int, ...]


def _packed(graph: WireGraph, nodes: Sequence[int]) -> list[_Pack]:
    by_dtype: dict[str, list[int]] = {}
    for index in nodes:
        if graph.types[index].shape == ():
            by_dtype.setdefault(graph.types[index].dtype.name, []).append(index)
    return [_Pack(tuple(each)) for each in by_dtype.values() if len(each) > 1]


class _Region:
    """A graph of some nodes of another, or of all that a value is made of; `needs` are its inputs, as nodes of that, or
    as packs of them."""

    def __init__(
        self, graph: WireGraph, members: Collection[int] | None = None, packs: Mapping[int, _Pack] | None = None
    ) -> None:
        self._graph, self._members, self._packs = graph, members, packs or {}
        self.builder = GraphBuilder()
        self.builder.blobs.update(graph.blobs)
        self.needs: list[int | _Pack] = []
        self._local: dict[int | _Pack, int] = {}

    def value(self, index: int) -> int:
        """A node, with all that it is made of."""
        if index not in self._local:
            node = self._graph.nodes[index]
            leaf = node.op in ("input", "param")
            if index in self._packs:
                self._local[index] = self._unpacked(index)
            elif leaf or not (node.op in DUPLICATED or self._members is None or index in self._members):
                self._local[index] = self._needed(index, *self._graph.types[index])
            else:
                operands = [self.value(each) for each in node.inputs]
                self._local[index] = self.builder.add(node.op, *operands, **node.attrs)
        return self._local[index]

    def packed(self, pack: _Pack) -> int:
        """Several numbers as one tensor."""
        numbers = [self.builder.add("reshape", self.value(each), shape=(1,)) for each in pack.nodes]
        return self.builder.add("concat", *numbers, axis=0)

    def _unpacked(self, index: int) -> int:
        pack, kind = self._packs[index], self._graph.types[index]
        if pack not in self._local:
            self._local[pack] = self._needed(pack, (len(pack.nodes),), kind.dtype)
        at = pack.nodes.index(index)
        number = self.builder.add("slice", self._local[pack], start=(at,), stop=(at + 1,), step=(1,))
        return self.builder.add("reshape", number, shape=())

    def _needed(self, what: int | _Pack, shape: tuple[int, ...], dtype: DType) -> int:
        self.needs.append(what)
        return self.builder.input(str(len(self.needs) - 1), shape, dtype)

    def row(self, index: int, turn: int) -> int:
        """A node's row of a turn, or all of it if that is -1."""
        whole, shape = self.value(index), self._graph.types[index].shape
        if turn < 0:
            return whole
        start, stop = (turn, *(0,) * (len(shape) - 1)), (turn + 1, *shape[1:])
        row = self.builder.add("slice", whole, start=start, stop=stop, step=(1,) * len(shape))
        return self.builder.add("reshape", row, shape=shape[1:])
