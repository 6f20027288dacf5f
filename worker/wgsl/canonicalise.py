"""Graph -> graph: composites inlined, no-ops dropped, awkward shapes rewritten into easy ones.

Valid graph in, valid graph out, same inputs and outputs by name (params nobody reads are dropped).  Every rewrite is a
row of `RULES`: `rule(rewriter, node, inputs, type) -> index in the new graph, or None to keep the node`.  Rewrites here
replace special kernels: a reduction too long for one kernel becomes two reductions, a dot of a few products becomes a
multiply and a reduction, a wide concat becomes a tree.

It does not know kernels.  To add a rewrite: one function and its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wire.errors import Unsupported
from wire.ir.dtypes import BOOL, F16, F32, I32, U32, DType
from wire.ir.graph import GraphBuilder, Node, WireGraph, const_value
from wire.ir.ops import CONTROL, ELEMENTWISE
from wire.ir.types import TensorType
from wire.passes.provenance import Provenance

from ..compiler.constants import identity_of
from ..compiler.scores import NODES_MAX, WIDEST
from .kernels.product_forms import LENGTH_MAX, Sizes, conv_copies, form_of, in_panels, parts
from .profile import CPU_ONLY, Profile
from .program import padded as padded_size

ELEMENTS_MAX = (1 << 31) - 1  # indices are u32, and differences of indices must not wrap
CONCAT_FAN_IN = 4
REDUCE_LENGTH_MAX = 16_384  # longer reductions are split in two
SPLIT_CHUNK = 1_024
SPLIT_FEW_ROWS = 64  # with fewer rows than this, a reduction of more than SPLIT_CHUNK is split to use the device
LINE_MIN = 16  # a dot with one row, and fewer columns or a shorter length, is a multiply and a reduction
PANEL_RUN = (
    32  # of a dot's length, that lies in one piece for each tile: a copy reads so many rows of the operand at once
)
TRIANGLE_MIN = 16  # rows and columns of a constant that is looked at


def canonicalise(graph: WireGraph, profile: Profile, provenance: Provenance | None = None) -> WireGraph:
    """Rewrite a graph to the form that the other passes expect.  Unsupported names an op, dtype or size."""
    rewriter = Rewriter(profile)
    inputs = {graph.nodes[index].attrs["name"]: index for index in graph.inputs}
    bindings = {name: rewriter.builder.input(name, *graph.types[index]) for name, index in inputs.items()}
    placed = rewriter.walk(graph, bindings, provenance)
    outputs = [placed[index] for index in graph.outputs]
    if provenance is not None:
        provenance.passed(rewriter.builder.order(outputs))
    return _in_order(rewriter.builder.build(outputs, graph.output_names))


def _in_order(graph: WireGraph) -> WireGraph:
    """Replace every `after` by its first operand.  Later passes keep the order of nodes, and merge none, so the order
    that it asked for holds."""
    instead = list(range(len(graph.nodes)))
    nodes = []
    for index, node in enumerate(graph.nodes):
        nodes.append(node._replace(inputs=tuple([instead[source] for source in node.inputs])))
        if node.op == "after":
            instead[index] = nodes[-1].inputs[0]
    return replace(graph, nodes=tuple(nodes), outputs=tuple([instead[index] for index in graph.outputs]))


class Rewriter:
    """Rebuilds a graph node by node; `builder` holds the new one (hash-consed, so equal nodes become one)."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.builder = GraphBuilder()

    def walk(self, graph: WireGraph, bindings: Mapping[str, int], provenance: Provenance | None = None) -> list[int]:
        self.builder.blobs.update(graph.blobs)
        placed: list[int] = []
        for number, (node, type_) in enumerate(zip(graph.nodes, graph.types, strict=True)):
            inputs, first = [placed[index] for index in node.inputs], len(self.builder.nodes)
            self._check(node, type_)
            if node.op == "input":
                placed.append(bindings[node.attrs["name"]])
            elif node.op == "composite":
                placed.append(self._inline(node, inputs))
            else:
                placed.append(self.place(node, inputs, type_))
            if provenance is not None:
                provenance.note(number, {placed[-1], *range(first, len(self.builder.nodes))})
        return placed

    def place(self, node: Node, inputs: Sequence[int], type_: TensorType) -> int:
        """`node` over `inputs` in the new graph, rewritten by its rule if it has one."""
        if type_.size == 0 and node.op not in ("param", "const"):
            return self.builder.const(np.zeros(type_.shape, type_.dtype.numpy))
        rule = RULES.get(node.op)
        replacement = rule(self, node, list(inputs), type_) if rule else None
        return self.builder.copy(node, inputs) if replacement is None else replacement

    def add(self, op: str, *inputs: int, **attrs: Any) -> int:
        """A new node, itself subject to the rules."""
        probe = self.builder.add(op, *inputs, **attrs)
        self._check(self.builder.nodes[probe], self.builder.types[probe])
        return self.place(self.builder.nodes[probe], inputs, self.builder.types[probe])

    def shape(self, index: int) -> tuple[int, ...]:
        return self.builder.types[index].shape

    def dtype(self, index: int) -> DType:
        return self.builder.types[index].dtype

    def filled(self, value: Any, dtype: DType, shape: Sequence[int] = ()) -> int:
        scalar = self.builder.const(np.asarray(value, dtype.numpy))
        return self.add("broadcast", scalar, shape=tuple(shape)) if shape else scalar

    def _inline(self, node: Node, inputs: Sequence[int]) -> int:
        body: WireGraph = node.attrs["body"]
        names = [body.nodes[index].attrs["name"] for index in body.inputs]
        placed = self.walk(body, dict(zip(names, inputs, strict=True)))
        return placed[body.outputs[0]]

    def _check(self, node: Node, type_: TensorType) -> None:
        if node.op in CONTROL:
            raise Unsupported(
                f"{node.op} is no kernel", op=node.op, next_step="Compile the graph in steps (control_schedule.py)"
            )
        known = self.profile.dtypes
        if node.op in CPU_ONLY:
            raise Unsupported(f"{node.op} has no kernel in WGSL", op=node.op, next_step="Place this op on a cpu engine")
        if type_.dtype.name not in known:
            raise Unsupported(
                f"{node.op} of dtype {type_.dtype.name} is not available in WGSL here",
                op=node.op,
                next_step=f"Supported: {', '.join(known)}; place this op on a cpu engine",
            )
        if type_.size > ELEMENTS_MAX:
            raise Unsupported(
                f"{node.op} makes {type_.size} elements; u32 indices allow {ELEMENTS_MAX}",
                op=node.op,
                next_step="Cut the tensor into smaller ones",
            )


Rule = Callable[[Rewriter, Node, list[int], TensorType], int | None]


# -- constants --------------------------------------------------------------------------------------------


def _triangle(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    """A constant with one value up to a diagonal and another one after it, such as a causal mask, as a comparison of
    positions: it takes no memory, and kernels can tell which blocks of it have one value."""
    *outer, rows, columns = type_.shape if len(type_.shape) > 1 else (1, 1)
    if math.prod(outer) > 1 or min(rows, columns) < TRIANGLE_MIN:
        return None
    value = const_value(node, rewriter.builder.blobs)
    bits = value.view(f"u{type_.dtype.itemsize}").reshape(rows, columns)
    below, above = bits[-1, 0], bits[0, -1]
    last = int((bits[0] == below).sum()) - 1 if bits[0, 0] == below else -int((bits[:, 0] != below).sum())
    seen = np.arange(rows)[:, None] + last >= np.arange(columns)
    if below == above or not np.array_equal(bits, np.where(seen, below, above)):
        return None
    position = rewriter.add("iota", shape=(rows, 1), dtype=I32.name, axis=0)
    position = rewriter.add("add", position, rewriter.filled(last, I32))
    mask = rewriter.add("ge", position, rewriter.add("iota", shape=(1, columns), dtype=I32.name, axis=1))
    if type_.dtype is BOOL:
        mask = mask if below else rewriter.add("not", mask)
    else:
        values = [rewriter.filled(value.view(type_.dtype.numpy), type_.dtype) for value in (below, above)]
        mask = rewriter.add("select", mask, *values)
    return rewriter.add("reshape", mask, shape=type_.shape)


# -- no-ops -----------------------------------------------------------------------------------------------


def _same_type(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    return inputs[0] if rewriter.builder.types[inputs[0]] == type_ else None


def _transpose(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    return inputs[0] if node.attrs["perm"] == tuple(range(len(type_.shape))) else None


def _reverse(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    return inputs[0] if all(type_.shape[axis] == 1 for axis in node.attrs["axes"]) else None


def _pad(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    if 0 in rewriter.shape(inputs[0]):
        return rewriter.add("broadcast", inputs[1], shape=type_.shape)
    return inputs[0] if rewriter.shape(inputs[0]) == type_.shape else None


def _dynamic_update(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    return inputs[0] if 0 in rewriter.shape(inputs[1]) else None


# -- concat, scatter --------------------------------------------------------------------------------------


def _concat(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    axis = node.attrs["axis"]
    parts = [index for index in inputs if rewriter.shape(index)[axis]]
    if len(parts) == 1:
        return parts[0]
    if len(parts) > CONCAT_FAN_IN:
        groups = [parts[at : at + CONCAT_FAN_IN] for at in range(0, len(parts), CONCAT_FAN_IN)]
        return rewriter.add("concat", *(rewriter.add("concat", *group, axis=axis) for group in groups), axis=axis)
    return None if len(parts) == len(inputs) else rewriter.add("concat", *parts, axis=axis)


def _scatter(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    if 0 in rewriter.shape(inputs[2]):
        return inputs[0]
    if type_.dtype is F16 and node.attrs["mode"] == "add":
        wide = [rewriter.add("cast", inputs[at], dtype="f32") for at in (0, 2)]
        total = rewriter.add("scatter", wide[0], inputs[1], wide[1], **node.attrs)
        return rewriter.add("cast", total, dtype="f16")
    return None


# -- reductions -------------------------------------------------------------------------------------------


def _reduce(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    source, axes = inputs[0], node.attrs["axes"]
    shape, dtype = rewriter.shape(source), rewriter.dtype(source)
    length = math.prod(shape[axis] for axis in axes)
    if length == 0:
        return rewriter.filled(identity_of(node.op, dtype), dtype, type_.shape)
    if length == 1:
        return rewriter.add("reshape", source, shape=type_.shape)
    if not _too_long(length, type_.size):
        return None
    if dtype is F16 and node.op in ("reduce_sum", "reduce_prod"):
        wide = rewriter.add(node.op, rewriter.add("cast", source, dtype="f32"), axes=axes)
        return rewriter.add("cast", wide, dtype="f16")
    chunks = _chunks(rewriter, source, axes, identity_of(node.op, dtype))
    partial = rewriter.add(node.op, chunks, axes=(2,))
    return rewriter.add("reshape", rewriter.add(node.op, partial, axes=(1,)), shape=type_.shape)


def _argmax(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    source, axis = inputs[0], node.attrs["axis"]
    length = rewriter.shape(source)[axis]
    if length == 1:
        return rewriter.filled(0, type_.dtype, type_.shape)
    if not _too_long(length, type_.size):
        return None
    chunks = _chunks(rewriter, source, (axis,), identity_of("reduce_max", rewriter.dtype(source)))
    width = rewriter.filled(rewriter.shape(chunks)[2], type_.dtype)
    best = rewriter.add("argmax", rewriter.add("reduce_max", chunks, axes=(2,)), axis=1)
    inside = rewriter.add("argmax", chunks, axis=2)
    column = rewriter.add("reshape", best, shape=(*rewriter.shape(best), 1))
    offset = rewriter.add("gather", inside, column, axis=1, batch_dims=1)
    offset = rewriter.add("reshape", offset, shape=rewriter.shape(best))
    total = rewriter.add("add", rewriter.add("mul", best, width), offset)
    return rewriter.add("reshape", total, shape=type_.shape)


def _too_long(length: int, rows: int) -> bool:
    return length > REDUCE_LENGTH_MAX or (length > 4 * SPLIT_CHUNK and rows < SPLIT_FEW_ROWS)


def _chunks(rewriter: Rewriter, source: int, axes: Sequence[int], identity: Any) -> int:
    """`source` as (rows, chunks, length of a chunk), the reduced axes last and padded with `identity`."""
    shape = rewriter.shape(source)
    outer = [axis for axis in range(len(shape)) if axis not in axes]
    rows = math.prod(shape[axis] for axis in outer)
    length = math.prod(shape[axis] for axis in axes)
    count = -(-length // SPLIT_CHUNK)
    chunk = -(-length // count)
    chunk += -chunk % 4  # keeps vec4 loads possible
    count = -(-length // chunk)
    source = rewriter.add("transpose", source, perm=(*outer, *axes))
    source = rewriter.add("reshape", source, shape=(rows, length))
    fill = rewriter.filled(identity, rewriter.dtype(source))
    source = rewriter.add("pad", source, fill, low=(0, 0), high=(0, count * chunk - length), interior=(0, 0))
    return rewriter.add("reshape", source, shape=(rows, count, chunk))


# -- along an axis ----------------------------------------------------------------------------------------


def _cumulative(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    """Each element with the one 1, 2, 4, ... before it: every partial result after log2(length) maps."""
    source, axis, dtype = inputs[0], node.attrs["axis"], type_.dtype
    if dtype is F16 and node.op in ("cumsum", "cumprod"):
        wide = rewriter.add(node.op, rewriter.add("cast", source, dtype="f32"), axis=axis)
        return rewriter.add("cast", wide, dtype="f16")
    combine, reduction = CUMULATIVE[node.op]
    fill = rewriter.filled(identity_of(reduction, dtype), dtype)
    shape, none = type_.shape, (0,) * len(type_.shape)
    back = 1
    while back < shape[axis]:
        stop = tuple(dim - back if place == axis else dim for place, dim in enumerate(shape))
        low = tuple(back if place == axis else 0 for place in range(len(shape)))
        earlier = rewriter.add("slice", source, start=none, stop=stop, step=(1,) * len(shape))
        earlier = rewriter.add("pad", earlier, fill, low=low, high=none, interior=none)
        source = rewriter.add(combine, earlier, source)
        back *= 2
    return source


CUMULATIVE = {  # the op that combines, and the reduction it belongs to
    "cumsum": ("add", "reduce_sum"),
    "cumprod": ("mul", "reduce_prod"),
    "cummax": ("max", "reduce_max"),
    "cummin": ("min", "reduce_min"),
}


def _argsort(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    """Rows of a power of two, filled up with what sorts last; index decides between equals, so real elements win."""
    axis, shape, dtype = node.attrs["axis"], type_.shape, rewriter.dtype(inputs[0])
    length = shape[axis]
    if length == 1:
        return rewriter.filled(0, type_.dtype, shape)
    width = 1 << (length - 1).bit_length()
    if len(shape) == 2 and axis == 1 and width == length:
        return None
    outer = tuple(place for place in range(len(shape)) if place != axis)
    rows = math.prod(shape[place] for place in outer)
    source = rewriter.add("transpose", inputs[0], perm=(*outer, axis))
    source = rewriter.add("reshape", source, shape=(rows, length))
    last = math.nan if dtype.kind == "f" else identity_of("reduce_min", dtype)
    fill = rewriter.filled(last, dtype)
    source = rewriter.add("pad", source, fill, low=(0, 0), high=(0, width - length), interior=(0, 0))
    sorted_index = rewriter.add("argsort", source, axis=1)
    sorted_index = rewriter.add("slice", sorted_index, start=(0, 0), stop=(rows, length), step=(1, 1))
    sorted_index = rewriter.add("reshape", sorted_index, shape=(*(shape[place] for place in outer), length))
    back = [0] * len(shape)
    for place, old in enumerate((*outer, axis)):
        back[old] = place
    return rewriter.add("transpose", sorted_index, perm=tuple(back))


# -- contraction ------------------------------------------------------------------------------------------


def _dot(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    sides = [_Side(rewriter.shape(inputs[at]), node.attrs, name) for at, name in enumerate(("lhs", "rhs"))]
    batch, rows, columns = (math.prod(dims) for dims in (sides[0].batch, sides[0].free, sides[1].free))
    length = math.prod(sides[0].contract)
    if length == 0:
        return rewriter.filled(0, type_.dtype, type_.shape)
    line = min(rows, columns) == 1
    if line and min(max(rows, columns), length) < LINE_MIN and type_.size * length <= ELEMENTS_MAX:
        return _multiplied(rewriter, inputs, sides, type_)
    few, many = (min(rows, columns), max(rows, columns)) if line else (rows, columns)
    wide = 0 if columns == 1 else 1  # the operand that is a matrix, if one is a row
    along = _lies_along(rewriter, inputs[wide], node.attrs[("lhs_contract", "rhs_contract")[wide]])
    sizes = Sizes(batch, few, many, length, along, type_.dtype.name)
    count = parts(sizes, rewriter.profile)
    if count > 1 and not (length <= LENGTH_MAX and any(_is_of_scores(rewriter, index) for index in inputs)):
        return _split_dot(rewriter, inputs, sides, type_, count)
    if not in_panels(sizes, rewriter.profile):
        return None
    copied = (not _lies_along(rewriter, inputs[0], node.attrs["lhs_contract"]), True)
    return _in_panels(rewriter, inputs, sides, sizes, type_, copied)


def _lies_along(rewriter: Rewriter, index: int, axes: Sequence[int]) -> bool:
    """Whether the last of these axes is the last one in memory, as far as transposes tell."""
    if not axes:
        return False
    axis = axes[-1]
    while (node := rewriter.builder.nodes[index]).op == "transpose":
        axis, index = node.attrs["perm"][axis], node.inputs[0]
    return axis == len(rewriter.shape(index)) - 1


def _is_of_scores(rewriter: Rewriter, top: int) -> bool:
    """Whether an operand may be elementwise over scores (compiler/scores.py), which have loops of their own."""
    nodes, size = rewriter.builder.nodes, rewriter.builder.types[top].size
    pending, seen = [top], set[int]()
    while pending and len(seen) < NODES_MAX:
        index = pending.pop()
        node = nodes[index]
        if index in seen or rewriter.builder.types[index].size != size:
            continue
        seen.add(index)
        if node.op == "dot" and index != top:
            shape = rewriter.shape(node.inputs[0])
            length: int = math.prod(shape[axis] for axis in node.attrs["lhs_contract"])
            return length <= WIDEST
        if node.op in ELEMENTWISE:
            pending += node.inputs
    return False


def _multiplied(rewriter: Rewriter, inputs: list[int], sides: Sequence[_Side], type_: TensorType) -> int:
    """The dot as a multiply and a sum."""
    batch, rows, columns = (math.prod(dims) for dims in (sides[0].batch, sides[0].free, sides[1].free))
    length = math.prod(sides[0].contract)
    left = sides[0].arranged(rewriter, inputs[0], (batch, rows, 1, length))
    right = sides[1].arranged(rewriter, inputs[1], (batch, 1, columns, length))
    if type_.dtype is F16:
        left, right = (rewriter.add("cast", side, dtype=F32.name) for side in (left, right))
    total = rewriter.add("reduce_sum", rewriter.add("mul", left, right), axes=(3,))
    total = rewriter.add("reshape", total, shape=type_.shape)
    return rewriter.add("cast", total, dtype=type_.dtype.name)


def _in_panels(
    rewriter: Rewriter,
    inputs: list[int],
    sides: Sequence[_Side],
    sizes: Sizes,
    type_: TensorType,
    copied: tuple[bool, bool],
) -> int | None:
    """The dot over copies of its operands, in which what a tile reads of a run of the length lies in one piece: the
    left one as (run, tile, quad of the run, row, 4), the right one as (run, tile, place in the run, column); None if
    they do not fit.  A left operand that lies along the length is read as it is: what a row's next turns read lies
    beside what this one does."""
    form = form_of(sizes, rewriter.profile)
    widths = (form.tile_rows, form.tile_columns)
    frees = [free + -free % width for free, width in zip((sizes.rows, sizes.columns), widths, strict=True)]
    wanted = [free for free, own in zip(frees, copied, strict=True) if own]
    if not all(_fits(rewriter, sizes.batch * free * sizes.length, type_.dtype) for free in wanted):
        return None
    views, run = [], math.gcd(sizes.length, PANEL_RUN)
    for side, index, width, whole_free, deep, own in zip(sides, inputs, widths, frees, (4, 1), copied, strict=True):
        free = math.prod(side.free)
        shape = (sizes.batch, whole_free // width, width, sizes.length // run, run // deep, deep)
        zero = rewriter.filled(0, type_.dtype)
        whole = side.arranged(rewriter, index, (sizes.batch, free, sizes.length))
        if not own:
            views.append(whole)
            continue
        whole = rewriter.add("pad", whole, zero, low=(0, 0, 0), high=(0, whole_free - free, 0), interior=(0, 0, 0))
        panels = rewriter.add("transpose", rewriter.add("reshape", whole, shape=shape), perm=(0, 3, 1, 4, 2, 5))
        view = rewriter.add("transpose", _copied(rewriter, panels, {}), perm=(0, 2, 4, 1, 3, 5))
        view = rewriter.add("reshape", view, shape=(sizes.batch, whole_free, sizes.length))
        stop = (sizes.batch, free, sizes.length)
        views.append(rewriter.add("slice", view, start=(0, 0, 0), stop=stop, step=(1, 1, 1)))
    axes = {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (2,)}
    return rewriter.add("reshape", rewriter.builder.add("dot", *views, **axes), shape=type_.shape)


def _copied(rewriter: Rewriter, source: int, widths: Mapping[str, Sequence[int]]) -> int:
    """`source` padded, and so in memory: no kernel pads while it loads for a product.  The rules would drop a pad of
    nothing, so this goes past them."""
    none = (0,) * len(rewriter.shape(source))
    fill = rewriter.filled(0, rewriter.dtype(source))
    return rewriter.builder.add("pad", source, fill, **{"low": none, "high": none, "interior": none, **widths})


def _split_dot(rewriter: Rewriter, inputs: list[int], sides: Sequence[_Side], type_: TensorType, count: int) -> int:
    """The dot in `count` chunks of its length or somewhat more, as (batch, chunks, rows, columns), and their sum."""
    batch, length = math.prod(sides[0].batch), math.prod(sides[0].contract)
    count = next((more for more in range(count, 2 * count) if length % (4 * more) == 0), count)  # nothing to pad
    chunk = -(-length // count)
    chunks = []
    for side, index in zip(sides, inputs, strict=True):
        free = math.prod(side.free)
        whole = side.arranged(rewriter, index, (batch, free, length))
        zero = rewriter.filled(0, type_.dtype)
        padding = {"low": (0, 0, 0), "high": (0, 0, count * chunk - length), "interior": (0, 0, 0)}
        whole = rewriter.add("pad", whole, zero, **padding)
        whole = rewriter.add("reshape", whole, shape=(batch, free, count, chunk))
        chunks.append(rewriter.add("cast", whole, dtype=F32.name) if type_.dtype is F16 else whole)
    axes = {"lhs_batch": (0, 2), "rhs_batch": (0, 2), "lhs_contract": (3,), "rhs_contract": (3,)}
    total = rewriter.add("reduce_sum", rewriter.add("dot", *chunks, **axes), axes=(1,))
    return rewriter.add("cast", rewriter.add("reshape", total, shape=type_.shape), dtype=type_.dtype.name)


def _conv(rewriter: Rewriter, node: Node, inputs: list[int], type_: TensorType) -> int | None:
    """A matmul over the windows of x, which needs no copy of them unless its sums are too long for one kernel."""
    weights, groups = rewriter.shape(inputs[1]), node.attrs["groups"]
    samples, rows, places = type_.shape[0], weights[0] // groups, math.prod(type_.shape[2:])
    length = math.prod(weights[1:])
    if length == 0:
        return rewriter.filled(0, type_.dtype, type_.shape)
    if 0 in rewriter.shape(inputs[0]):
        return _conv_of_padding(rewriter, node, inputs)
    small = min(rows, places) == 1 and type_.size * length <= ELEMENTS_MAX
    if not small and length <= LENGTH_MAX:
        return _with_copies(rewriter, inputs, node.attrs, type_)
    x, w = (rewriter.add("cast", side, dtype=F32.name) if type_.dtype is F16 else side for side in inputs)
    windows = _windows(rewriter, x, weights[2:], type_.shape[2:], node.attrs)
    if small:
        left = rewriter.add("reshape", w, shape=(1, groups, rows, length, 1))
        right = rewriter.add("reshape", windows, shape=(samples, groups, 1, length, places))
        total = rewriter.add("reduce_sum", rewriter.add("mul", left, right), axes=(3,))
    else:
        left = rewriter.add("reshape", w, shape=(groups, rows, length))
        right = rewriter.add("reshape", windows, shape=(samples, groups, length, places))
        axes = {"lhs_batch": (0,), "rhs_batch": (1,), "lhs_contract": (2,), "rhs_contract": (2,)}
        total = rewriter.add("transpose", rewriter.add("dot", left, right, **axes), perm=(2, 0, 1, 3))
    return rewriter.add("cast", rewriter.add("reshape", total, shape=type_.shape), dtype=type_.dtype.name)


def _with_copies(rewriter: Rewriter, inputs: list[int], attrs: Mapping[str, Any], type_: TensorType) -> int | None:
    """The conv over copies of its operands that have channels last, where those pay and fit; else None."""
    (made, share, *kernel), groups = rewriter.shape(inputs[1]), attrs["groups"]
    positions, none = math.prod(kernel), (0,) * len(kernel)
    places = math.prod(type_.shape[2:])
    sizes = Sizes(type_.shape[0] * groups, made // groups, places, share * positions)
    copy_w, copy_x = conv_copies(sizes, positions, rewriter.profile)
    samples, channels, *dims = rewriter.shape(inputs[0])
    widths = {"low": attrs["low"], "high": attrs["high"], "interior": [spread - 1 for spread in attrs["lhs_dilation"]]}
    padded = math.prod(
        low + dim + (dim - 1) * between + high for dim, low, high, between in zip(dims, *widths.values(), strict=True)
    )
    x, w = inputs
    if copy_w and _fits(rewriter, made * sizes.length, type_.dtype):
        w = _channels_last(rewriter, w, dict.fromkeys(widths, none))
    if copy_x and _fits(rewriter, samples * channels * padded, type_.dtype):
        x = _channels_last(rewriter, x, widths)
        attrs = {**attrs, "low": none, "high": none, "lhs_dilation": (1,) * len(kernel)}
    return None if [x, w] == inputs else rewriter.builder.add("conv", x, w, **attrs)


def _fits(rewriter: Rewriter, elements: int, dtype: DType) -> bool:
    """Whether a tensor of `elements` elements can be bound as a whole."""
    limits = rewriter.profile.limits
    return padded_size(elements * dtype.itemsize) <= min(limits.binding_bytes, limits.buffer_bytes)


def _channels_last(rewriter: Rewriter, source: int, widths: Mapping[str, Sequence[int]]) -> int:
    """A padded copy of `source` as (n, *dims, c), seen as `source` is."""
    axes = range(2, len(rewriter.shape(source)))
    moved = rewriter.add("transpose", source, perm=(0, *axes, 1))
    copied = _copied(rewriter, moved, {name: (0, *own, 0) for name, own in widths.items()})
    return rewriter.add("transpose", copied, perm=(0, axes[-1], *(axis - 1 for axis in axes)))


def _conv_of_padding(rewriter: Rewriter, node: Node, inputs: list[int]) -> int:
    """The conv over what x's empty axes become once they are padded."""
    samples, channels, *dims = rewriter.shape(inputs[0])
    none, widths = (0,) * len(dims), [node.attrs[name] for name in ("low", "high", "lhs_dilation")]
    lengths = [
        low + max((dim - 1) * spread + 1, 0) + high for dim, low, high, spread in zip(dims, *widths, strict=True)
    ]
    zeros = rewriter.filled(0, rewriter.dtype(inputs[0]), (samples, channels, *lengths))
    attrs = {**node.attrs, "low": none, "high": none, "lhs_dilation": (1,) * len(dims)}
    return rewriter.add("conv", zeros, inputs[1], **attrs)


def _windows(rewriter: Rewriter, x: int, kernel: Sequence[int], places: Sequence[int], attrs: Mapping[str, Any]) -> int:
    """What each position of the kernel reads at each place: (n, c, *kernel, *places)."""
    spatial = len(kernel)
    widths = {"low": attrs["low"], "high": attrs["high"], "interior": [spread - 1 for spread in attrs["lhs_dilation"]]}
    fill = rewriter.filled(0, rewriter.dtype(x))
    windows = rewriter.add("pad", x, fill, **{name: (0, 0, *widths[name]) for name in widths})
    for axis in range(spatial - 1, -1, -1):
        shape = (kernel[axis], places[axis])
        factors = attrs["rhs_dilation"][axis], attrs["stride"][axis]
        steps = [
            rewriter.add("mul", rewriter.add("iota", shape=shape, dtype=U32.name, axis=place), rewriter.filled(by, U32))
            for place, by in enumerate(factor if dim > 1 else 1 for factor, dim in zip(factors, shape, strict=True))
        ]
        windows = rewriter.add("gather", windows, rewriter.add("add", *steps), axis=2 + axis, batch_dims=0)
    perm = (0, 1, *range(2, 2 + 2 * spatial, 2), *range(3, 3 + 2 * spatial, 2))
    return rewriter.add("transpose", windows, perm=perm)


class _Side:
    """One operand of a dot: the sizes of its batch, free and contracting axes."""

    def __init__(self, shape: tuple[int, ...], attrs: Mapping[str, Any], name: str) -> None:
        batch, contract = attrs[f"{name}_batch"], attrs[f"{name}_contract"]
        free = tuple(axis for axis in range(len(shape)) if axis not in (*batch, *contract))
        self.batch, self.free, self.contract = (tuple(shape[axis] for axis in axes) for axes in (batch, free, contract))
        self._perm = (*batch, *free, *contract)

    def arranged(self, rewriter: Rewriter, index: int, shape: Sequence[int]) -> int:
        return rewriter.add("reshape", rewriter.add("transpose", index, perm=self._perm), shape=tuple(shape))


RULES: dict[str, Rule] = {
    "const": _triangle,
    "reshape": _same_type,
    "broadcast": _same_type,
    "slice": _same_type,
    "cast": _same_type,
    "bitcast": _same_type,
    "transpose": _transpose,
    "reverse": _reverse,
    **dict.fromkeys(("constraint", "transfer"), lambda rewriter, node, inputs, type_: inputs[0]),
    "pad": _pad,
    "concat": _concat,
    "dynamic_update_slice": _dynamic_update,
    "scatter": _scatter,
    "reduce_sum": _reduce,
    "reduce_prod": _reduce,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
    "argmax": _argmax,
    **dict.fromkeys(CUMULATIVE, _cumulative),
    "argsort": _argsort,
    "dot": _dot,
    "conv": _conv,
}
