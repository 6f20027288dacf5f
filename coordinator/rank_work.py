"""The work of ranks: of an spmd node what each rank computes, what it is given, and how its results lie.  Pure.

It knows no devices: who is which rank, and where operands come from, is the plan's (`ranks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wire.graph import GraphBuilder, WireGraph, const_value
from wire.grids import block, coordinates, parts, spec_of
from wire.types import Attrs
from wire.varying import Over, varying

from .memory import memory_by_site
from .plan import FromInput, Part, Window

Wanted = tuple[int, Window | None]  # a node's value, or a window of it


class RankWork:
    """An spmd node: its results' nodes, what each rank computes, what it is given, and how results lie."""

    def __init__(self, graph: WireGraph, group: Sequence[int]) -> None:
        node = graph.nodes[group[0]]
        attrs, body = node.attrs, node.attrs["body"]
        self.group, self.first = tuple(group), group[0]
        self.axes, self.sizes = attrs["axes"], attrs["sizes"]
        self.operands: list[list[Wanted]] = [[] for _ in coordinates(self.sizes)]
        builder = GraphBuilder()
        builder.blobs.update(graph.blobs)
        bindings: dict[str, int] = {}
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
            bindings[name] = builder.input(str(len(self.operands[0])), *body.types[inner])
            for mine, window in zip(self.operands, windows, strict=True):
                mine.append((operand, window))
        made = builder.graph(body, bindings)
        used = [graph.nodes[index].attrs["output"] for index in group]
        self.graph = builder.build([made[output] for output in used])
        outs = [attrs["out_specs"][output] for output in used]
        self.results = [Blocks.of(graph.types[at].shape, out, attrs) for at, out in zip(group, outs, strict=True)]
        over = varying(body, [frozenset(axis for dim in spec_of(text) for axis in dim) for text in attrs["in_specs"]])
        self.alike = [self._alike(over[output], out) for output, out in zip(used, outs, strict=True)]

    def _alike(self, over: Over, out: str) -> tuple[int, ...]:
        """By rank, the first rank that differs from it only along axes that change nothing."""
        telling = over.union(*spec_of(out))
        first: dict[tuple[int, ...], int] = {}
        found = []
        for rank, at in enumerate(coordinates(self.sizes)):
            place = tuple(number for axis, number in zip(self.axes, at, strict=True) if axis in telling)
            found.append(first.setdefault(place, rank))
        return tuple(found)

    @property
    def wanted(self) -> Iterator[Wanted]:
        """What any rank is given."""
        return (each for operands in self.operands for each in operands)

    @property
    def need_bytes(self) -> int:
        """What a rank holds."""
        alone = Part(0, "", 0, "", self.graph, tuple(FromInput(str(slot)) for slot in range(len(self.operands[0]))))
        return sum(memory_by_site([alone]).values())


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
        """By rank; None is the whole."""
        if set(self.counts) <= {1}:
            return (None,) * len(self.numbers)
        size = tuple(dim // count for dim, count in zip(self.shape, self.counts, strict=True))
        return tuple(Window(tuple(n * dim for n, dim in zip(each, size, strict=True)), size) for each in self.numbers)


def _padded(graph: WireGraph, index: int) -> int | None:
    """The input or param that a node is with zeros behind it."""
    node = graph.nodes[index]
    if node.op != "pad" or any(node.attrs["low"]) or any(node.attrs["interior"]) or min(node.attrs["high"]) < 0:
        return None
    leaf, value = node.inputs
    zero = graph.nodes[value].op == "const" and not any(const_value(graph.nodes[value], graph.blobs).tobytes())
    return leaf if zero and graph.nodes[leaf].op in ("input", "param") else None
