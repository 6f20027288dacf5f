"""Rewrites before fusion: products in the forms that their kernels take, each a definition of what is computed.

    few windows         those of all samples follow each other, as along one more axis: a derivative by weights
    transposes          of transposes are one, or none
    f16, bf16           operands are cast to f32, the result back: sums are f32's, and rounded once
    conv with steps     those that nobody makes are 1
    conv with padding   x is padded first, and zeros are multiplied as all else; most kernels do so themselves
    uneven operands     are laid out as (batch, rows, length) first
    W^T, often          W is transposed once where many products of few rows, a recurrent layer's steps, take it so;
                        a param is not, if it will be packed (`weights.py`)

Nodes keep their order, which ranks that meet rely on.  To add a rewrite: a row of `RULES`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from wire.ir.dtypes import BF16, F16, F32, F64
from wire.ir.graph import Node, WireGraph
from wire.ir.ops import op_named
from wire.ir.types import NO_ATTRS, Attrs, TensorType
from wire.passes.provenance import Provenance

from .cores import FEW, PACKED_ROWS_MIN
from .kernels.copies import is_by_copies
from .kernels.taps import is_by_taps

NARROW, WIDE = (F16, BF16), (F32, F64)  # what products are cast from, and what their kernels take
FEW_WINDOWS = 64  # of a sample: a product of so few columns leaves lanes idle, and packs the weights for each sample
OFTEN = 16  # products of few rows: to transpose their matrix takes as long as some of them save
TURNED_MAX = 1 << 20  # elements of such a matrix: no plan counts the memory of its transpose


def rewritten(graph: WireGraph, provenance: Provenance | None = None) -> WireGraph:
    """The same values by nodes that kernels take."""
    if not any(node.op in RULES for node in graph.nodes):
        return graph
    rewriter, placed = Rewriter(_taken_often(graph)), list[int]()
    for index, (node, type_) in enumerate(zip(graph.nodes, graph.types, strict=True)):
        inputs, first = tuple([placed[source] for source in node.inputs]), len(rewriter.nodes)
        rule = RULES.get(node.op)
        instead = rule(rewriter, node, inputs, type_) if rule else None
        placed.append(rewriter.place(node._replace(inputs=inputs), type_) if instead is None else instead)
        if provenance is not None:
            provenance.note(index, {placed[-1], *range(first, len(rewriter.nodes))})
    if provenance is not None:
        provenance.passed(range(len(rewriter.nodes)))
    outputs = tuple([placed[index] for index in graph.outputs])
    nodes, types = tuple(rewriter.nodes), tuple(rewriter.types)
    return WireGraph(nodes, outputs, graph.output_names, types, graph.name, graph.blobs)


class Rewriter:
    """A graph that grows node by node."""

    def __init__(self, often: frozenset[int]) -> None:
        self.nodes: list[Node] = []
        self.types: list[TensorType] = []
        self._often, self._turned = often, dict[int, int]()

    def place(self, node: Node, type_: TensorType) -> int:
        self.nodes.append(node)
        self.types.append(type_)
        return len(self.nodes) - 1

    def add(self, op: str, *inputs: int, **attrs: Any) -> int:
        own = Attrs(attrs) if attrs else NO_ATTRS
        return self.place(Node(op, inputs, own), op_named(op).infer(own, [self.types[index] for index in inputs]))

    def turned(self, source: int, placed: int) -> int | None:
        """The transpose of a matrix, a node of the graph that was `placed`, if it is taken often.

        It is stored, because of the cast, which changes nothing: a product does not compute one as it reads.
        """
        if source in self._often and source not in self._turned:
            turned = self.add("transpose", placed, perm=(1, 0))
            self._turned[source] = self.add("cast", turned, dtype=self.types[placed].dtype.name)
        return self._turned.get(source)

    def zero(self, type_: TensorType) -> int:
        data = bytes(type_.dtype.itemsize)
        return self.add("const", shape=(), dtype=type_.dtype.name, data=data)


Rule = Callable[[Rewriter, Node, Sequence[int], TensorType], int | None]


def _widened(rewriter: Rewriter, node: Node, inputs: Sequence[int], type_: TensorType) -> int | None:
    """A product of f16 or bf16 in f32, rounded once."""
    if type_.dtype not in NARROW:
        return None
    wide = [rewriter.add("cast", index, dtype=F32.name) for index in inputs]
    product = RULES[node.op](rewriter, node, wide, TensorType(type_.shape, F32))
    product = rewriter.add(node.op, *wide, **node.attrs) if product is None else product
    return rewriter.add("cast", product, dtype=type_.dtype.name)


def _conv(rewriter: Rewriter, node: Node, inputs: Sequence[int], type_: TensorType) -> int | None:
    """A conv over an x with its padding."""
    if type_.dtype in NARROW:
        return _widened(rewriter, node, inputs, type_)
    x, weights = (rewriter.types[index].shape for index in inputs)
    attrs = _with_short_steps(node.attrs, x[2:], weights[2:])
    if attrs != node.attrs:
        shorter = Node("conv", tuple(inputs), attrs)
        instead = _conv(rewriter, shorter, inputs, type_)
        return rewriter.place(shorter, type_) if instead is None else instead
    spatial = len(attrs["low"])
    none, once = (0,) * spatial, (1,) * spatial
    if is_by_taps(attrs, x, weights):
        return None
    if is_by_copies(attrs, x, weights, type_.shape) and not _has_few_windows(attrs, type_.shape):
        return None
    if (attrs["low"], attrs["high"], attrs["lhs_dilation"]) == (none, none, once):
        return _folded(rewriter, node, inputs, type_)
    interior = (0, 0, *(spread - 1 for spread in attrs["lhs_dilation"]))
    zero = rewriter.zero(type_)
    padded = rewriter.add(
        "pad", inputs[0], zero, low=(0, 0, *attrs["low"]), high=(0, 0, *attrs["high"]), interior=interior
    )
    unpadded = Node("conv", (padded, inputs[1]), Attrs({**attrs, "low": none, "high": none, "lhs_dilation": once}))
    folded = _folded(rewriter, unpadded, unpadded.inputs, type_)
    return rewriter.place(unpadded, type_) if folded is None else folded


def _with_short_steps(attrs: Attrs, x: Sequence[int], taps: Sequence[int]) -> Attrs:
    """A conv's attributes without steps that nobody makes, which may be huge: a spread of one element is 1, and a
    stride leads from the first window to past the last one at most."""
    spread_x = [spread if count > 1 else 1 for spread, count in zip(attrs["lhs_dilation"], x, strict=True)]
    spread_taps = [spread if count > 1 else 1 for spread, count in zip(attrs["rhs_dilation"], taps, strict=True)]
    strides = []
    for axis, stride in enumerate(attrs["stride"]):
        room = attrs["low"][axis] + attrs["high"][axis] + (x[axis] - 1) * spread_x[axis] + 1
        windows_max = room - (taps[axis] - 1) * spread_taps[axis]
        strides.append(max(min(stride, windows_max), 1))
    steps = {"lhs_dilation": tuple(spread_x), "rhs_dilation": tuple(spread_taps), "stride": tuple(strides)}
    return Attrs({**attrs, **steps})


def _has_few_windows(attrs: Attrs, result: Sequence[int]) -> bool:
    """Whether samples are better computed together."""
    return attrs["groups"] == 1 < result[0] and math.prod(result[2:]) <= FEW_WINDOWS


def _folded(rewriter: Rewriter, node: Node, inputs: Sequence[int], type_: TensorType) -> int | None:
    """A conv with few windows, whose samples are places along one more axis: one product instead of many."""
    if not _has_few_windows(node.attrs, type_.shape):
        return None
    samples, out, *places = type_.shape
    (_, channels, *dims), kernel = (rewriter.types[index].shape for index in inputs)
    x = rewriter.add("transpose", inputs[0], perm=(1, 0, *range(2, len(dims) + 2)))
    x = rewriter.add("reshape", x, shape=(1, channels, samples, *dims))
    weights = rewriter.add("reshape", inputs[1], shape=(*kernel[:2], 1, *kernel[2:]))
    further = {"low": 0, "high": 0, "stride": 1, "lhs_dilation": 1, "rhs_dilation": 1}
    attrs = {name: (further[name], *value) if name in further else value for name, value in node.attrs.items()}
    result = rewriter.add("reshape", rewriter.add("conv", x, weights, **attrs), shape=(out, samples, *places))
    return rewriter.add("transpose", result, perm=(1, 0, *range(2, len(places) + 2)))


def _transpose(rewriter: Rewriter, node: Node, inputs: Sequence[int], type_: TensorType) -> int | None:
    """A transpose of a transpose."""
    inner = rewriter.nodes[inputs[0]]
    if inner.op != "transpose":
        return None
    perm = tuple([inner.attrs["perm"][axis] for axis in node.attrs["perm"]])
    return inner.inputs[0] if perm == tuple(range(len(perm))) else rewriter.add("transpose", *inner.inputs, perm=perm)


def _dot(rewriter: Rewriter, node: Node, inputs: Sequence[int], type_: TensorType) -> int | None:
    """A dot whose contracting axes, several of them, do not follow each other in an operand; or one by W^T."""
    if type_.dtype in NARROW:
        return _widened(rewriter, node, inputs, type_)
    turned = rewriter.turned(node.inputs[1], inputs[1])
    if turned is not None and _is_few_by_turned(node, [rewriter.types[index].shape for index in inputs]):
        return rewriter.add("dot", inputs[0], turned, **{**node.attrs, "rhs_contract": (0,)})
    sides = []
    for index, name in zip(inputs, ("lhs", "rhs"), strict=True):
        rank, attrs = len(rewriter.types[index].shape), node.attrs
        batch, contract = attrs[f"{name}_batch"], attrs[f"{name}_contract"]
        free = tuple(axis for axis in range(rank) if axis not in (*batch, *contract))
        sides.append((batch, free, contract, rank))
    if all(_follow(group) for batch, free, contract, _ in sides for group in (free, contract)):
        return None
    operands, axes = list[int](), dict[str, tuple[int, ...]]()
    for index, name, (batch, free, contract, rank) in zip(inputs, ("lhs", "rhs"), sides, strict=True):
        operands.append(rewriter.add("transpose", index, perm=(*batch, *free, *contract)))
        axes[f"{name}_batch"] = tuple(range(len(batch)))
        axes[f"{name}_contract"] = tuple(range(rank - len(contract), rank))
    return rewriter.add("dot", *operands, **axes)


def _taken_often(graph: WireGraph) -> frozenset[int]:
    """The matrices that many products of few rows take transposed."""
    counts = Counter(
        node.inputs[1]
        for node, type_ in zip(graph.nodes, graph.types, strict=True)
        if node.op == "dot" and type_.dtype in WIDE
        and _is_few_by_turned(node, [graph.types[index].shape for index in node.inputs])
        and not (graph.nodes[node.inputs[1]].op == "param" and type_.size >= PACKED_ROWS_MIN * type_.shape[-1])
    )  # fmt: skip
    return frozenset(
        index for index, count in counts.items() if count >= OFTEN and graph.types[index].size <= TURNED_MAX
    )


def _is_few_by_turned(node: Node, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether a dot is one of few rows, (..., length), with a matrix (n, length)."""
    (*rows, _), right = shapes[0] or (0,), shapes[1]
    axes = {"lhs_batch": (), "lhs_contract": (len(rows),), "rhs_batch": (), "rhs_contract": (1,)}
    return len(right) == 2 and dict(node.attrs) == axes and 0 < math.prod(rows) <= FEW


def _follow(axes: Sequence[int]) -> bool:
    return all(after == axis + 1 for axis, after in pairwise(axes))


RULES: dict[str, Rule] = {"dot": _dot, "conv": _conv, "transpose": _transpose}
