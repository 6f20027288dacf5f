"""Partition: from a graph over whole tensors to the graph of a rank, as an `spmd` node.

Layouts are found for all tensors first (`propagate.py`).  Then every node is written as a rank computes its share of
it, operands first.  How its factors are split is chosen by cost: from what its operands are held in, and what was found
for its results, the way that takes least time for moving operands, computing, and settling the result.  Collectives
come in where an operand is not held as a node needs it, and what was moved once is remembered.  A sum that ranks have
terms of waits for as long as everyone who takes it is linear (`partial_sums.py`), so that two such sums are added
before one reduction, and a reduction whose result is split anyway scatters.

What does not divide is padded with zeros on the way in and trimmed on the way out.  In between, elements behind the end
mean nothing, and are replaced where an op would mix them with others: by 0 in a sum, by -inf in a maximum.

A composite split along an axis that its body sums over is replaced by its body; branches and loops are split only where
their graphs need no word between ranks (`region_dims.py`), and get their operands whole otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GraphError
from ..ir.graph import GraphBuilder, WireGraph
from .annotations import asked_axes, asked_layouts, spmd_attrs, spmd_specs
from .assignment import Assignment, agreements, dims_of, projected, shards_of
from .decompose import opened
from .layout import Axes, Dims, Layout, local_shape, padded_shape, whole
from .local_attrs import local_attrs
from .op_cost import Prices, Rates, result_layout
from .partial_sums import may_wait, stays_partial
from .position_ops import SPECIAL, Share
from .program import Program
from .propagate import propagate
from .rank_emitter import Held, Rank, identity
from .rule import Rule


def partition(
    graph: WireGraph, axes: Axes | None = None, specs: Mapping[str, Dims] | None = None, rates: Rates | None = None,
    in_order: bool = False,
) -> WireGraph:  # fmt: skip
    """`graph` with the same inputs, params and outputs, computed by the ranks of a grid together.

    `specs` are layouts of inputs, params and outputs by name, besides those that `constraint` nodes ask for.  A graph
    in which nothing is asked for is returned as it is.  With `in_order` every sum of numbers that round is one rank's.
    AttrError if a spec does not fit, InputError if there are two grids.
    """
    rates = rates or Rates()
    grid = asked_axes(graph, axes)
    if grid is None:
        return graph
    while True:
        program = Program(graph, grid, asked_layouts(graph, grid, specs or {}), in_order)
        prices = Prices(program, rates)
        wanted = propagate(program, prices)
        inner = opened(program, wanted)
        if inner is graph:
            return Partitioner(program, prices, wanted).partitioned()
        graph = inner


@dataclass(frozen=True, slots=True)
class Option:
    """One way to compute a node: the axes of its factors, and what its partial operands stay partial over."""

    assignment: Assignment
    kept: tuple[str, ...] = ()
    partial: tuple[bool, ...] = ()


class Partitioner:
    """The writer of a rank's graph; `wanted` are layouts for every node, of which the fixed ones are kept to."""

    def __init__(self, program: Program, prices: Prices, wanted: Sequence[Dims]) -> None:
        self._program = program
        self._graph = program.graph
        self._axes = program.axes
        self._prices = prices
        self._wanted = wanted
        self._outer = GraphBuilder()
        self._outer.blobs.update(program.graph.blobs)
        self._rank = Rank(program.axes)
        self._held: dict[int, list[Held]] = {}
        self._entered: dict[int, int] = {}
        self._operands: list[tuple[int, Dims]] = []

    def partitioned(self) -> WireGraph:
        """The graph with its `spmd` nodes."""
        graph = self._graph
        for index in graph.inputs:
            self._declared(index)  # all of them: they are the signature
        for first, group in self._program.groups.items():
            self._node(first, group)
        leaves = {i for i in graph.outputs if i in self._entered or graph.nodes[i].op == "param"}
        inner = list(dict.fromkeys(index for index in graph.outputs if index not in leaves))
        results = dict(zip(inner, self._results(inner), strict=True))
        placed = [self._declared(index) if index in leaves else results[index] for index in graph.outputs]
        return self._outer.build(placed, graph.output_names, graph.name)

    def _results(self, inner: Sequence[int]) -> list[int]:
        """The outer nodes that have these nodes' whole values."""
        if not inner:
            return []
        final = [self._final(index) for index in inner]
        body = self._rank.builder.build([held.index for held in final])
        specs = [held.layout.dims for held in final]
        operands = [index for index, _ in self._operands]
        attrs = spmd_attrs(body, self._axes, [dims for _, dims in self._operands], specs)
        outer = Rank(self._axes, self._outer)
        results = []
        for place, index in enumerate(inner):
            result = outer.add("spmd", *operands, **attrs, output=place)
            for dim, size in enumerate(self._graph.types[index].shape):
                result = outer.trimmed(result, dim, size)
            results.append(result)
        return results

    def _final(self, index: int) -> Held:
        """An output, complete: as it was asked for, with zeros behind the end like what comes in, else as it is."""
        first = self._held[index][0]
        if index not in self._program.fixed and not first.layout.partial:
            return first
        held = self._obtained(index, Layout(self._wanted[index]))
        kind, dims = self._graph.types[index], held.layout.dims
        if held.is_clean or index not in self._program.fixed:
            return held
        return Held(self._rank.masked(held.index, kind, dims, range(len(dims)), 0), held.layout, is_clean=True)

    # -- leaves -------------------------------------------------------------------------------------------

    def _declared(self, index: int) -> int:
        """The leaf in the outer graph."""
        if index not in self._entered:
            node = self._graph.nodes[index]
            self._entered[index] = self._outer.add(node.op, **node.attrs)
        return self._entered[index]

    def _enter(self, index: int) -> Held:
        """A leaf as an operand of the ranks, its dimensions padded with zeros to what they share out evenly."""
        kind, dims = self._graph.types[index], self._wanted[index]
        outer = Rank(self._axes, self._outer)
        operand = self._declared(index)
        for dim, (has, needs) in enumerate(zip(kind.shape, padded_shape(kind.shape, dims, self._axes), strict=True)):
            operand = outer.padded(operand, dim, needs - has)
        name = str(len(self._operands))
        self._operands.append((operand, dims))
        local = self._rank.builder.input(name, local_shape(kind.shape, dims, self._axes), kind.dtype)
        return Held(local, Layout(dims), is_clean=True)

    def _const(self, index: int) -> Held:
        """A small constant, which every rank has."""
        node = self._graph.nodes[index]
        if "blob" in node.attrs:
            return self._enter(index)
        return Held(self._rank.add("const", **node.attrs), whole(len(self._graph.types[index].shape)), is_clean=True)

    # -- nodes --------------------------------------------------------------------------------------------

    def _node(self, first: int, group: tuple[int, ...]) -> None:
        op, inputs, _ = self._graph.nodes[first]
        if op in ("input", "param"):
            self._held[first] = [self._enter(first)] if self._program.users[first] else []
        elif op == "const":
            self._held[first] = [self._const(first)]
        elif op == "constraint":
            self._held[first] = [self._obtained(inputs[0], Layout(self._wanted[first]))]
        elif op == "spmd":
            self._inlined(group)
        else:
            self._computed(group)

    def _inlined(self, group: tuple[int, ...]) -> None:
        """A program of ranks is there already: its operands as it asks for them, and its nodes as they are."""
        _, inputs, attrs = self._graph.nodes[group[0]]
        in_specs, out_specs = spmd_specs(attrs)
        body: WireGraph = attrs["body"]
        operands = [self._obtained(source, Layout(dims)).index for source, dims in zip(inputs, in_specs, strict=True)]
        names = [body.nodes[index].attrs["name"] for index in body.inputs]
        outputs = self._rank.builder.graph(body, dict(zip(names, operands, strict=True)))
        for index in group:
            place = self._program.output(index)
            self._held[index] = [Held(outputs[place], Layout(out_specs[place]))]

    def _computed(self, group: tuple[int, ...]) -> None:
        rule = self._program.rules[group[0]]
        op, inputs, attrs = self._graph.nodes[group[0]]
        if rule is None:
            raise GraphError(f"{op} stands in a graph over whole tensors", op=op, next_step="Write it inside shard_map")
        option = min(self._options(group, rule), key=lambda candidate: self._cost_s(group, rule, candidate))
        needed = self._needed(rule, option)
        types = self._program.types(group[0])
        operands = [self._obtained(source, layout) for source, layout in zip(inputs, needed, strict=True)]
        shards = shards_of(rule, option.assignment, self._axes)
        is_special = any(option.assignment.get(factor) for factor in rule.special)
        for index in group:
            kind = self._graph.types[index]
            layout = result_layout(self._program, index, rule, option.assignment, option.kept)
            if is_special:
                split = [layout.dims for layout in needed]
                share = Share(attrs, types, kind, [operand.index for operand in operands], split, layout.dims)
                result = SPECIAL[op](self._rank, share)
            else:
                shares = [self._ready(rule, place, held, types[place], shards) for place, held in enumerate(operands)]
                own = self._graph.nodes[index].attrs
                result = self._rank.add(op, *shares, **local_attrs(op, own, rule, shards, types, kind))
            self._held[index] = [Held(result, layout)]

    def _ready(self, rule: Rule, place: int, held: Held, kind: Any, shards: Sequence[int]) -> int:
        """An operand whose elements behind the end change no reduction over them."""
        index = held.index
        for dim, factors in enumerate(rule.operands[place]):
            for factor in factors:
                if factor in rule.reduced and shards[factor] > 1:
                    fill = identity(rule.reduced[factor], kind.dtype)
                    if not (held.is_clean and fill == 0):
                        index = self._rank.masked(index, kind, held.layout.dims, [dim], fill)
        return index

    # -- choosing -----------------------------------------------------------------------------------------

    def _options(self, group: tuple[int, ...], rule: Rule) -> Iterator[Option]:
        """Ways to compute a node: as one of its operands or results is split, and the others as far as they agree;
        with its partial operands as they are, if it is linear, and complete; and by every rank alone."""
        inputs = self._graph.nodes[group[0]].inputs
        parts = [projected(rule, rule.results[self._program.output(index)], self._wanted[index], self._axes)
                 for index in group]  # fmt: skip
        for source, dims in zip(inputs, rule.operands, strict=True):
            parts += [projected(rule, dims, held.layout.dims, self._axes) for held in self._held[source]]
        offers: list[Assignment] = [*agreements(rule, [part for part in parts if part], self._axes), {}]
        kept, partial = self._kept(group[0])
        if kept:
            for offer in offers:
                mine = {factor: split for factor, split in offer.items() if not set(split).intersection(kept)}
                yield Option(mine, kept, partial)
        for offer in offers:
            yield Option(offer)

    def _kept(self, index: int) -> tuple[tuple[str, ...], tuple[bool, ...]]:
        """What a node's partial operands may stay partial over, and which they are."""
        node = self._graph.nodes[index]
        layouts = [self._held[source][0].layout for source in node.inputs]
        partial = tuple([bool(layout.partial) and self._waits(source)
                         for source, layout in zip(node.inputs, layouts, strict=True)])  # fmt: skip
        over = {layout.partial for layout, is_partial in zip(layouts, partial, strict=True) if is_partial}
        sums = all(layout.reduction == "sum" for layout, is_partial in zip(layouts, partial, strict=True) if is_partial)
        if len(over) != 1 or not sums or not stays_partial(node.op, partial):
            return (), ()
        return over.pop(), partial

    def _waits(self, index: int) -> bool:
        """Whether nobody needs a node complete."""
        users = self._program.users[index]
        return index not in self._graph.outputs and all(
            may_wait(self._graph.nodes[user].op, place) for user, place in users
        )

    def _needed(self, rule: Rule, option: Option) -> list[Layout]:
        """The layouts that an option needs operands in."""
        layouts = [Layout(dims_of(rule, dims, option.assignment, self._axes)) for dims in rule.operands]
        if not option.kept:
            return layouts
        return [
            Layout(layout.dims, option.kept) if is_partial else layout
            for layout, is_partial in zip(layouts, option.partial, strict=True)
        ]

    def _cost_s(self, group: tuple[int, ...], rule: Rule, option: Option) -> float:
        cost = self._prices.computing_s(group[0], rule, option.assignment)
        inputs = self._graph.nodes[group[0]].inputs
        for source, layout in dict.fromkeys(zip(inputs, self._needed(rule, option), strict=True)):
            cost += self._prices.moving_s(source, [held.layout for held in self._sources(source, layout)], layout)
        for index in group:
            layout = result_layout(self._program, index, rule, option.assignment, option.kept)
            cost += self._prices.settling_s(index, layout, self._wanted[index])
        return cost

    # -- operands -----------------------------------------------------------------------------------------

    def _obtained(self, index: int, target: Layout) -> Held:
        """A node's tensor in this layout, moved there from the nearest that it is held in."""
        sources = self._sources(index, target)
        nearest = min(sources, key=lambda held: self._prices.moving_s(index, [held.layout], target))
        moved = self._rank.moved(nearest, self._graph.types[index], target)
        if moved is not nearest:
            self._held[index].append(moved)
        return moved

    def _sources(self, index: int, target: Layout) -> list[Held]:
        """The layouts from which a layout can be reached: a partial one from those that are partial over the same
        axes."""
        return [held for held in self._held[index] if not target.partial or held.layout.partial == target.partial]
