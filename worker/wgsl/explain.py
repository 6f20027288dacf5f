"""What the kernels of an executable are: the passes of its graph once more, noting where each node came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wire.ir.graph import WireGraph
from wire.ir.ops import LEAVES
from wire.passes.provenance import Provenance
from wire.passes.unroll_spmd import unroll

from ..compiler.cut import cut
from ..engine.kernel_rows import KernelRow, computed, read_bytes
from .control_runtime import ControlExecutable
from .control_schedule import Schedule, Segment, Turn, schedule
from .execute import WgslExecutable
from .lower import grouped, prepared, where_it_lies
from .shaders import Shaders
from .updates import UPDATES

Inside = tuple[str, WgslExecutable | ControlExecutable]  # by attribute
NAMES = {"matmul": "product"}  # of families, for people


def rows_of(executable: WgslExecutable | ControlExecutable, shaders: Shaders, texts: bool) -> list[KernelRow]:
    """A row for each kernel; for branches, loops and collectives, too."""
    source = executable.source
    provenance = Provenance(source)
    plain = unroll(source, provenance)
    if isinstance(executable, WgslExecutable):
        return _straight(executable, plain, provenance, shaders, texts)
    return _in_steps(executable, schedule(plain, provenance, executable.updated_bytes_min), provenance, shaders, texts)


def _straight(
    executable: WgslExecutable, plain: WireGraph, provenance: Provenance, shaders: Shaders, texts: bool
) -> list[KernelRow]:
    """A row for each group of nodes, with the keys of its dispatches."""
    if executable.choices is not shaders.profile.choices:  # something was measured since it was compiled
        shaders = Shaders(replace(shaders.profile, choices=executable.choices))
    graph, rows, first = prepared(plain, shaders.profile, provenance), list[KernelRow](), 0
    shown: dict[int, list[int]] = {}  # by what the kernels make: the same in other shapes
    for index in range(len(graph.nodes)):
        shown.setdefault(where_it_lies(graph, index), []).append(index)
    for group, made in grouped(graph, shaders):
        part = cut(graph, group)
        members = [at for at, node in zip(part.numbers, part.nodes, strict=True) if node.op not in LEAVES]
        members += [index for index in shown.get(group.root, ()) if index not in members]
        nodes = computed(executable.source, [provenance.of[index] for index in members])
        read = sum(graph.types[index].size_bytes for index in group.reads)
        flops = sum(graph.flops_of(index) for index in members)
        keys = tuple((executable.number, first + place) for place in range(len(made)))
        text = "\n".join(dict.fromkeys(shader.text for shader in made)) if texts else ""
        name, written = NAMES.get(group.kind, group.kind), graph.types[group.root].size_bytes
        rows.append(KernelRow(name, nodes, read, written, flops, keys, text))
        first += len(made)
    return rows


def _in_steps(
    executable: ControlExecutable, steps: Schedule, provenance: Provenance, shaders: Shaders, texts: bool
) -> list[KernelRow]:
    rows: list[KernelRow] = []
    for step, work in zip(steps.steps, executable.work, strict=True):
        if isinstance(step, Segment):
            for row in rows_of(work.made[""], shaders, texts):
                origins = [provenance.of[step.numbers[index]] for index in row.nodes]
                rows.append(replace(row, nodes=computed(executable.source, origins)))
        else:
            rows.append(_turn(executable.source, steps.graph, step, provenance, tuple(work.made.items())))
    return rows


def _turn(
    source: WireGraph,
    graph: WireGraph,
    turn: Turn,
    provenance: Provenance,
    inside: Sequence[Inside],
) -> KernelRow:
    if turn.node.op in UPDATES:
        return _update(source, graph, turn, provenance, inside)
    made = [index for index, _ in turn.outputs]
    nodes = computed(source, [provenance.of[index] for index in made])
    written = sum(graph.types[index].size_bytes for index in made)
    name = f"{'control' if inside else 'collective'} {turn.node.op}"
    read, flops = read_bytes(graph, made[0]), graph.flops_of(made[0])
    return KernelRow(name, nodes, read, written, flops, (), inside=tuple(inside))


def _update(
    source: WireGraph, graph: WireGraph, turn: Turn, provenance: Provenance, inside: Sequence[Inside]
) -> KernelRow:
    """The rows are read and written twice: what is there is saved."""
    shown = turn.inputs[0]
    made = [index for index, _ in turn.outputs]
    while graph.nodes[shown].op == "reshape":  # the tensor in its own shape
        made.append(shown)
        (shown,) = graph.nodes[shown].inputs
    rows = graph.types[turn.inputs[UPDATES[turn.node.op].rows]].size_bytes
    parts = [part for _, part in inside if isinstance(part, WgslExecutable)]
    keys = tuple((part.number, at) for part in parts for at in range(part.dispatches))
    return KernelRow("update", computed(source, [provenance.of[index] for index in made]), 2 * rows, 2 * rows, 0, keys)
