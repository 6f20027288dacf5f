"""The blocks of scores that a mask of positions rules out, as a condition that a kernel asks before it loads one.

A score is known to count for nothing where a `select` between it and 0 says so, and where its weight is the exponential
of a score that a `select` or an addition put at -1e9 or lower, in a row that has others.  Masks that follow from
positions alone (a causal one, a window) are computed here, block by block; what is asked at run time is a band of
blocks beside the diagonal that holds all that count.  Other masks rule out nothing.

Skipping is exact where what is multiplied with the weights is finite: 0 times infinity is NaN, and is not computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.cached_property import cached_property
from wire.ir.graph import Node, WireGraph
from wire.ir.ops import ELEMENTWISE

from ...compiler.constants import splat_bits
from ...compiler.element_exprs import broadcast_index
from ...compiler.expressions import Expr
from ...compiler.scores import Softmax, Walk
from ..kernel_ir import walk as expressions_of
from .frame import Frame

LIFT = 1 << 28  # keeps differences of positions above zero
MASKED = -1e9  # scores that count are above it by far
SIZE_MAX = 1 << 26  # of masks that are looked at: the host computes them


def may_count(
    frame: Frame, walk: Walk, softmax: Softmax | None, tile: Expr, tile_rows: int, block: Expr, columns: int
) -> Expr | None:
    """Whether any score of a block counts, given the tile of rows and the block of columns; None if all may."""
    if walk.rows * walk.columns > SIZE_MAX:
        return None
    masks = _Masks(frame, walk, softmax is not None)
    masks.look(walk.value if softmax is None else softmax.grown)
    table = masks.table(tile_rows, columns)
    if table is None:
        return None
    bands = [_band(part, tile_rows, columns) for part in _parts(table)]
    best = min(bands, key=lambda band: band.share)
    if best.share == 1:
        return None
    build = frame.build
    start = build.scaled(build.mod(tile, best.tiles), tile_rows)
    at = build.sum(build.scaled(build.mod(block, best.blocks), columns), build.number(LIFT))
    after = build.make("le", [build.sum(start, build.number(best.low)), at], "bool")
    before = build.make("le", [at, build.sum(start, build.number(best.high))], "bool")
    return build.make("and", [after, before], "bool")


@dataclass(frozen=True, slots=True)
class _Band:
    """Blocks with low <= block * columns - tile * rows + LIFT <= high: a `share` of `tiles` by `blocks`."""

    tiles: int
    blocks: int
    low: int
    high: int
    share: float


def _band(table: NDArray[np.bool_], tile_rows: int, columns: int) -> _Band:
    """The narrowest band that holds all blocks that count."""
    tiles, blocks = table.shape
    apart = np.arange(blocks) * columns - np.arange(tiles)[:, None] * tile_rows
    held = apart[table] if table.any() else apart
    inside = (apart >= held.min()) & (apart <= held.max())
    return _Band(tiles, blocks, int(held.min()) + LIFT, int(held.max()) + LIFT, float(inside.mean()))


def _parts(table: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """The table, and what it repeats: heads that share keys stand side by side."""
    for axis, count in enumerate(table.shape):
        for parts in range(1, count + 1):
            if count % parts == 0:
                first, *others = np.split(table, parts, axis)
                if all(np.array_equal(first, other) for other in others):
                    yield first


@dataclass(eq=False)
class _Masks:
    """Conditions without which an element is 0 (`zero`), and those without which a score is MASKED (`low`).

    `shifts` is what is subtracted from scores before the exponential, `certain` whether nothing else may mask them.
    """

    frame: Frame
    walk: Walk
    by_row: bool
    zero: list[int] = field(default_factory=list)
    low: list[int] = field(default_factory=list)
    shifts: list[int] = field(default_factory=list)
    certain: bool = True

    @property
    def graph(self) -> WireGraph:
        return self.frame.graph

    def look(self, top: int) -> None:
        """Collect what must hold for a node's element not to be 0."""
        pending, seen = [top], set[int]()
        while pending:
            node = pending.pop()
            op, inputs, _ = self.graph.nodes[node]
            if node in seen:
                continue
            seen.add(node)
            if op == "select" and _value(self.graph, inputs[2]) == 0:
                self.zero.append(inputs[0])
                pending.append(inputs[1])
            elif op == "mul":
                pending += inputs
            elif op in ("div", "neg", "cast"):
                pending.append(inputs[0])
            elif op == "exp" and self.graph.nodes[inputs[0]].op == "add":
                self.look_at_weights(self.graph.nodes[inputs[0]].inputs)

    def look_at_weights(self, parts: Sequence[int]) -> None:
        """Collect from scores and what is subtracted from them."""
        made = _over(self.graph, lambda node: node.op == "dot", through=lambda node: node.op in ELEMENTWISE)
        scores = [part for part in parts if part in made]
        if len(scores) == 1:
            self.shifts += [part for part in parts if part not in scores]
            self.look_low(scores[0])

    def look_low(self, top: int) -> None:
        """Collect what must hold for a score not to be MASKED, and whether all else is of products and positions."""
        pending, seen = [top], set[int]()
        while pending:
            node = pending.pop()
            op, inputs, _ = self.graph.nodes[node]
            if node in seen:
                continue
            seen.add(node)
            value = _value(self.graph, inputs[2]) if op == "select" else None
            if value is not None and value <= MASKED:
                self.low.append(inputs[0])
                pending.append(inputs[1])
            elif op in ("add", "cast"):
                pending += inputs
            elif node in self.given:
                self.certain = False

    @cached_property
    def given(self) -> set[int]:
        """What depends on tensors in memory other than by products."""
        return _over(self.graph, lambda node: node.op == "input", through=lambda node: node.op != "dot")

    def table(self, tile_rows: int, columns: int) -> NDArray[np.bool_] | None:
        """Whether each block may count; None if no mask says anything."""
        walk = self.walk
        zero = [expr for node in self.zero if (expr := self.at(node)) is not None]
        found = [self.at(node) for node in self.low]
        low = [expr for expr in found if expr is not None]
        low = low if self.certain and len(low) == len(found) == len(set(self.low)) and self.shifts else []
        axis = self.along() if low else 1
        low = [] if axis is None else low
        if not zero and not low:
            return None
        tiles, blocks = -(-walk.rows // tile_rows), -(-walk.columns // columns)
        strong, weak = np.zeros((tiles, blocks), bool), np.zeros((tiles, blocks), bool)
        filled = np.zeros(walk.rows if axis == 1 else walk.columns, bool)
        for tile in range(tiles):
            rows = np.arange(tile * tile_rows, min(walk.rows, (tile + 1) * tile_rows))
            where = {"row": rows[:, None], "column": np.arange(walk.columns)[None, :]}
            kept = [np.broadcast_to(_evaluate(expr, where), (len(rows), walk.columns)) for expr in zero + low]
            strong[tile] = _blocks(reduce(operator.and_, kept[: len(zero)], np.ones_like(kept[0])), columns)
            masked = reduce(operator.and_, kept[len(zero) :], np.ones_like(kept[0]))
            weak[tile] = _blocks(masked, columns)
            if axis == 1:
                filled[rows] = masked.any(1)
            else:
                filled |= masked.any(0)
        return strong & weak if filled.all() else strong

    def along(self) -> int | None:
        """The axis along which rows of the softmax lie: what is subtracted from their scores is one value per row."""
        if self.by_row:
            return 1
        free = frozenset[str]().union(*(self.element(node).free for node in self.shifts))
        if "row" in free and "column" not in free:
            return 1
        return 0 if "column" in free and "row" not in free else None

    def at(self, node: int) -> Expr | None:
        """A mask at (row, column); None unless positions alone decide it."""
        if node in self.given:
            return None
        expr = self.element(node)
        known = expr.free <= {"row", "column"} and all(
            one.op in _VALUES or not one.args for one in expressions_of([expr])
        )
        return expr if known else None

    def element(self, node: int) -> Expr:
        build = self.frame.build
        where = [build.var(name, count) if count > 1 else build.number(0) for name, count in self.walk.sizes]
        whole = self.walk.at(build, *where)
        return self.frame.elements().at(node, broadcast_index(build, whole, self.frame.shape(node)))


def _over(
    graph: WireGraph, starts: Callable[[Node], bool], through: Callable[[Node], bool] = lambda node: True
) -> set[int]:
    """The nodes that start, and those that depend on them."""
    over = set[int]()
    for index, node in enumerate(graph.nodes):
        if starts(node) or (through(node) and not over.isdisjoint(node.inputs)):
            over.add(index)
    return over


def _value(graph: WireGraph, node: int) -> float | None:
    bits = splat_bits(graph.nodes[node])
    if bits is None or graph.types[node].dtype.kind != "f":
        return None
    return float(np.uint32(bits).view(np.float32))


def _blocks(kept: NDArray[np.bool_], columns: int) -> NDArray[np.bool_]:
    """Whether each block of columns has any."""
    return np.logical_or.reduceat(kept.any(0), np.arange(0, kept.shape[1], columns))


def _evaluate(root: Expr, where: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """An expression of positions at many of them."""
    values: dict[int, Any] = {}
    for expr in expressions_of([root]):
        if expr.op == "var":
            values[expr.uid] = where[expr.attr]
        elif expr.op == "lit":
            values[expr.uid] = _literal(expr)
        else:
            values[expr.uid] = _VALUES[expr.op](expr, [values[arg.uid] for arg in expr.args])
    return np.asarray(values[root.uid], bool)


def _literal(expr: Expr) -> Any:
    bits = np.uint32(expr.attr & 0xFFFFFFFF)
    return (
        bool(expr.attr)
        if expr.dtype == "bool"
        else int(bits.view(_DTYPES[expr.dtype]))
        if expr.dtype != "f32"
        else bits.view(np.float32)
    )


def _affine(expr: Expr, args: list[Any]) -> Any:
    const, *factors = expr.attr
    return const + sum(factor * arg for factor, arg in zip(factors, args, strict=True))


def _applied(function: Callable[..., Any], expr: Expr, args: list[Any]) -> Any:
    return function(*args)


_DTYPES = {"f32": np.float32, "i32": np.int32, "u32": np.uint32}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "mul": operator.mul, "ge": operator.ge, "gt": operator.gt, "le": operator.le,
    "lt": operator.lt, "eq": operator.eq, "ne": operator.ne, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip  # positions are small: int64 holds what 32 bits would
_VALUES: dict[str, Callable[[Expr, list[Any]], Any]] = {
    "affine": _affine,
    "index_div": lambda expr, args: args[0] // expr.attr,
    "index_mod": lambda expr, args: args[0] % expr.attr,
    "least": lambda expr, args: np.minimum(args[0], expr.attr),
    "cast": lambda expr, args: args[0],
    "opaque": lambda expr, args: args[0],
    "neg": lambda expr, args: -args[0],
    "not": lambda expr, args: np.logical_not(args[0]),
    "select": lambda expr, args: np.where(*args),
    **{name: partial(_applied, function) for name, function in _FUNCTIONS.items()},
}
