"""Stage builder: the plan of a training step whose loop over micro-batches was cut into stages.  Pure.

Parts stand in an order in which they can run: what of the state stages send others, what each needs before the loop,
the loop by its schedule, what several columns add up, and what comes after, in as many rounds as stages wait for each
other.  `pipeline_planner.py` chooses the stages; this only carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wire.errors import PlacementError
from wire.ir.graph import GraphBuilder, WireGraph
from wire.policy.pipeline_schedules import FORWARD, SCHEDULES, Event, bound, in_order
from wire.policy.strategies import Pipeline
from wire.units import counted, time_text

from ..model.liveness import CONSTANTS
from ..model.plan import FromConst, FromInput, FromParam, FromPart, Output, Part, Plan, Source, Window
from ..model.plan_builder import plan_of
from ..model.profiles import Profiles
from ..model.timeline import timeline
from ..spmd.rank_placement import Site
from .epilogue import Epilogue
from .microbatch_loop import CARRY, CONST, ROW, Cut, Key, Line
from .stage_region import Pack, StageRegion, packs_of
from .stage_search import Stages


@dataclass(slots=True, eq=False)
class _Draft:
    """A part before it has a number.  Its sources are leaves of the graph, or outputs of other drafts."""

    stage: int
    column: int
    graph: WireGraph
    sources: list[_DraftSource] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DraftOutput:
    draft: _Draft
    slot: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    """An input or a param of the graph, or a window of it."""

    node: int
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class _BeforeLoop:
    """A node's value that its stage makes before the loop, or the rows of it that one micro-batch has."""

    node: int
    micro_batch: int | None = None


_DraftSource = _DraftOutput | _Leaf | _BeforeLoop
_Place = tuple[int, int]  # stage, column


class StageBuilder:
    """The plan of these stages, whose columns are on these sites."""

    def __init__(
        self, graph: WireGraph, line: Line, epilogue: Epilogue, stages: Stages, columns: Sequence[tuple[Site, ...]],
        strategy: Pipeline, profiles: Profiles,
    ) -> None:  # fmt: skip
        self._graph, self._loop, self._line, self._epilogue = graph, line.loop, line, epilogue
        self._stages, self._columns, self._strategy, self._profiles = stages, columns, strategy, profiles
        self._cut = Cut(line, stages.cuts)
        self._results = {index: carry for carry, index in line.loop.results.items()}
        self._in_loop: dict[tuple[int, int, bool, int], _Draft] = {}  # by column, stage, way and number of micro-batch
        self._sums: dict[tuple[int, int], _DraftOutput] = {}  # of the loops of all columns, by carry and column
        self._after: dict[tuple[int | Pack, int], _DraftOutput] = {}  # nodes after the loop, by column
        self._before: dict[tuple[_Place, _BeforeLoop], _DraftOutput] = {}
        self._shared: dict[tuple[_Place, int], _DraftOutput] = {}  # leaves, by who has and sends them

    def plan(self) -> Plan:
        """The plan; whether it fits is for the caller to see."""
        drafts = [*self._loop_drafts(), *self._sum_drafts(), *self._epilogue_drafts()]
        drafts = [*self._before_drafts(drafts), *drafts]
        drafts = [*self._shared_drafts(drafts), *drafts]
        numbers = {draft: number for number, draft in enumerate(drafts)}
        parts = tuple(self._part(draft, numbers) for draft in drafts)
        outputs = tuple(self._output(index, 0, numbers) for index in self._graph.outputs)
        plan = plan_of(self._graph, parts, self._profiles, self._strategy.text, outputs, ordered=True)
        plan = replace(plan, seconds=timeline(plan, self._profiles).seconds, lying=self._lying(numbers))
        return replace(plan, reasons=self._reasons(plan))

    # -- the loop

    def _loop_drafts(self) -> list[_Draft]:
        drafts = []
        schedule, count = SCHEDULES[self._strategy.schedule], len(self._columns)
        for column in range(count):
            turns = range(column, self._loop.turns, count)
            for stage, event in in_order(schedule, self._cut.stages, len(turns)):
                forward = event.kind == FORWARD
                piece = self._cut.piece(stage, forward)
                if piece.made:
                    draft = _Draft(stage, column, piece.graph)
                    draft.sources += [self._loop_source(key, stage, column, event, turns) for key in piece.needs]
                    self._in_loop[column, stage, forward, event.batch] = draft
                    drafts.append(draft)
        return drafts

    def _loop_source(self, key: Key, stage: int, column: int, event: Event, turns: Sequence[int]) -> _DraftSource:
        """The source of an input of a stage's graph, for one micro-batch."""
        if key.kind == ROW:
            ahead = self._cut.piece(stage, True)
            leaf = self._line.body.inputs[self._loop.carry + self._loop.consts + key.number]
            if event.kind != FORWARD and leaf in ahead.made:
                return self._made_in_loop(column, stage, True, event.batch, leaf)
            return self._rows(self._loop.operand((ROW, key.number)), turns[event.batch])
        if key.kind == CONST:
            return self._leaf_or_before(self._loop.operand((CONST, key.number)))
        if key.kind == CARRY:
            return self._carried(key.number, event.batch if key.newest else event.version, stage, column)
        home, forward = self._cut.home(key.number)
        return self._made_in_loop(column, home, forward, event.batch, key.number)

    def _made_in_loop(self, column: int, stage: int, forward: bool, batch: int, node: int) -> _DraftOutput:
        draft = self._in_loop.get((column, stage, forward, batch))
        if draft is None:
            raise PlacementError(
                f"stages that the schedule {self._strategy.schedule!r} keeps apart read the same weights"
            )
        return _DraftOutput(draft, self._cut.piece(stage, forward).made.index(node))

    def _carried(self, carry: int, turns: int, stage: int, column: int) -> _DraftSource:
        """The value of a carry after `turns` turns of a column."""
        output = self._loop.body.outputs[carry]
        if turns == 0 or self._line.leaves.get(output) == (CARRY, carry):
            return self._leaf_or_before(self._loop.operand((CARRY, carry)))
        if output in self._line.leaves:
            raise PlacementError("a loop that passes on what it is given is not cut into stages")
        return self._made_in_loop(column, self._cut.carry_stage(carry, stage), False, turns - 1, output)

    def _rows(self, node: int, turn: int) -> _DraftSource:
        """The rows of a turn: a window of an input, or what the part before the loop cuts."""
        graph = self._graph
        cut = graph.nodes[node]
        if cut.op == "reshape" and graph.nodes[cut.inputs[0]].op == "input":
            shape, rows = graph.types[cut.inputs[0]].shape, graph.types[node].shape
            if len(rows) == len(shape) + 1 and rows[0] * rows[1] == shape[0] and rows[2:] == shape[1:]:
                starts = (turn * rows[1], *(0,) * (len(shape) - 1))
                return _Leaf(cut.inputs[0], Window(starts, rows[1:]))
        return _BeforeLoop(node, turn)

    def _leaf_or_before(self, node: int) -> _DraftSource:
        return _Leaf(node) if self._graph.nodes[node].op in ("input", "param") else _BeforeLoop(node)

    # -- sums over columns

    def _sum_drafts(self) -> list[_Draft]:
        """Parts that add up what several columns did, in their order; none for one column."""
        count, drafts = len(self._columns), []
        for stage in range(self._cut.stages if count > 1 else 0):
            carries = [carry for carry in sorted(self._loop.results) if self._cut.carry_stage(carry, 0) == stage]
            if not carries:
                continue
            graph = self._sum_graph(carries, count)
            for column in range(count):
                sources = [self._loop_result(carry, other) for carry in carries for other in range(count)]
                draft = _Draft(stage, column, graph, sources)
                drafts.append(draft)
                self._sums.update({(carry, column): _DraftOutput(draft, slot) for slot, carry in enumerate(carries)})
        return drafts

    def _sum_graph(self, carries: Sequence[int], count: int) -> WireGraph:
        builder = GraphBuilder()
        totals: list[int] = []
        for carry in carries:
            kind = self._loop.body.types[self._loop.body.outputs[carry]]
            first = len(totals) * count
            terms = [builder.input(str(first + column), *kind) for column in range(count)]
            total = terms[0]
            for term in terms[1:]:
                total = builder.add("add", total, term)
            totals.append(total)
        return builder.build(totals)

    def _loop_result(self, carry: int, column: int) -> _DraftSource:
        """The value of a carry when a column's loop is over."""
        turns = len(range(column, self._loop.turns, len(self._columns)))
        return self._carried(carry, turns, self._cut.carry_stage(carry, 0), column)

    # -- after the loop: nodes are put into rounds, what leaves each is packed, and its parts are built

    def _epilogue_drafts(self) -> list[_Draft]:
        stage_of = {index: self._cut.stage(self._epilogue.place[index]) for index in self._epilogue.members}
        packs: dict[int, Pack] = {}
        drafts = []
        for (_, stage), members in sorted(self._rounds(stage_of).items()):
            single, packed = self._leaving(set(members), stage, stage_of)
            foreign = {index: pack for index, pack in packs.items() if stage_of[index] != stage}
            region = StageRegion(self._graph, set(members), foreign)
            graph = region.builder.build([*map(region.value, single), *map(region.packed, packed)])
            for column in range(len(self._columns)):
                draft = _Draft(stage, column, graph, [self._after_loop(node, column) for node in region.needs])
                leaving: list[int | Pack] = [*single, *packed]
                self._after.update({(node, column): _DraftOutput(draft, slot) for slot, node in enumerate(leaving)})
                drafts.append(draft)
            packs.update({index: pack for pack in packed for index in pack.nodes})
        return drafts

    def _rounds(self, stage_of: Mapping[int, int]) -> dict[tuple[int, int], list[int]]:
        """Nodes by round and stage.  A node is in a later round than what it reads of other stages."""
        round_of: dict[int, int] = {}
        rounds: dict[tuple[int, int], list[int]] = {}
        for index, stage in stage_of.items():
            earliest = [0]
            for operand in self._graph.nodes[index].inputs:
                if operand in round_of:
                    earliest.append(round_of[operand] + (stage_of[operand] != stage))
                elif operand in self._results:
                    earliest.append(int(self._cut.carry_stage(self._results[operand], 0) != stage))
            round_of[index] = max(earliest)
            rounds.setdefault((round_of[index], stage), []).append(index)
        return rounds

    def _leaving(self, members: set[int], stage: int, stage_of: Mapping[int, int]) -> tuple[list[int], list[Pack]]:
        """The nodes of a round that other parts read: those that go as they are, and numbers packed for other
        stages."""
        read_on: dict[int, set[int]] = {}  # by node the stages whose other parts read it
        for reader in stage_of.keys() - members:
            for index in members.intersection(self._graph.nodes[reader].inputs):
                read_on.setdefault(index, set()).add(stage_of[reader])
        in_order = sorted(members)
        single = [index for index in in_order if stage in read_on.get(index, ()) or index in self._graph.outputs]
        far = [index for index in in_order if read_on.get(index, set()) - {stage}]
        packed = packs_of(self._graph, far)
        in_packs = {index for pack in packed for index in pack.nodes}
        return [*single, *(index for index in far if index not in single and index not in in_packs)], packed

    def _after_loop(self, node: int | Pack, column: int) -> _DraftSource:
        """A node's value, or those of several, for what comes after the loop."""
        if not isinstance(node, Pack) and node in self._results:
            carry = self._results[node]
            return self._sums[carry, column] if len(self._columns) > 1 else self._loop_result(carry, column)
        if (node, column) in self._after:
            return self._after[node, column]
        assert isinstance(node, int), "a pack is made before it is read"
        return _Leaf(node)

    # -- before the loop

    def _before_drafts(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """The parts that make what the loop wants of inputs, and first values of its carries: one by stage and
        column."""
        wanted: dict[_Place, dict[_BeforeLoop, None]] = {}
        for draft in drafts:
            values = dict.fromkeys(source for source in draft.sources if isinstance(source, _BeforeLoop))
            if values:
                wanted.setdefault((draft.stage, draft.column), {}).update(values)
        before = []
        for place, values in sorted(wanted.items()):
            region = StageRegion(self._graph)
            graph = region.builder.build([region.micro_batch(value.node, value.micro_batch) for value in values])
            sources: list[_DraftSource] = [_Leaf(node) for node in region.needs if isinstance(node, int)]
            draft = _Draft(*place, graph, sources)
            self._before.update({(place, value): _DraftOutput(draft, slot) for slot, value in enumerate(values)})
            before.append(draft)
        return before

    def _shared_drafts(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """The parts that send other stages what they read of the state that one has: one by stage and column."""
        wanted: dict[_Place, dict[int, None]] = {}
        for draft in drafts:
            for source in draft.sources:
                if isinstance(source, _Leaf) and (owner := self._owner(source.node, draft.stage)) != draft.stage:
                    wanted.setdefault((owner, draft.column), {})[source.node] = None
        senders = []
        for place, nodes in sorted(wanted.items()):
            region = StageRegion(self._graph)
            graph = region.builder.build([region.value(node) for node in nodes])
            draft = _Draft(*place, graph, [_Leaf(node) for node in nodes])
            self._shared.update({(place, node): _DraftOutput(draft, slot) for slot, node in enumerate(nodes)})
            senders.append(draft)
        return senders

    def _owner(self, node: int, reader: int) -> int:
        """The stage that has a leaf: one tensor of the state has one owner, whatever else is read is everywhere."""
        place = self._epilogue.owner.get(self._graph.nodes[node].attrs["name"])
        return self._cut.stage(place) if place is not None and self._graph.nodes[node].op == "param" else reader

    # -- the plan

    def _part(self, draft: _Draft, numbers: Mapping[_Draft, int]) -> Part:
        site = self._columns[draft.column][draft.stage]
        sources = tuple(self._source(source, draft, numbers) for source in draft.sources)
        return Part(
            numbers[draft], site.worker.node_id, site.device.index, site.device.engine, draft.graph, sources,
            site.seconds(draft.graph), site.device.slower,
        )  # fmt: skip

    def _source(self, source: _DraftSource, draft: _Draft, numbers: Mapping[_Draft, int]) -> Source:
        if isinstance(source, _BeforeLoop):
            source = self._before[(draft.stage, draft.column), source]
        elif isinstance(source, _Leaf) and (owner := self._owner(source.node, draft.stage)) != draft.stage:
            source = self._shared[(owner, draft.column), source.node]
        if isinstance(source, _DraftOutput):
            return FromPart(numbers[source.draft], source.slot)
        node = self._graph.nodes[source.node]
        return (FromInput if node.op == "input" else FromParam)(node.attrs["name"], source.window)

    def _output(self, index: int, column: int, numbers: Mapping[_Draft, int]) -> Output:
        node = self._graph.nodes[index]
        if node.op in CONSTANTS:
            return FromConst(index)
        source = self._after_loop(index, column)
        if isinstance(source, _DraftOutput):
            return FromPart(numbers[source.draft], source.slot)
        return (FromInput if node.op == "input" else FromParam)(node.attrs["name"])

    def _lying(self, numbers: Mapping[_Draft, int]) -> tuple[tuple[tuple[FromPart, None], ...], ...]:
        """Every output as each of several columns has it."""
        if len(self._columns) == 1:
            return ()
        columns = range(len(self._columns))
        by_output = ([self._output(index, column, numbers) for column in columns] for index in self._graph.outputs)
        return tuple(tuple((o, None) for o in outputs if isinstance(o, FromPart)) for outputs in by_output)

    def _reasons(self, plan: Plan) -> tuple[str, ...]:
        names = [[site.worker.name for site in sites] for sites in self._columns]
        stages, turns = self._cut.stages, self._loop.turns
        order = ", then ".join(" and ".join(in_stage) for in_stage in zip(*names, strict=True))
        took, slowest = time_text(plan.seconds), time_text(self._stages.slowest_s)
        busy = bound(stages, turns // len(names))
        reasons = [f"{counted(stages, 'stage')} ({order}), {turns} micro-batches by {self._strategy.schedule}"]
        reasons.append(f"predicted {took} per step; the slowest stage takes {slowest} a micro-batch")
        reasons.append(f"stages are busy {busy:.0%} of the time at best")
        if len(names) > 1:
            reasons.append(f"{len(names)} columns share the micro-batches, and add up what they found")
        return tuple(reasons)
