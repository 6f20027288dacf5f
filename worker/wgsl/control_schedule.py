"""A graph with branches, loops or collectives -> steps: stretches of straight graph, each a Program, and the turns.

    segment 0 (straight) -> turn (while) -> segment 1 -> turns (cond, all_reduce) -> segment 2 ...

A segment is all straight nodes of a stage (`wire/passes/collective_order.py`), which without collectives are those with
as many turns before them; what later steps need of it are its outputs.  Pure: it knows neither kernels nor devices.
`control_runtime.py` runs the steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wire.ir.dtypes import F16, F32
from wire.ir.graph import GraphBuilder, Node, WireGraph
from wire.ir.ops import LEAVES
from wire.ir.types import Attrs, TensorType
from wire.passes.collective_order import BETWEEN
from wire.passes.collective_order import stages as stages_of
from wire.passes.provenance import Provenance

from ..compiler.inline_composites import inline_composites
from .updates import UPDATED_BYTES_MIN, in_place

ANYWHERE = frozenset({"const", "iota"})  # made anew by every segment that uses them


@dataclass(frozen=True, slots=True)
class Segment:
    """A straight graph; its inputs and outputs are values, which are nodes of the whole graph.  `numbers` are its
    nodes' numbers there."""

    graph: WireGraph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A branch, a loop, a collective or an update in place; `outputs` are the values that are needed, with their
    places among its results."""

    node: Node
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of `graph` in order; `last[value]` is the step after which nobody needs it."""

    graph: WireGraph
    steps: tuple[Segment | Turn, ...]
    last: dict[int, int]
    updated_bytes_min: int


def schedule(
    graph: WireGraph, provenance: Provenance | None = None, updated_bytes_min: int = UPDATED_BYTES_MIN
) -> Schedule:
    """The steps of a graph that does not go straight; tensors of `updated_bytes_min` or more are updated in place."""
    flat = _with_even_rows(inline_composites(graph, provenance), provenance)
    updates = in_place(flat, updated_bytes_min)
    stages = _stages(flat, updates)
    later = {index for first, group in flat.siblings.items() for index in group if index != first}
    steps: list[Segment | Turn] = []
    for stage in range(max(stages, default=0) + 1):
        here = [index for index, other_stage in enumerate(stages) if other_stage == stage]
        turns = [
            index for index in here if (flat.nodes[index].op in BETWEEN or index in updates) and index not in later
        ]
        made = _segment(flat, stages, stage, turns, updates)
        if made.outputs:
            steps.append(made)
        for index in turns:
            group = flat.siblings.get(index, ())
            outputs = tuple((sibling, flat.nodes[sibling].attrs["output"]) for sibling in group) or ((index, 0),)
            steps.append(Turn(flat.nodes[index], flat.nodes[index].inputs, outputs))
    last = {value: at for at, step in enumerate(steps) for value in step.inputs}
    last.update(dict.fromkeys(flat.outputs, len(steps)))
    return Schedule(flat, tuple(steps), last, updated_bytes_min)


def _stages(graph: WireGraph, updates: frozenset[int]) -> list[int]:
    node_stages = stages_of(graph.nodes, updates)
    last = any(graph.nodes[index].op in BETWEEN or index in updates for index in graph.outputs)
    end = max(node_stages, default=0) + last
    return [end if node.op in ANYWHERE and index in graph.outputs else stage
            for index, (node, stage) in enumerate(zip(graph.nodes, node_stages, strict=True))]  # fmt: skip


def _segment(
    graph: WireGraph, stages: Sequence[int], stage: int, turns: Iterable[int], updates: frozenset[int]
) -> Segment:
    """What is straight in this stage; its outputs are what turns of this stage, later stages or the caller need."""
    straight = [
        index
        for index, node in enumerate(graph.nodes)
        if stages[index] == stage and node.op not in BETWEEN | LEAVES | ANYWHERE and index not in updates
    ]
    given_to_turns = {source for index in turns for source in graph.nodes[index].inputs}
    needed = set(graph.outputs) | given_to_turns
    needed |= {i for at, node in enumerate(graph.nodes) if stages[at] > stage for i in node.inputs}
    constants = [i for i in sorted(given_to_turns) if graph.nodes[i].op in ANYWHERE]
    constants += [i for i in graph.outputs if graph.nodes[i].op in ANYWHERE and stages[i] == stage]
    outputs = tuple(dict.fromkeys([*constants, *(index for index in straight if index in needed)]))
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: dict[int, int] = {}
    inputs: list[int] = []

    def place(index: int) -> int:
        if index not in placed:
            node = graph.nodes[index]
            if node.op in ANYWHERE:
                placed[index] = builder.copy(node, ())
            else:
                placed[index] = builder.input(str(len(inputs)), *graph.types[index])
                inputs.append(index)
        return placed[index]

    for index in straight:
        node = graph.nodes[index]
        placed[index] = builder.copy(node, map(place, node.inputs))
    ends = [place(index) for index in outputs]
    number = {made: index for index, made in placed.items()}
    return Segment(builder.build(ends), tuple(inputs), outputs, tuple(number[made] for made in builder.order(ends)))


# -- rows that can be copied ------------------------------------------------------------------------------


def _with_even_rows(graph: WireGraph, provenance: Provenance | None = None) -> WireGraph:
    """Rows of a scan are copied in words of four bytes; those of an odd number of f16 travel as f32."""
    if not any(node.op == "scan" and _is_odd(graph, node) for node in graph.nodes):
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: list[int] = []
    for index, (node, kind) in enumerate(zip(graph.nodes, graph.types, strict=True)):
        operands, first = [placed[source] for source in node.inputs], len(builder.nodes)
        if node.op == "scan" and _is_odd(graph, node):
            placed.append(_evened(builder, node, operands, kind))
        else:
            placed.append(builder.copy(node, operands))
        if provenance is not None:
            provenance.note(index, {placed[-1], *range(first, len(builder.nodes))})
    outputs = [placed[index] for index in graph.outputs]
    if provenance is not None:
        provenance.passed(builder.order(outputs))
    return builder.build(outputs, graph.output_names)


def _is_odd(graph: WireGraph, node: Node) -> bool:
    body: WireGraph = node.attrs["body"]
    rows = [body.types[i] for i in body.inputs[node.attrs["carry"] + node.attrs["consts"] :]]
    return any(map(_odd, [*rows, *(body.types[i] for i in body.outputs[node.attrs["carry"] :])]))


def _odd(kind: TensorType) -> bool:
    return kind.dtype is F16 and math.prod(kind.shape) % 2 == 1


def _evened(builder: GraphBuilder, node: Node, operands: list[int], kind: TensorType) -> int:
    body: WireGraph = node.attrs["body"]
    first = node.attrs["carry"] + node.attrs["consts"]
    inner = GraphBuilder()
    bindings: dict[str, int] = {}
    for at, (name, type_) in enumerate(body.input_types.items()):
        wide = at >= first and _odd(type_)
        given = inner.input(name, type_.shape, F32 if wide else type_.dtype)
        bindings[name] = inner.add("cast", given, dtype=F16.name) if wide else given
        if wide:
            operands[at] = builder.add("cast", operands[at], dtype=F32.name)
    results = inner.graph(body, bindings)
    for at in range(node.attrs["carry"], len(results)):
        if _odd(inner.types[results[at]]):
            results[at] = inner.add("cast", results[at], dtype=F32.name)
    attrs = Attrs({**node.attrs, "body": inner.build(results, body.output_names)})
    made = builder.add("scan", *operands, **attrs)
    return builder.add("cast", made, dtype=kind.dtype.name) if builder.types[made] != kind else made
