"""The work of ranks: of an spmd node what each rank computes, what it is given, and how its results lie.  Pure.

All ranks have one graph, and the blocks that their specs say.  Where the body branches by who a rank is, ranks that
take other branches have graphs of their own (`wire/passes/specialise_ranks.py`), and are given what those read.

It knows no devices: which device is which rank, and where operands come from, is the plan's (`rank_planner.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from wire.ir.graph import GraphBuilder, WireGraph, const_value
from wire.ir.grids import Axes, Sizes, block, coordinates, parts, spec_of
from wire.ir.types import Attrs
from wire.passes.input_slicing import Box, narrow
from wire.passes.replication import Over, varying
from wire.passes.specialise_ranks import specialise

from ..model.memory_check import memory_by_site
from ..model.plan import FromInput, Part, Window

WantedValue = tuple[int, Window | None]  # a node's value, or a window of it


class RankWork:
    """An spmd node: its results' nodes, by rank what is computed and given, and how results lie.

    The values of params in `whole` are not cut down to what a rank reads of them.
    """

    def __init__(self, graph: WireGraph, group: Sequence[int], whole: Collection[str] = ()) -> None:
        node = graph.nodes[group[0]]
        attrs, body = node.attrs, node.attrs["body"]
        self.group, self.first = tuple(group), group[0]
        self.axes, self.sizes = attrs["axes"], attrs["sizes"]
        given: list[list[WantedValue]] = [[] for _ in coordinates(self.sizes)]
        builder = GraphBuilder()
        builder.blobs.update(graph.blobs)
        bindings: dict[str, int] = {}
        uncut: set[str] = set()
        for operand, spec, inner in zip(node.inputs, attrs["in_specs"], body.inputs, strict=True):
            name, source = body.nodes[inner].attrs["name"], graph.nodes[operand]
            shape = graph.types[operand].shape
            windows = Blocks.of(shape, spec, attrs).windows
            leaf = _padded(graph, operand)
            if leaf is not None:  # windows that reach beyond it have zeros there
                windows = tuple(window or Window((0,) * len(shape), shape) for window in windows)
                operand, source = leaf, graph.nodes[leaf]
            if source.op in ("const", "iota") and None in windows:  # every rank has it with its graph
                bindings[name] = builder.add(source.op, **source.attrs)
                continue
            slot = str(len(given[0]))
            bindings[name] = builder.input(slot, *body.types[inner])
            if source.op == "spmd" or (source.op == "param" and source.attrs["name"] in whole):
                uncut.add(slot)  # the others are cut where they are sent from
            for mine, window in zip(given, windows, strict=True):
                mine.append((operand, window))
        made = builder.graph(body, bindings)
        used = [graph.nodes[index].attrs["output"] for index in group]
        alike = builder.build([made[output] for output in used])
        self.graphs, self.operands = _rank_graphs(alike, self.axes, self.sizes, given, uncut)
        outs = [attrs["out_specs"][output] for output in used]
        self.results = [Blocks.of(graph.types[at].shape, out, attrs) for at, out in zip(group, outs, strict=True)]
        over = varying(body, [frozenset(axis for dim in spec_of(text) for axis in dim) for text in attrs["in_specs"]])
        self.alike = [self._first_equal_ranks(over[output], out) for output, out in zip(used, outs, strict=True)]

    def _first_equal_ranks(self, over: Over, out: str) -> tuple[int, ...]:
        """The first rank, for every rank, that differs from it only along axes that change nothing."""
        telling = over.union(*spec_of(out))
        first: dict[tuple[int, ...], int] = {}
        alike = []
        for rank, at in enumerate(coordinates(self.sizes)):
            place = tuple(number for axis, number in zip(self.axes, at, strict=True) if axis in telling)
            alike.append(first.setdefault(place, rank))
        return tuple(alike)

    @property
    def wanted(self) -> Iterator[WantedValue]:
        """The values that any rank is given."""
        return (operand for operands in self.operands for operand in operands)

    @property
    def need_bytes(self) -> list[int]:
        """The bytes that each rank holds."""
        sizes = {graph: _held_bytes(graph) for graph in dict.fromkeys(self.graphs)}
        return [sizes[graph] for graph in self.graphs]


def _held_bytes(graph: WireGraph) -> int:
    alone = Part(0, "", 0, "", graph, tuple(FromInput(str(slot)) for slot in range(len(graph.inputs))))
    return sum(memory_by_site([alone]).values())


def _rank_graphs(
    graph: WireGraph, axes: Axes, sizes: Sizes, given: list[list[WantedValue]], uncut: Collection[str]
) -> tuple[tuple[WireGraph, ...], list[list[WantedValue]]]:
    """The graph of every rank, and what of the operands that it could be `given` it is."""
    by_rank = specialise(graph, axes, sizes)
    if all(rank_graph is graph for rank_graph in by_rank):
        return by_rank, given
    cut = {rank_graph: narrow(rank_graph, uncut) for rank_graph in dict.fromkeys(by_rank)}
    numbered: dict[WireGraph, WireGraph] = {}
    shared: dict[WireGraph, WireGraph] = {}  # ranks that compute the same have one graph
    for rank_graph, (narrowed, _) in cut.items():
        renamed = _numbered(narrowed)
        numbered[rank_graph] = shared.setdefault(renamed, renamed)
    operands = [
        [_within(mine[int(slot)], box, graph.input_types[slot].shape) for slot, box in cut[rank_graph][1].items()]
        for rank_graph, mine in zip(by_rank, given, strict=True)
    ]
    return tuple(numbered[rank_graph] for rank_graph in by_rank), operands


def _numbered(graph: WireGraph) -> WireGraph:
    """Name a program's inputs by their position."""
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    inputs = enumerate(graph.input_types.items())
    made = builder.graph(graph, {name: builder.input(str(place), *kind) for place, (name, kind) in inputs})
    return builder.build(made, graph.output_names, graph.name)


def _within(wanted: WantedValue, box: Box, shape: tuple[int, ...]) -> WantedValue:
    """A box of what is wanted, which has that shape."""
    (index, window), (starts, sizes) = wanted, box
    if sizes == shape:
        return wanted
    first = window.starts if window else (0,) * len(shape)
    return index, Window(tuple(map(int.__add__, first, starts)), sizes)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a tensor lies on a grid: into how many blocks each dimension is cut, and which block every rank has."""

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    numbers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], spec: str, attrs: Attrs) -> Blocks:
        axes, sizes, dims = attrs["axes"], attrs["sizes"], spec_of(spec)
        numbers = tuple(block(dims, axes, sizes, at) for at in coordinates(sizes))
        return cls(shape, parts(dims, axes, sizes), numbers)

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """The window of every rank; None is the whole."""
        if set(self.counts) <= {1}:
            return (None,) * len(self.numbers)
        size = tuple(dim // count for dim, count in zip(self.shape, self.counts, strict=True))
        return tuple(
            Window(tuple(n * dim for n, dim in zip(number, size, strict=True)), size) for number in self.numbers
        )


def _padded(graph: WireGraph, index: int) -> int | None:
    """The input or param that a node is with zeros behind it."""
    node = graph.nodes[index]
    if node.op != "pad" or any(node.attrs["low"]) or any(node.attrs["interior"]) or min(node.attrs["high"]) < 0:
        return None
    leaf, value = node.inputs
    zero = graph.nodes[value].op == "const" and not any(const_value(graph.nodes[value], graph.blobs).tobytes())
    return leaf if zero and graph.nodes[leaf].op in ("input", "param") else None
