"""simplify: the same program with fewer nodes; every output keeps its name, its type and its exact value.

Branches and loops lose what nobody needs of them (`dead_code.py`).  Nodes are rebuilt in order through GraphBuilder,
which shares equal ones; dead ones fall away when it is finished.  On the way each node meets the rows of RULES for its
op; a rule returns the node to use instead, or None.  A replacement is simplified in its turn, so one pass reaches the
end.  Whatever depends on constants alone becomes a constant if the caller lends an evaluator, as `wire` computes
nothing.

Rules are exact for every value: NaN, infinities, -0.0, wrapping integers.  So x + 0.0 stays (it turns -0.0 into 0.0)
while x + -0.0 goes, and sums are never reordered.  Only the payload of a NaN may change, which no op defines.  A rule
never adds a node.  To add a rewrite: a row of UNITS, ABSORBERS or REPEATS, or a function in RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BlobMissing
from ..ir.dtypes import BOOL, DType
from ..ir.graph import GraphBuilder, Node, WireGraph, const_value
from ..ir.ops import COLLECTIVES, CONTROL, GRAPH_ATTRS, OPS, inner_graphs
from ..ir.types import Attrs, TensorType
from ..limits import DEFAULT, Limits
from .dead_code import prune
from .provenance import Provenance

Evaluate = Callable[[WireGraph, Mapping[str, NDArray[Any]]], list[NDArray[Any]]]

_SIMPLE, _IS_SIMPLE = "simple", "is_simple"  # what a graph has beside its fields: its simple form, or that it is one
SMALL_BYTES = 256  # a constant of this size costs no more than the node that would make it


def simplify(
    graph: WireGraph, evaluate: Evaluate | None = None, limits: Limits = DEFAULT, provenance: Provenance | None = None
) -> WireGraph:
    """`graph` with fewer nodes and the same outputs; inputs stay, params that nothing needs are gone.

    `evaluate(graph, inputs)` returns the outputs of a graph without inputs, as `worker.cpu.evaluate` does; without it
    constants are not folded, and what came of a graph is remembered with it.
    """
    if evaluate is not None or limits is not DEFAULT or provenance is not None:
        return _simplified(graph, evaluate, limits, provenance)
    memory = vars(graph)
    if _IS_SIMPLE in memory:
        return graph
    simple: WireGraph | None = memory.get(_SIMPLE)
    if simple is None:
        simple = _simplified(graph, None, limits)
        vars(simple)[_IS_SIMPLE] = True
        if simple is not graph:  # a graph that held itself would live on
            memory[_SIMPLE] = simple
    return simple


def _simplified(
    graph: WireGraph, evaluate: Evaluate | None, limits: Limits, provenance: Provenance | None = None
) -> WireGraph:
    roomy = replace(limits, graph_nodes_max=_UNBOUNDED)
    graph = _rewritten(prune(graph, roomy, provenance), evaluate, limits, provenance)
    while (pruned := prune(graph, roomy, provenance)) is not graph:  # bodies may read less than they did
        graph = _rewritten(pruned, evaluate, limits, provenance)
    return graph


def _rewritten(
    graph: WireGraph, evaluate: Evaluate | None, limits: Limits, provenance: Provenance | None = None
) -> WireGraph:
    rewriter = Rewriter(evaluate, limits)
    rewriter.builder.blobs.update(graph.blobs)
    placed: list[int] = []
    for index, node in enumerate(graph.nodes):
        first = len(rewriter.builder.nodes)
        inputs = tuple([placed[source] for source in node.inputs])
        placed.append(rewriter.put(node if inputs == node.inputs else Node(node.op, inputs, node.attrs)))
        if provenance is not None:
            provenance.note(index, {placed[-1], *range(first, len(rewriter.builder.nodes))})
    outputs = [placed[index] for index in graph.outputs]
    if provenance is not None:
        provenance.passed(rewriter.builder.order(outputs))
    elif tuple(rewriter.builder.nodes) == graph.nodes and rewriter.builder.order(outputs) == [*range(len(placed))]:
        return graph  # it was as simple as it can be, and in its canonical order
    return rewriter.builder.build(outputs, graph.output_names, graph.name)


class Rewriter:
    """A builder whose every node is simplified on its way in; what the rules work with."""

    def __init__(self, evaluate: Evaluate | None, limits: Limits) -> None:
        self.builder = GraphBuilder(replace(limits, graph_nodes_max=_UNBOUNDED))  # it holds replaced nodes as well
        self.limits = limits
        self.evaluate = evaluate
        self._instead: dict[int, int] = {}
        self._unordered: dict[tuple[str, frozenset[int]], Node] = {}
        self._bodies: dict[WireGraph, WireGraph] = {}
        self._elements: dict[int, bytes | None] = {}

    def node(self, index: int) -> Node:
        return self.builder.nodes[index]

    def type(self, index: int) -> TensorType:
        return self.builder.types[index]

    def add(self, op: str, *inputs: int, **attrs: Any) -> int:
        """The node to use for `op(*inputs, **attrs)`."""
        return self.put(Node(op, inputs, Attrs(attrs)))

    def put(self, node: Node) -> int:
        """The node to use for one over nodes that are placed."""
        for name in GRAPH_ATTRS.get(node.op, ()):
            body = self._body(node.attrs[name])
            if body is not node.attrs[name]:
                node = node._replace(attrs=Attrs({**node.attrs, name: body}))
        index = self.builder.put(node)
        if index not in self._instead:
            self._instead[index] = self._simplest(index)
        return self._instead[index]

    def widened(self, index: int, shape: tuple[int, ...]) -> int:
        """The node broadcast to `shape`; itself where it has that shape."""
        return self.add("broadcast", index, shape=shape)

    def first_of(self, node: Node) -> Node:
        """The first node placed with this op and these operands in any order."""
        return self._unordered.setdefault((node.op, frozenset(node.inputs)), node)

    def value(self, index: int) -> NDArray[Any] | None:
        """The value of a constant whose content is here."""
        if self.node(index).op != "const":
            return None
        try:
            return const_value(self.node(index), self.builder.blobs)
        except BlobMissing:
            return None

    def element(self, index: int) -> bytes | None:
        """The bytes of the one element that an inline constant, or a broadcast of one, is full of."""
        if index not in self._elements:
            node = self.node(index)
            self._elements[index] = (
                self.element(node.inputs[0]) if node.op == "broadcast" else _only_element(node, self.type(index))
            )
        return self._elements[index]

    def filled(self, kind: TensorType, element: bytes) -> int | None:
        """A constant full of `element`, if it is small."""
        if kind.size_bytes > SMALL_BYTES:
            return None
        return self.builder.const(np.frombuffer(element * kind.size, kind.dtype.numpy).reshape(kind.shape))

    def _simplest(self, index: int) -> int:
        node, kind = self.node(index), self.type(index)
        for rule in RULES.get(node.op, ()) if self.evaluate is None else (*RULES.get(node.op, ()), _fold):
            simpler = rule(self, node, kind)
            if simpler is not None:
                return simpler
        return index

    def _body(self, body: WireGraph) -> WireGraph:
        if body not in self._bodies:
            self._bodies[body] = simplify(body, self.evaluate, self.limits)
        return self._bodies[body]


_UNBOUNDED = 1 << 62


def _only_element(node: Node, kind: TensorType) -> bytes | None:
    data: bytes = node.attrs.get("data", b"") if node.op == "const" else b""
    element = data[: kind.dtype.itemsize]
    return element if data and data == element * kind.size else None


# -- the tables -------------------------------------------------------------------------------------------


def _bits(make: Callable[[DType], Any]) -> Callable[[DType], bytes]:
    @cache
    def element(dtype: DType) -> bytes:
        return np.asarray(make(dtype), dtype.numpy).tobytes()

    return element


ZERO = _bits(lambda dtype: 0)
ONE = _bits(lambda dtype: 1)
MINUS_ZERO = _bits(lambda dtype: -0.0)
MINUS_ZEROS = _bits(lambda dtype: complex(-0.0, -0.0))
ALL_BITS = _bits(lambda dtype: np.invert(np.zeros((), dtype.numpy)))
LOWEST = _bits(lambda dtype: -np.inf if dtype.kind == "f" else np.iinfo(dtype.numpy).min)
HIGHEST = _bits(lambda dtype: np.inf if dtype.kind == "f" else np.iinfo(dtype.numpy).max)


class _Row(NamedTuple):
    """A special element of an op over operands of these dtype kinds, and on which sides it is special."""

    op: str
    kinds: str
    element: Callable[[DType], bytes]
    sides: tuple[int, ...] = (0, 1)


UNITS = (  # op(x, element) is x
    _Row("add", "iu", ZERO),
    _Row("add", "f", MINUS_ZERO),
    _Row("add", "c", MINUS_ZEROS),
    _Row("mul", "iuf", ONE),
    _Row("div", "iuf", ONE, (1,)),
    _Row("pow", "iuf", ONE, (1,)),
    _Row("max", "iuf", LOWEST),
    _Row("min", "iuf", HIGHEST),
    _Row("and", "biu", ALL_BITS),
    _Row("or", "biu", ZERO),
    _Row("xor", "biu", ZERO),
    _Row("shl", "iu", ZERO, (1,)),
    _Row("shr", "iu", ZERO, (1,)),
)
ABSORBERS = (  # op(x, element) is the element
    _Row("mul", "iu", ZERO),
    _Row("max", "iu", HIGHEST),
    _Row("min", "iu", LOWEST),
    _Row("and", "biu", ZERO),
    _Row("or", "biu", ALL_BITS),
)
REPEATS = (  # op(x, x) is the element
    _Row("xor", "biu", ZERO),
    _Row("rem", "iu", ZERO),
    _Row("eq", "biu", ONE),
    _Row("le", "biu", ONE),
    _Row("ge", "biu", ONE),
    _Row("ne", "biu", ZERO),
    _Row("lt", "biuf", ZERO),
    _Row("gt", "biuf", ZERO),
)
SAME_TWICE = frozenset({"and", "or", "max", "min"})  # op(x, x) is x
UNDONE = frozenset({"neg", "not"})  # op(op(x)) is x
SETTLED = frozenset({"abs", "sign", "floor", "round"})  # op(op(x)) is op(x)
INTEGRAL = frozenset({"floor", "round"})  # and so are these of each other
OPPOSITE = {"eq": "ne", "ne": "eq"}  # not op(x, y); for NaN too
OPPOSITE_ORDER = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}  # not op(x, y) where there is no NaN
COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor"})  # exactly so for integers and bool
SYMMETRIC = frozenset({"eq", "ne"})  # and these for every dtype


def _special(rewriter: Rewriter, node: Node, rows: tuple[_Row, ...]) -> tuple[int, int] | None:
    """The (other, special) operands if one operand is that of a row."""
    elements = [rewriter.element(source) for source in node.inputs]
    dtype = rewriter.type(node.inputs[0]).dtype
    if elements == [None, None]:
        return None
    for row in rows:
        for side in row.sides if row.op == node.op and dtype.kind in row.kinds else ():
            if elements[side] == row.element(dtype):
                return node.inputs[1 - side], node.inputs[side]
    return None


def _unit(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    special = _special(rewriter, node, UNITS)
    return None if special is None else rewriter.widened(special[0], kind.shape)


def _absorber(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    special = _special(rewriter, node, ABSORBERS)
    return None if special is None else rewriter.widened(special[1], kind.shape)


def _repeat(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    left, right = node.inputs
    if left != right:
        return None
    if node.op in SAME_TWICE:
        return left
    for row in REPEATS:
        if row.op == node.op and rewriter.type(left).dtype.kind in row.kinds:
            return rewriter.filled(kind, row.element(kind.dtype))
    return None


def _swap(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    if node.op not in SYMMETRIC and (node.op not in COMMUTATIVE or kind.dtype.kind in "fc"):
        return None
    first = rewriter.first_of(node)
    return None if first == node else rewriter.add(first.op, *first.inputs)


def _twice(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source = node.inputs[0]
    inner = rewriter.node(source)
    if node.op == inner.op and node.op in UNDONE:
        return inner.inputs[0]
    return source if node.op == inner.op or {node.op, inner.op} == INTEGRAL else None


# -- functions, by family ---------------------------------------------------------------------------------


def _fold(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    """What depends on constants alone, if the result is no larger than they are, or small."""
    assert rewriter.evaluate is not None
    if node.op in ("input", "param", "const"):
        return None
    if node.op in CONTROL or any(inner.has_control for inner in inner_graphs(node.op, node.attrs)):
        return None  # it may take long, or for ever
    if (
        node.op == "spmd"
        or node.op in COLLECTIVES
        or any(inner.free_axes for inner in inner_graphs(node.op, node.attrs))
    ):
        return None  # no rank can say it alone
    given_bytes = sum(rewriter.type(source).size_bytes for source in node.inputs)
    if kind.size_bytes > max(SMALL_BYTES, min(given_bytes, rewriter.limits.inline_const_bytes_max)):
        return None
    values = [rewriter.value(source) for source in node.inputs]
    if any(value is None for value in values):
        return None
    alone = GraphBuilder(rewriter.limits)
    graph = alone.build([alone.add(node.op, *[alone.const(value) for value in values], **node.attrs)])
    (result,) = rewriter.evaluate(graph, {})
    return rewriter.builder.const(result)


def _abs(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    inner = rewriter.node(node.inputs[0])
    if kind.dtype.kind == "u":
        return node.inputs[0]
    return rewriter.add("abs", inner.inputs[0]) if inner.op == "neg" else None


def _not(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    inner = rewriter.node(node.inputs[0])
    opposite = OPPOSITE.get(inner.op)
    if inner.op in OPPOSITE_ORDER and rewriter.type(inner.inputs[0]).dtype.kind != "f":
        opposite = OPPOSITE_ORDER[inner.op]
    return rewriter.add(opposite, *inner.inputs) if opposite and kind.dtype is BOOL else None


def _part(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    """The real or imaginary part of what was made of two parts."""
    inner = rewriter.node(node.inputs[0])
    return rewriter.widened(inner.inputs[PARTS.index(node.op)], kind.shape) if inner.op == "complex" else None


PARTS = ("real", "imag")


def _complex(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    """What was taken apart and is put together again."""
    parts = [rewriter.node(source) for source in node.inputs]
    same = tuple(part.op for part in parts) == PARTS and parts[0].inputs == parts[1].inputs
    return parts[0].inputs[0] if same else None


def _select(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    condition, taken, other = node.inputs
    element = rewriter.element(condition)
    if element is not None:
        (value,) = np.frombuffer(element, rewriter.type(condition).dtype.numpy)
        return rewriter.widened(taken if float(value) > 0 else other, kind.shape)
    if taken == other:
        return rewriter.widened(taken, kind.shape)
    inner = rewriter.node(condition)
    return rewriter.add("select", inner.inputs[0], other, taken) if inner.op == "not" else None


def _cast(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source = node.inputs[0]
    if rewriter.type(source).dtype is kind.dtype:
        return source
    inner = rewriter.node(source)
    if inner.op != "cast":
        return None
    lossless = _holds(rewriter.type(source).dtype, rewriter.type(inner.inputs[0]).dtype)
    return rewriter.add("cast", inner.inputs[0], dtype=kind.dtype.name) if lossless else None


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether `wide` has every value of `narrow` and converts on in the same way."""
    if narrow.kind == "b":
        return True
    return wide.itemsize > narrow.itemsize and (wide.kind == narrow.kind or (wide.kind, narrow.kind) == ("i", "u"))


def _bitcast(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source = node.inputs[0]
    if rewriter.type(source).dtype is kind.dtype:
        return source
    inner = rewriter.node(source)
    return rewriter.add("bitcast", inner.inputs[0], dtype=kind.dtype.name) if inner.op == "bitcast" else None


def _reduce(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    """Nothing to combine; but a float sum of one element turns -0.0 into 0.0, and complex ones begin with 0 or 1."""
    source = rewriter.type(node.inputs[0])
    if any(source.shape[axis] != 1 for axis in node.attrs["axes"]):
        return None
    exact = kind.dtype.kind not in "fc" or (node.op != "reduce_sum" and kind.dtype.kind == "f")
    return rewriter.add("reshape", node.inputs[0], shape=kind.shape) if exact else None


def _same_view(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    """Reshape and broadcast: to the shape it has, or of one of its own kind."""
    source = node.inputs[0]
    if rewriter.type(source).shape == kind.shape:
        return source
    inner = rewriter.node(source)
    return rewriter.add(node.op, inner.inputs[0], shape=kind.shape) if inner.op == node.op else None


def _transpose(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source, perm = node.inputs[0], node.attrs["perm"]
    if perm == tuple(range(len(perm))):
        return source
    inner = rewriter.node(source)
    if inner.op != "transpose":
        return None
    return rewriter.add("transpose", inner.inputs[0], perm=tuple(inner.attrs["perm"][axis] for axis in perm))


def _reverse(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source, axes = node.inputs[0], node.attrs["axes"]
    inner = rewriter.node(source)
    turned = {axis for axis in axes if kind.shape[axis] > 1}
    if inner.op == "reverse":
        source, turned = inner.inputs[0], turned ^ set(inner.attrs["axes"])
    if not turned:
        return source
    kept_axes = tuple(sorted(turned))
    return None if kept_axes == axes else rewriter.add("reverse", source, axes=kept_axes)


def _slice(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source, start, step = node.inputs[0], node.attrs["start"], node.attrs["step"]
    if rewriter.type(source).shape == kind.shape:
        return source  # as many elements in order: all of them
    inner = rewriter.node(source)
    if inner.op == "slice":
        joined = zip(inner.attrs["start"], inner.attrs["step"], start, step, strict=True)
        start, step = zip(*[(low + by * at, by * stride) for low, by, at, stride in joined], strict=True)
        source = inner.inputs[0]
    spans = [_span(*bounds) for bounds in zip(start, step, kind.shape, strict=True)]
    attrs = Attrs(dict(zip(("start", "stop", "step"), zip(*spans, strict=True), strict=True)))
    return None if attrs == node.attrs else rewriter.add("slice", source, **attrs)


def _span(start: int, step: int, count: int) -> tuple[int, int, int]:
    """Start, stop and step of `count` elements, written in the one canonical way."""
    if count <= 1:
        return (start, start + 1, 1) if count else (0, 0, 1)
    return start, start + (count - 1) * step + 1, step


def _pad(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source, fill = node.inputs
    if rewriter.type(source).shape == kind.shape:
        return source
    inner = rewriter.node(source)
    if inner.op != "pad" or inner.inputs[1] != fill or any(node.attrs["interior"]):
        return None
    widths = {
        name: tuple(a + b for a, b in zip(node.attrs[name], inner.attrs[name], strict=True)) for name in node.attrs
    }
    return rewriter.add("pad", inner.inputs[0], fill, **widths)


def _concat(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    axis = node.attrs["axis"]
    kept = [source for source in node.inputs if rewriter.type(source).shape[axis]] or list(node.inputs[:1])
    if len(kept) == 1:
        return kept[0]
    return rewriter.add("concat", *kept, axis=axis) if len(kept) < len(node.inputs) else None


def _dynamic_slice(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    source, shape = node.inputs[0], rewriter.type(node.inputs[0]).shape
    if shape == kind.shape:
        return source  # starts are clamped to 0
    starts = rewriter.value(node.inputs[1])
    if starts is None:
        return None
    room = (dim - size for dim, size in zip(shape, kind.shape, strict=True))
    start = tuple(min(max(at, 0), most) for at, most in zip(starts.tolist(), room, strict=True))
    stop = tuple(at + size for at, size in zip(start, kind.shape, strict=True))
    return rewriter.add("slice", source, start=start, stop=stop, step=(1,) * len(shape))


def _dynamic_update_slice(rewriter: Rewriter, node: Node, kind: TensorType) -> int | None:
    return node.inputs[1] if rewriter.type(node.inputs[1]).shape == kind.shape else None


Rule = Callable[[Rewriter, Node, TensorType], int | None]

RULES: dict[str, tuple[Rule, ...]] = {
    **{name: (_unit, _absorber, _repeat, _swap) for name, op in OPS.items() if op.family == "binary"},
    **dict.fromkeys(UNDONE | SETTLED, (_twice,)),
    "abs": (_abs, _twice),
    "not": (_twice, _not),
    "real": (_part,),
    "imag": (_part,),
    "complex": (_complex,),
    "select": (_select,),
    "cast": (_cast,),
    "bitcast": (_bitcast,),
    "reduce_sum": (_reduce,),
    "reduce_prod": (_reduce,),
    "reduce_max": (_reduce,),
    "reduce_min": (_reduce,),
    "reshape": (_same_view,),
    "broadcast": (_same_view,),
    "transpose": (_transpose,),
    "reverse": (_reverse,),
    "slice": (_slice,),
    "pad": (_pad,),
    "concat": (_concat,),
    "dynamic_slice": (_dynamic_slice,),
    "dynamic_update_slice": (_dynamic_update_slice,),
}
