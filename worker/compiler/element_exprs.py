"""One element of a tensor as a scalar expression.

`Elements.at(node, index)` follows elementwise ops and views from a node back to the tensors that lie in memory; every
view is only arithmetic on `index`.  Where the walk ends is given from outside: `sources` maps a node to the buffer that
holds it, `anchors` maps a node computed in the same kernel (a reduction, a dot) to a function of the index it is
read at.  Expressions only ever read inside a tensor: indices known at run time are clamped first.

It does not know loops or WGSL.  To add an op that can be fused: one row in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wire.ir.graph import WireGraph
from wire.ir.ops import ELEMENTWISE

from .constants import splat_bits
from .expressions import Builder, Expr

Index = tuple[Expr, ...]
Anchor = Callable[[Index], Expr]

ROUNDLESS = frozenset({"neg", "abs", "sign", "max", "min", "floor", "round", "select"})  # f16 in, f16 out
BITWISE = frozenset({"neg", "sign"})  # no algebra a driver knows changes them
TESTS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


NARROW = {"f16": "to_f16", "bf16": "to_bf16"}  # dtypes that are computed in f32, and the op that rounds to them


def register(dtype: str) -> str:
    """The register dtype a tensor dtype computes in."""
    return "f32" if dtype in NARROW else dtype


class Elements:
    """Elements of one kernel's nodes.  Several instances may share a Builder.

    `guarded` keeps drivers from simplifying floats across ops; a compiler of our own does no such thing.
    """

    def __init__(
        self,
        graph: WireGraph,
        build: Builder,
        sources: Mapping[int, int],
        anchors: Mapping[int, Anchor] | None = None,
        guarded: bool = True,
    ) -> None:
        self.graph = graph
        self.guarded = guarded
        self.build = build
        self.sources = sources
        self.anchors = anchors or {}
        self._seen: dict[tuple[int, Index], Expr] = {}

    def at(self, node: int, index: Index) -> Expr:
        """The element of `node` at `index`, one coordinate per axis."""
        key = (node, index)
        expr = self._seen.get(key)
        if expr is None:
            expr = self._seen[key] = self._compute(node, index)
        return expr

    def shape(self, node: int) -> tuple[int, ...]:
        return self.graph.types[node].shape

    def dtype(self, node: int) -> str:
        return self.graph.types[node].dtype.name

    def linear(self, node: int, index: Index) -> Expr:
        return self.build.ravel(index, self.shape(node))

    def scalar(self, op: str, args: Sequence[Expr], dtype: str, attr: Any = None) -> Expr:
        """A scalar op on registers of one tensor dtype; f16 is computed in f32 and rounded."""
        if self.guarded and op not in BITWISE and register(dtype) == "f32":
            args = [self.apart(arg, again=op == "div" and arg in args[:place]) for place, arg in enumerate(args)]
        wide = self.build.make(op, args, register(dtype), attr)
        return wide if op in ROUNDLESS else self.rounded(wide, dtype)

    def rounded(self, value: Expr, dtype: str) -> Expr:
        """A register's value as a tensor of the dtype has it."""
        return self.build.make(NARROW[dtype], [value], "f32") if dtype in NARROW else value

    def apart(self, value: Expr, again: bool = False) -> Expr:
        """A float as if it came from memory.

        Drivers may simplify across ops as if NaN, Inf, -0.0 and rounding did not exist: x + (-x) becomes 0,
        x / x becomes 1, (x + 1e8) + -1e8 becomes x.  `again`: it is an operand of the same op already.
        """
        known = value.op == "opaque" or (value.op == "load" and not again)
        return value if known else self.build.make("opaque", [value], "f32")

    def truth(self, value: Expr) -> Expr:
        """A condition from a bool, or from a float by `> 0`."""
        return value if value.dtype == "bool" else self.build.make("positive", [value], "bool")

    def clamped(self, value: Expr, hi: int) -> Expr:
        """A run-time index of any integer dtype, clamped to [0, hi]."""
        if value.op == "lit":
            bits = int(value.dtype[1:])
            negative = value.dtype.startswith("i") and value.attr >> (bits - 1)
            return self.build.number(0 if negative else min(value.attr, hi))
        return self.build.bounded(self.build.make(f"clamp_{value.dtype}", [value], "u32", hi), hi)

    def inside(self, index: Expr, lo: int, hi: int) -> Expr:
        """Whether lo <= index < hi, as a bool expression."""
        if index.lo >= lo and index.hi < hi:
            return self.build.literal(1, "bool")
        if index.hi < lo or index.lo >= hi:
            return self.build.literal(0, "bool")
        return self.build.make("inside", [index], "bool", (lo, hi))

    def both(self, conditions: Sequence[Expr]) -> Expr:
        result = self.build.literal(1, "bool")
        for condition in conditions:
            if condition.op == "lit" and condition.attr:
                continue
            if condition.op == "lit":
                return condition
            result = condition if result.op == "lit" else self.build.make("and", [result, condition], "bool")
        return result

    def choose(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        if condition.op == "lit":
            return yes if condition.attr else no
        return yes if yes is no else self.build.make("select", [condition, yes, no], yes.dtype)

    def _compute(self, node: int, index: Index) -> Expr:
        anchor = self.anchors.get(node)
        if anchor is not None:
            return anchor(index)
        if node in self.sources:
            return self.build.load(self.sources[node], self.linear(node, index), register(self.dtype(node)))
        op = self.graph.nodes[node].op
        if op in ELEMENTWISE:
            return _elementwise(self, node, index)
        return RULES[op](self, node, index)


def broadcast_index(build: Builder, index: Index, shape: Sequence[int]) -> Index:
    """The coordinates at which an operand of `shape` is read when it broadcasts to where `index` lies."""
    tail = index[len(index) - len(shape) :] if shape else ()
    return tuple(build.number(0) if dim == 1 else own for own, dim in zip(tail, shape, strict=True))


# -- rules ------------------------------------------------------------------------------------------------


def _elementwise(elements: Elements, node: int, index: Index) -> Expr:
    op, inputs, _ = elements.graph.nodes[node]
    dtypes = [elements.dtype(operand) for operand in inputs]
    args = [elements.at(operand, broadcast_index(elements.build, index, elements.shape(operand))) for operand in inputs]
    result = elements.dtype(node)
    if op == "select":
        return elements.choose(elements.truth(args[0]), args[1], args[2])
    if op == "cast":
        return _cast(elements, args[0], dtypes[0], result)
    if op == "bitcast":
        return elements.build.make("bitcast", args, result, args[0].dtype)
    if op in TESTS or op == "is_nan":
        return elements.build.make(op, args, "bool")
    return elements.scalar(op, args, result)


def _cast(elements: Elements, value: Expr, source: str, target: str) -> Expr:
    if register(source) == register(target):
        return value if target == source else elements.rounded(value, target)
    wide = elements.build.make("cast", [value], register(target), register(source))
    return elements.rounded(wide, target)


def _const(elements: Elements, node: int, index: Index) -> Expr:
    bits = splat_bits(elements.graph.nodes[node])
    assert bits is not None, "a const that is not one value lies in memory"
    return elements.build.literal(bits, register(elements.dtype(node)))


def _iota(elements: Elements, node: int, index: Index) -> Expr:
    value, target = index[elements.graph.nodes[node].attrs["axis"]], elements.dtype(node)
    return value if target == "u32" else _cast(elements, value, "u32", target)


def _random_bits(elements: Elements, node: int, index: Index) -> Expr:
    key = elements.graph.nodes[node].inputs[0]
    words = [elements.at(key, (elements.build.number(at),)) for at in (0, 1)]
    return elements.build.make("threefry", [*words, elements.linear(node, index)], "u32")


def _reshape(elements: Elements, node: int, index: Index) -> Expr:
    source = elements.graph.nodes[node].inputs[0]
    return elements.at(source, elements.build.unravel(elements.linear(node, index), elements.shape(source)))


def _transpose(elements: Elements, node: int, index: Index) -> Expr:
    _, inputs, attrs = elements.graph.nodes[node]
    moved = list(index)
    for position, axis in enumerate(attrs["perm"]):
        moved[axis] = index[position]
    return elements.at(inputs[0], tuple(moved))


def _broadcast(elements: Elements, node: int, index: Index) -> Expr:
    source = elements.graph.nodes[node].inputs[0]
    return elements.at(source, broadcast_index(elements.build, index, elements.shape(source)))


def _slice(elements: Elements, node: int, index: Index) -> Expr:
    _, inputs, attrs = elements.graph.nodes[node]
    build = elements.build
    moved = [
        build.sum(build.scaled(own, step), build.number(start))
        for own, start, step in zip(index, attrs["start"], attrs["step"], strict=True)
    ]
    return elements.at(inputs[0], tuple(moved))


def _reverse(elements: Elements, node: int, index: Index) -> Expr:
    _, inputs, attrs = elements.graph.nodes[node]
    build, shape = elements.build, elements.shape(node)
    moved = [
        build.minus(build.number(dim - 1), own) if axis in attrs["axes"] else own
        for axis, (own, dim) in enumerate(zip(index, shape, strict=True))
    ]
    return elements.at(inputs[0], tuple(moved))


def _pad(elements: Elements, node: int, index: Index) -> Expr:
    _, inputs, attrs = elements.graph.nodes[node]
    steps = [interior + 1 for interior in attrs["interior"]]
    return padded(elements, inputs[0], index, attrs["low"], steps, elements.at(inputs[1], ()))


def padded(
    elements: Elements, source: int, index: Index, lows: Sequence[int], strides: Sequence[int], fill: Expr
) -> Expr:
    """The element of `source` whose place is `index` once it starts at `lows` and its elements lie `strides` apart;
    `fill` between and outside of them."""
    build, conditions, moved = elements.build, [], []
    for own, dim, low, stride in zip(index, elements.shape(source), lows, strides, strict=True):
        within = elements.inside(own, low, low + (dim - 1) * stride + 1)
        if _never(within):
            return fill
        shifted = _shift(elements, own, low, within)
        conditions.append(within)
        if stride > 1:
            remainder = build.mod(shifted, stride)
            conditions.append(elements.inside(remainder, 0, 1))
            if _never(conditions[-1]):
                return fill
            shifted = build.div(shifted, stride)
        moved.append(build.least(shifted, dim - 1))
    return elements.choose(elements.both(conditions), elements.at(source, tuple(moved)), fill)


def _never(condition: Expr) -> bool:
    return condition.op == "lit" and not condition.attr


def _shift(elements: Elements, index: Expr, low: int, within: Expr) -> Expr:
    """index - low where that is inside, else 0."""
    build = elements.build
    moved = build.sum(index, build.number(-low))
    if within.op == "lit":
        return moved
    if low == 0:
        return index
    return build.bounded(build.make("select", [within, moved, build.number(0)], "u32"), max(moved.hi, 0))


def _concat(elements: Elements, node: int, index: Index) -> Expr:
    _, inputs, attrs = elements.graph.nodes[node]
    build, axis, start = elements.build, attrs["axis"], 0
    pieces: list[tuple[Expr, Expr]] = []
    for operand in inputs:
        dim = elements.shape(operand)[axis]
        within = elements.inside(index[axis], start, start + dim)
        if within.op == "inside":
            own = build.least(_shift(elements, index[axis], start, within), dim - 1)
            pieces.append((within, elements.at(operand, (*index[:axis], own, *index[axis + 1 :]))))
        elif not _never(within):
            moved = build.sum(index[axis], build.number(-start))
            return elements.at(operand, (*index[:axis], moved, *index[axis + 1 :]))
        start += dim
    result = pieces[-1][1]
    for within, value in reversed(pieces[:-1]):
        result = elements.choose(within, value, result)
    return result


def _gather(elements: Elements, node: int, index: Index) -> Expr:
    _, inputs, attrs = elements.graph.nodes[node]
    axis, batch = attrs["axis"], attrs["batch_dims"]
    count = len(elements.shape(inputs[1])) - batch
    where = elements.at(inputs[1], (*index[:batch], *index[axis : axis + count]))
    chosen = elements.clamped(where, elements.shape(inputs[0])[axis] - 1)
    return elements.at(inputs[0], (*index[:axis], chosen, *index[axis + count :]))


def starts_of(elements: Elements, operand: int, room: Sequence[int]) -> list[Expr]:
    """The clamped start per axis, `room` being how far each may go."""
    read = [elements.at(operand, (elements.build.number(axis),)) for axis in range(len(room))]
    return [elements.clamped(value, space) for value, space in zip(read, room, strict=True)]


def _dynamic_slice(elements: Elements, node: int, index: Index) -> Expr:
    data, starts = elements.graph.nodes[node].inputs
    room = [dim - size for dim, size in zip(elements.shape(data), elements.shape(node), strict=True)]
    moved = [
        elements.build.sum(own, start) for own, start in zip(index, starts_of(elements, starts, room), strict=True)
    ]
    return elements.at(data, tuple(moved))


def _dynamic_update_slice(elements: Elements, node: int, index: Index) -> Expr:
    data, update, starts = elements.graph.nodes[node].inputs
    build, window = elements.build, elements.shape(update)
    room = [dim - size for dim, size in zip(elements.shape(data), window, strict=True)]
    conditions, moved = [], []
    for own, size, start in zip(index, window, starts_of(elements, starts, room), strict=True):
        offset = build.make("minus", [own, start], "u32")  # wraps to a huge number before the window
        conditions.append(build.make("inside", [offset], "bool", (0, size)))
        moved.append(build.least(build.bounded(offset, (1 << 32) - 1), size - 1))
    return elements.choose(elements.both(conditions), elements.at(update, tuple(moved)), elements.at(data, index))


RULES: dict[str, Callable[[Elements, int, Index], Expr]] = {
    "const": _const,
    "iota": _iota,
    "random_bits": _random_bits,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "reverse": _reverse,
    "pad": _pad,
    "concat": _concat,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
FUSABLE = ELEMENTWISE | set(RULES)
