"""Rank planner: the plan of a graph with `spmd` nodes, each rank on a device of its own.  A pure function.

Nodes are taken level by level: what is ordinary is placed as any graph is, on the workers of the ranks, and then come
the ranks of every spmd node of that level, as one gang.  Their numbers are sent beside their graphs, so all have the
same graph, but for those that take other branches.  A rank gets the block of an operand that its spec says: a window of
an input or a param, what a rank of before made of exactly that block, or what an ordinary part cuts for it.  Plans with
gangs are ordered: see worker/state/device_queue.py.

An spmd inside a branch or a loop is computed by one device, as the nodes around it are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wire.errors import PlacementError
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.grids import Axes, Sizes
from wire.ir.ops import GRAPH_ATTRS, LEAVES, inner_graphs
from wire.passes.unroll_spmd import joined, unroll
from wire.units import size_text, time_text

from ..model.cost_model import CostModel
from ..model.device_constraints import pins
from ..model.liveness import CONSTANTS, DUPLICATED
from ..model.memory_check import does_not_fit, missing
from ..model.plan import (
    REASONS_MAX,
    FromConst,
    FromInput,
    FromParam,
    FromPart,
    Gang,
    Output,
    Part,
    Pieces,
    Plan,
    Source,
    Window,
)
from ..model.plan_builder import plan_of, traffic_of
from ..model.profiles import CLIENT, Profiles
from ..model.region_builder import RegionBuilder
from ..model.subgraphs import output_source, parts_of
from ..placement.partition import Partitioner
from .collective_cost import exchange_factor, exchange_s, exchanged_bytes, sending_rates
from .rank_placement import Site, able, sites_for
from .rank_programs import Blocks, RankWork, WantedValue


def plan_ranks(
    graph: WireGraph, profiles: Profiles, strategy: str, sites: Sequence[Site] = (), state: Collection[str] = ()
) -> Plan:
    """The plan; PlacementError with need and have where there are too few devices or too little memory.

    `sites` are the devices by rank, if they are chosen; several ranks may share one if they exchange nothing.  Params
    that are a `state` are read in the windows in which their next values are made.
    """
    return _RankPlanner(_without_inner_ranks(graph), profiles, sites, state).plan(strategy)


def _without_inner_ranks(graph: WireGraph) -> WireGraph:
    inside = (inner for n in graph.nodes if n.op not in ("spmd", *LEAVES) for inner in inner_graphs(n.op, n.attrs))
    if not any(inner.has_spmd for inner in inside):
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: list[int] = []
    for node in graph.nodes:
        inner = {} if node.op == "spmd" else {name: unroll(node.attrs[name]) for name in GRAPH_ATTRS.get(node.op, ())}
        placed.append(builder.add(node.op, *(placed[i] for i in node.inputs), **{**node.attrs, **inner}))
    return builder.build([placed[index] for index in graph.outputs], graph.output_names, graph.name)


# -- how tensors lie on a grid ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _GangResult:
    """A result of a gang: what every rank has of it."""

    blocks: Blocks
    parts: tuple[FromPart, ...]
    alike: tuple[int, ...]  # by rank, the first of those that have the very same

    def of(self, window: Window | None) -> list[FromPart]:
        """The parts that have a block, that of the first rank in front."""
        first = self.blocks.windows.index(window)
        return [part for part, other in zip(self.parts, self.alike, strict=True) if other == self.alike[first]]

    def first(self) -> dict[tuple[int, ...], FromPart]:
        """Every block from the first rank that has it."""
        return dict(reversed(list(zip(self.blocks.numbers, self.parts, strict=True))))

    def pieces(self, shape: tuple[int, ...]) -> Output:
        """The whole, or its first elements along each dimension, for the client."""
        first: dict[Window | None, FromPart] = {}
        for window, part in zip(self.blocks.windows, self.parts, strict=True):
            first.setdefault(window, part)
        if None in first and shape == self.blocks.shape:
            return first[None]
        windows = ((part, window or Window((0,) * len(shape), self.blocks.shape)) for window, part in first.items())
        clipped = [(part, _clipped(window, shape)) for part, window in windows]
        there = [(part, window) for part, window in clipped if min(window.sizes, default=1) > 0]
        return Pieces(tuple(there or clipped[:1]))  # a tensor of no elements comes from somewhere, too


# -- the plan ---------------------------------------------------------------------------------------------


class _RankPlanner:
    """Parts as they are made, and where each value is that others need."""

    def __init__(self, graph: WireGraph, profiles: Profiles, given: Sequence[Site], state: Collection[str]) -> None:
        self._graph = graph
        self._profiles = profiles
        self._levels = _levels(graph)
        self._gangs_of: list[RankWork] = [
            RankWork(graph, group, state) for first, group in graph.siblings.items() if graph.nodes[first].op == "spmd"
        ]
        self._together = len(set(given)) == len(given)  # else ranks that exchange nothing, several of them on a device
        self._sites = _given(self._gangs_of, given, profiles) if given else _sites(self._gangs_of, profiles)
        nodes = {site.worker.node_id for sites in self._sites.values() for site in sites}
        near = tuple(worker for worker in profiles.workers if worker.node_id in nodes)
        self._near = profiles if pins(graph) else replace(profiles, workers=near)
        self._parts: list[Part] = []
        self._gangs: list[Gang] = []
        self._made: dict[WantedValue, FromPart] = {}  # by ordinary parts
        self._held: dict[int, _GangResult] = {}
        self._seconds = 0.0

    def plan(self, strategy: str) -> Plan:
        graph = self._graph
        for level in range(max(self._levels, default=0) + 1):
            self._place_ordinary(level)
            for ranks in self._gangs_of:
                if self._levels[ranks.first] == level:
                    self._place_ranks(ranks)
        outputs = tuple(self._output(index) for index in graph.outputs)
        plan = plan_of(graph, tuple(self._parts), self._profiles, strategy, outputs)
        plan = replace(
            plan,
            seconds=self._seconds + self._transfer_s(plan),
            cut_bytes=plan.cut_bytes + sum(gang.sent_bytes for gang in self._gangs),
            ordered=bool(self._gangs),
            gangs=tuple(self._gangs),
            lying=tuple(self._lying(index) for index in graph.outputs),
        )
        short = missing(plan, self._profiles)
        if any(short):
            raise does_not_fit(plan, short)
        return replace(plan, reasons=self._reasons(plan))

    # -- ordinary nodes

    def _place_ordinary(self, level: int) -> None:
        """Place the ordinary nodes of a level, with all that others want of them."""
        wanted = list(dict.fromkeys(self._wanted_of(level)))
        if not wanted:
            return
        graph, came = self._region(level, wanted)
        model = CostModel(graph, self._near)
        prediction, sketches = model.arrange(Partitioner(model).best("auto")[1])
        parts, place = parts_of(model, sketches, len(self._parts))
        self._seconds += prediction.seconds
        self._parts += [
            replace(part, sources=tuple(_connected(source, came) for source in part.sources)) for part in parts
        ]
        for key, index in zip(wanted, graph.outputs, strict=True):
            source = output_source(graph, index, place)
            assert isinstance(source, FromPart), "what is merely passed on is not asked for"
            self._made[key] = source

    def _wanted_of(self, level: int) -> Iterator[WantedValue]:
        """What an ordinary part of this level is to make for parts of later levels, ranks and the client."""
        nodes, levels = self._graph.nodes, self._levels
        mine = {i for i, node in enumerate(nodes) if levels[i] == level and node.op not in (*DUPLICATED, "spmd")}
        outputs = (index for index in self._graph.outputs if _trimmed(self._graph, index) is None)
        yield from ((index, None) for index in outputs if index in mine)
        for index, node in enumerate(nodes):
            if node.op not in ("spmd", *DUPLICATED) and levels[index] > level:
                yield from ((source, None) for source in node.inputs if source in mine)
        for ranks in self._gangs_of:
            for source, window in ranks.wanted:
                here = levels[ranks.first] == level
                held = self._held.get(source)
                cut = held is not None and window not in held.blocks.windows
                if source in mine or (here and (cut or nodes[source].op in CONSTANTS)):
                    yield source, window

    def _region(self, level: int, wanted: Sequence[WantedValue]) -> tuple[WireGraph, Mapping[str, FromPart]]:
        """A graph of what is wanted of a level, and which of its inputs come from parts."""
        graph = self._graph
        computed = {i for i in range(len(graph)) if self._levels[i] == level and graph.nodes[i].op != "spmd"}
        needed = {index for index, _ in wanted}
        for index in reversed(range(len(graph))):
            if index in needed and index in computed:
                needed.update(graph.nodes[index].inputs)
        region = _LevelRegion(graph, self._parts, self._made, self._held)
        for index in sorted(needed & computed):  # in order, so that nothing recurs deeply
            region.value(index)
        values = [region.windowed(index, window) for index, window in wanted]
        return region.builder.build(values), region.sources

    # -- ranks

    def _place_ranks(self, ranks: RankWork) -> None:
        sites = self._sites[ranks.axes, ranks.sizes]
        seconds = [site.seconds(graph) for site, graph in zip(sites, ranks.graphs, strict=True)]
        first = len(self._parts)
        for rank, (site, graph) in enumerate(zip(sites, ranks.graphs, strict=True)):
            sources = tuple(self._source(wanted, site) for wanted in ranks.operands[rank])
            worker, device = site.worker, site.device
            self._parts.append(
                Part(
                    first + rank, worker.node_id, device.index, device.engine, graph, sources, seconds[rank],
                    device.slower,
                )
            )  # fmt: skip
        numbers = range(first, first + len(sites))
        for slot, index in enumerate(ranks.group):
            made = tuple(FromPart(number, slot) for number in numbers)
            self._held[index] = _GangResult(ranks.results[slot], made, ranks.alike[slot])
        if not self._together:
            return
        graph = ranks.graphs[0]  # all of them meet in the same
        sent = exchanged_bytes(graph, len(sites))
        nodes = [site.worker.node_id for site in sites]
        shared_s = exchange_s(graph, ranks.axes, ranks.sizes, nodes, self._profiles)
        rates = sending_rates(nodes, self._profiles)
        slower = exchange_factor(graph, nodes, self._profiles)
        self._gangs.append(Gang(tuple(numbers), ranks.axes, ranks.sizes, shared_s, sent, rates, slower))
        self._seconds += max(seconds) + shared_s

    def _source(self, wanted: WantedValue, site: Site) -> Source:
        """The source of what a rank on this site wants; what the site has already is not sent to it."""
        index, window = wanted
        node = self._graph.nodes[index]
        if node.op == "input":
            return FromInput(node.attrs["name"], window)
        if node.op == "param":
            return FromParam(node.attrs["name"], window)
        if wanted in self._made:
            return self._made[wanted]
        having = self._held[index].of(window)
        there = site.worker.node_id, site.device.index
        return next((source for source in having if self._place_of(source) == there), having[0])

    def _place_of(self, source: FromPart) -> tuple[str, int]:
        part = self._parts[source.part]
        return part.node, part.device

    # -- the rest of a plan

    def _lying(self, index: int) -> tuple[tuple[FromPart, Window | None], ...]:
        """The window of an output that every rank has, if ranks made it; a block may reach beyond the tensor."""
        made = _trimmed(self._graph, index)
        held = self._held.get(index if made is None else made)
        if held is None:
            return ()
        whole = self._graph.types[index].shape == held.blocks.shape
        full = Window((0,) * len(held.blocks.shape), held.blocks.shape)
        windows = (window or (None if whole else full) for window in held.blocks.windows)
        return tuple(zip(held.parts, windows, strict=True))

    def _output(self, index: int) -> Output:
        node, shape = self._graph.nodes[index], self._graph.types[index].shape
        made = _trimmed(self._graph, index)
        if node.op == "spmd" or made is not None:
            return self._held[index if made is None else made].pieces(shape)
        if (index, None) in self._made:
            return self._made[index, None]
        if node.op in CONSTANTS:
            return FromConst(index)
        return FromInput(node.attrs["name"]) if node.op == "input" else FromParam(node.attrs["name"])

    def _transfer_s(self, plan: Plan) -> float:
        """Seconds until what the ranks are fed is there, and what the workers made is back."""
        fed: dict[str, int] = {}
        ranks = {number for gang in self._gangs for number in gang.parts}
        for part in plan.parts:
            size_bytes = sum(part.sizes(FromInput).values())
            if part.index in ranks and size_bytes:
                fed[part.node] = fed.get(part.node, 0) + size_bytes
        returned = traffic_of(plan, self._profiles).returned
        link = self._profiles.link
        feeding_s = max((link(CLIENT, node).seconds(size) for node, size in fed.items()), default=0.0)
        returning_s = max((link(node, CLIENT).seconds(size) for node, size in returned.items()), default=0.0)
        return feeding_s + returning_s

    def _reasons(self, plan: Plan) -> tuple[str, ...]:
        names = {worker.node_id: worker.name for worker in self._profiles.workers}
        used = dict.fromkeys(names[part.node] for part in plan.parts)
        reasons = [
            f"{len(used)} of {len(names)} workers ({', '.join(used)}), predicted {time_text(plan.seconds)} per call"
        ]
        for gang in plan.gangs:
            grid = " x ".join(f"{axis} {size}" for axis, size in zip(gang.axes, gang.sizes, strict=True))
            where = ", ".join(dict.fromkeys(names[plan.parts[part].node] for part in gang.parts))
            reasons.append(
                f"the ranks of the grid {grid} each have a device, on {where}; they send each other "
                f"{size_text(gang.sent_bytes)} per call, predicted {time_text(gang.seconds)}"
            )
            mine = [plan.parts[part] for part in gang.parts]
            if any(part.graph is not mine[0].graph for part in mine):
                took = ", ".join(f"{time_text(part.seconds)} on {names[part.node]}" for part in mine)
                reasons.append(f"they do not compute the same, and are predicted to take {took}")
        return tuple(reasons[:REASONS_MAX])


class _LevelRegion(RegionBuilder):
    """Ordinary nodes of a level.  Results of ranks and of earlier parts are inputs; `sources` say what each of them is,
    by a name that no input of a program has."""

    def __init__(
        self,
        graph: WireGraph,
        parts: Sequence[Part],
        made: Mapping[WantedValue, FromPart],
        held: Mapping[int, _GangResult],
    ) -> None:
        super().__init__(graph)
        self._parts, self._made, self._held = parts, made, held
        self.sources: dict[str, FromPart] = {}

    def outside(self, index: int) -> int | None:
        if self.graph.nodes[index].op == "spmd":
            held = self._held[index]
            blocks = {at: self._from_part(f"#{index}.{at}", source) for at, source in held.first().items()}
            return joined(self.builder, blocks, held.blocks.counts)
        made = self._made.get((index, None))
        return None if made is None else self._from_part(f"#{index}", made)

    def _from_part(self, name: str, source: FromPart) -> int:
        self.sources[name] = source
        graph = self._parts[source.part].graph
        return self.builder.input(name, *graph.types[graph.outputs[source.slot]])

    def windowed(self, index: int, window: Window | None) -> int:
        """A node, or a window of it."""
        value = self.value(index)
        return value if window is None else _cut(self.builder, value, window)


def _sites(gangs: Sequence[RankWork], profiles: Profiles) -> dict[tuple[Axes, Sizes], tuple[Site, ...]]:
    """A device for every rank of each grid, the same for all that a grid computes."""
    by_grid: dict[tuple[Axes, Sizes], list[RankWork]] = {}
    for ranks in gangs:
        by_grid.setdefault((ranks.axes, ranks.sizes), []).append(ranks)
    return {
        grid: sites_for(
            list(zip(*[work.graphs for work in mine], strict=True)),
            *grid,
            profiles,
            list(map(max, zip(*[work.need_bytes for work in mine], strict=True))),
        )
        for grid, mine in by_grid.items()
    }


def _given(
    gangs: Sequence[RankWork], given: Sequence[Site], profiles: Profiles
) -> dict[tuple[Axes, Sizes], tuple[Site, ...]]:
    """Use sites that the caller chose; PlacementError if one of them cannot compute its ranks."""
    for ranks in gangs:
        fit = {graph: set(able([graph], profiles)) for graph in dict.fromkeys(ranks.graphs)}
        lacking = {site for site, graph in zip(given, ranks.graphs, strict=True) if site not in fit[graph]}
        if lacking:
            names = ", ".join(sorted(site.worker.name for site in lacking))
            raise PlacementError(f"some of the ranks' ops are not supported by {names}")
    return {(ranks.axes, ranks.sizes): tuple(given) for ranks in gangs}


def _levels(graph: WireGraph) -> list[int]:
    """How many gangs must be done one after another before a node can be computed."""
    levels: list[int] = []
    for node in graph.nodes:
        levels.append(max((levels[i] + (graph.nodes[i].op == "spmd") for i in node.inputs), default=0))
    return levels


def _trimmed(graph: WireGraph, index: int) -> int | None:
    """The result of ranks of which a node is the first elements along each dimension, which whoever puts it together
    can leave out as well."""
    node = graph.nodes[index]
    if node.op != "slice" or any(node.attrs["start"]) or set(node.attrs["step"]) - {1}:
        return None
    return node.inputs[0] if graph.nodes[node.inputs[0]].op == "spmd" else None


def _clipped(window: Window, shape: tuple[int, ...]) -> Window:
    sizes = zip(window.starts, window.sizes, shape, strict=True)
    return Window(window.starts, tuple(max(0, min(size, dim - start)) for start, size, dim in sizes))


def _cut(builder: GraphBuilder, value: int, window: Window) -> int:
    stop = tuple(start + size for start, size in zip(window.starts, window.sizes, strict=True))
    return builder.add("slice", value, start=window.starts, stop=stop, step=(1,) * len(stop))


def _connected(source: Source, came: Mapping[str, FromPart]) -> Source:
    return came.get(source.name, source) if isinstance(source, FromInput) else source
