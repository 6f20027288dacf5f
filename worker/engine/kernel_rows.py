"""The report of an engine on a compiled part: its kernels, and when each of them runs.

A kernel's times come under its key: the number of its executable in this process, and its own in that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wire.ir.graph import WireGraph
from wire.ir.ops import CONTROL, LEAVES

if TYPE_CHECKING:
    from .protocol import Executable

Key = tuple[int, int]
PICKING = frozenset({"gather", "dynamic_slice", "slice"})  # they read as much of the first operand as they write

executable_number = itertools.count(1).__next__


@dataclass(frozen=True, slots=True)
class Span:
    """A run of a kernel, in seconds of `time.perf_counter`, on a lane: a thread, or the device.  Of several threads
    that share a run, each has a span; those of the second and later ones `join` it."""

    key: Key
    lane: str
    began_s: float
    ended_s: float
    joins: bool = False


Spans = Callable[[Span], None]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel.  `nodes` are those that it computes, of the graph that was compiled.

    Each tensor that it reads counts once.  `keys` are under what its times come: a kernel may be several dispatches.
    A branch or a loop has the graphs `inside` it, which run any number of times.
    """

    name: str
    nodes: tuple[int, ...]
    read_bytes: int
    written_bytes: int
    flops: int
    keys: tuple[Key, ...]
    text: str = ""
    inside: tuple[tuple[str, Executable], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRows:
    """The kernels of an executable in order, and `clock`, how their times are measured."""

    rows: Sequence[KernelRow]
    clock: str


def computed(graph: WireGraph, origins: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """The nodes of `graph` that a kernel computes whose own nodes come from these; leaves are not computed."""
    return tuple(sorted({n for origin in origins for n in origin if graph.nodes[n].op not in LEAVES}))


def graphs_inside(graph: WireGraph | None, row: KernelRow) -> Iterator[tuple[str, Executable, WireGraph | None]]:
    """The graphs inside a kernel of `graph`, by attribute, with what they were compiled to.

    None stands for one whose nodes nobody else knows by these numbers: an engine rewrote it, or a composite has it.
    """
    for name, inner in row.inside:
        nodes = [graph.nodes[index] for index in row.nodes] if graph is not None else []
        bodies = [node.attrs[name] for node in nodes if node.op in CONTROL and name in node.attrs]
        yield name, inner, next((body for body in bodies if body == getattr(inner, "source", None)), None)


def read_bytes(graph: WireGraph, index: int) -> int:
    """The bytes that computing one node reads."""
    node, sizes = graph.nodes[index], {source: graph.types[source].size_bytes for source in graph.nodes[index].inputs}
    if node.op in PICKING:
        first = node.inputs[0]
        sizes[first] = min(sizes[first], graph.types[index].size_bytes)
    return sum(sizes.values())
