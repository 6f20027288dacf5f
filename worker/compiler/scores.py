"""Scores: tensors with a row per query and a column per key, computed where they are summed and never stored.

Attention makes scores by a product, turns them into weights by a softmax, and sums values by weight; its derivative
does the same with a second product.  Here a `dot` makes scores, whatever is elementwise over them is computed with
them, and a reduction or another dot sums them.  Each such sum is a group of its own, of kind "scores", which computes
again the scores that it needs: memory grows with the length, not with its square.

Nothing is guessed from names: what is summed is lowered with symbolic indices, and every product in it must be read at
its own (batch, row, column), or all turned.  Where any score is needed elsewhere, all of it stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from wire.ir.graph import WireGraph
from wire.ir.ops import ELEMENTWISE

from .constants import splat_bits
from .element_exprs import FUSABLE, Anchor, Elements, Index
from .expressions import Builder, Expr

MOVES = frozenset({"reshape", "transpose", "broadcast", "slice", "reverse"})  # views that read one element
SUMS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})
FLOATS = ("f32", "f16")
FEWEST = 16  # rows or columns; with fewer most invocations had nothing to do
NODES_MAX = 100  # of one kernel: bounds compile time and recursion
WIDEST = 128  # elements of a row of an operand: they lie in registers


@dataclass(frozen=True, slots=True)
class Softmax:
    """`grown` is exp(scores - peak), `peak` the maximum along a row of scores and `total` the sum of `grown`."""

    scores: int
    peak: int
    grown: int
    total: int


@dataclass(frozen=True, slots=True)
class Walk:
    """How a sum goes through scores: `batch` times `rows` sums, each over `columns` elements of `value`.

    `value` is the node that is summed, and `at` its index at (batch, row, column).  A dot is summed by `other`, with
    `width` results per row; a reduction has a width of 0.  `turned` says of each dot that makes scores whether its
    right side has the rows.
    """

    batch: int
    rows: int
    columns: int
    width: int
    value: int
    side: int
    at: Callable[[Builder, Expr, Expr, Expr], Index]
    turned: dict[int, bool]

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        return ("batch", self.batch), ("row", self.rows), ("column", self.columns)

    @property
    def other(self) -> int:
        """The side of the dot that is not scores."""
        return 1 - self.side


Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def axes_of(graph: WireGraph, dot: int, side: int) -> Axes:
    """The batch, free and contracting axes of one operand of a dot."""
    node = graph.nodes[dot]
    name = ("lhs", "rhs")[side]
    batch, gone = node.attrs[f"{name}_batch"], node.attrs[f"{name}_contract"]
    rank = len(graph.types[node.inputs[side]].shape)
    return batch, tuple(axis for axis in range(rank) if axis not in (*batch, *gone)), gone


def sizes_of(graph: WireGraph, dot: int, side: int) -> tuple[int, int, int]:
    """How many elements these axes have."""
    shape = graph.types[graph.nodes[dot].inputs[side]].shape
    batch, free, gone = (math.prod(shape[axis] for axis in axes) for axes in axes_of(graph, dot, side))
    return batch, free, gone


def place(build: Builder, shape: Sequence[int], axes: Sequence[Sequence[int]], where: Sequence[Expr]) -> Index:
    """The index of a tensor whose axes, group by group, are at these linear positions."""
    found: dict[int, Expr] = {}
    for own, position in zip(axes, where, strict=True):
        found.update(zip(own, build.unravel(position, [shape[axis] for axis in own]), strict=True))
    return tuple(found[axis] for axis in range(len(shape)))


def softmax_of(graph: WireGraph, root: int) -> Softmax | None:
    """The softmax whose sum, or whose product with values, `root` is."""
    node = graph.nodes[root]
    if node.op == "reduce_sum":
        return _softmax(graph, node.inputs[0], root)
    if node.op != "dot":
        return None
    for side, operand in enumerate(node.inputs):
        share = _below(graph, operand, {"cast"})
        if graph.nodes[share].op != "div":
            continue
        grown, total = graph.nodes[share].inputs
        total = _below(graph, total, MOVES | {"cast"})
        sums = graph.nodes[total]
        if sums.op == "reduce_sum" and sums.inputs == (grown,) and sums.attrs["axes"] == axes_of(graph, root, side)[2]:
            return _softmax(graph, grown, total)
    return None


def _softmax(graph: WireGraph, grown: int, total: int) -> Softmax | None:
    if graph.nodes[grown].op != "exp":
        return None
    shifted = graph.nodes[grown].inputs[0]
    if graph.nodes[shifted].op != "add":
        return None
    first, second = graph.nodes[shifted].inputs
    for scores, lowered in ((first, second), (second, first)):
        low = _below(graph, lowered, MOVES)
        if graph.nodes[low].op != "neg":
            continue
        peak = _below(graph, graph.nodes[low].inputs[0], MOVES)
        own = graph.nodes[peak]
        if own.op == "reduce_max" and own.inputs == (scores,) and own.attrs == graph.nodes[total].attrs:
            return Softmax(scores, peak, grown, total)
    return None


def _below(graph: WireGraph, index: int, through: Iterable[str]) -> int:
    while graph.nodes[index].op in through:
        index = graph.nodes[index].inputs[0]
    return index


def walk_of(graph: WireGraph, root: int, dots: Sequence[int], rows: Sequence[int] = ()) -> Walk | None:
    """How `root` sums scores that `dots` make, with the sums `rows` of the same rows; None if it does not."""
    walk = _summed_by_dot(graph, root, dots) if graph.nodes[root].op == "dot" else _reduced(graph, root, dots[0])
    if walk is None:
        return None
    build = Builder()
    batch, row, column = (build.var(name, count) if count > 1 else build.number(0) for name, count in walk.sizes)
    own_row = build.sum(build.scaled(batch, walk.rows), row)
    fits = True

    def made(dot: int) -> Anchor:
        def at(index: Index) -> Expr:
            nonlocal fits
            shape = graph.types[dot].shape
            count = len(axes_of(graph, dot, 0)[0]), len(axes_of(graph, dot, 0)[1])
            cuts = (0, count[0], sum(count), len(shape))
            own = [build.ravel(index[a:b], shape[a:b]) for a, b in pairwise(cuts)]
            turned = own[1] is column and own[2] is row
            fits &= own[0] is batch and (turned or (own[1] is row and own[2] is column))
            fits &= walk.turned.setdefault(dot, turned) == turned
            return build.make("var", (), "f32", f"dot{dot}")

        return at

    def summed(node: int) -> Anchor:
        def at(index: Index) -> Expr:
            nonlocal fits
            fits &= build.ravel(index, graph.types[node].shape) is own_row
            return build.make("var", (), "f32", f"sum{node}")

        return at

    anchors = {**{dot: made(dot) for dot in dots}, **{node: summed(node) for node in rows}}
    sources = {index: index for index in range(len(graph.nodes))}
    for index in _between(graph, walk.value, anchors):
        del sources[index]
    Elements(graph, build, sources, anchors).at(walk.value, walk.at(build, batch, row, column))
    return walk if fits and walk.turned.keys() == set(dots) else None


def _between(graph: WireGraph, top: int, anchors: Iterable[int]) -> set[int]:
    """The nodes up to `top` over an anchor."""
    over = set(anchors)
    for index in range(min(over), top + 1):
        node = graph.nodes[index]
        if node.op in FUSABLE and not over.isdisjoint(node.inputs):
            over.add(index)
    return over


def _summed_by_dot(graph: WireGraph, root: int, dots: Sequence[int]) -> Walk | None:
    inputs = graph.nodes[root].inputs
    over = _between(graph, max(inputs), dots)
    if (inputs[0] in over) == (inputs[1] in over):
        return None
    side = 0 if inputs[0] in over else 1
    axes, shape = axes_of(graph, root, side), graph.types[inputs[side]].shape
    batch, rows, columns = sizes_of(graph, root, side)
    width = sizes_of(graph, root, 1 - side)[1]

    def at(build: Builder, *where: Expr) -> Index:
        return place(build, shape, axes, where)

    return Walk(batch, rows, columns, width, inputs[side], side, at, {})


def _reduced(graph: WireGraph, root: int, dot: int) -> Walk:
    value = graph.nodes[root].inputs[0]
    shape, gone = graph.types[value].shape, graph.nodes[root].attrs["axes"]
    kept = tuple(axis for axis in range(len(shape)) if axis not in gone)
    batch = sizes_of(graph, dot, 0)[0]
    rows, columns = (math.prod(shape[axis] for axis in axes) for axes in (kept, gone))
    per_batch = rows // batch

    def at(build: Builder, batch: Expr, row: Expr, column: Expr) -> Index:
        return place(build, shape, (kept, gone), (build.sum(build.scaled(batch, per_batch), row), column))

    return Walk(batch, per_batch, columns, 0, value, 0, at, {})


# -- what need not be stored ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sum:
    """One kernel to be: the root that sums, the dots that make its scores, what is computed on the way, and the other
    sums of its softmax, which it computes too; `stored` are those of them that others read."""

    root: int
    dots: tuple[int, ...]
    inlined: frozenset[int]
    own: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()


def find_sums(
    graph: WireGraph, outputs: Iterable[int], columns_max: int, bindings_max: int, bindings: Mapping[int, int]
) -> list[Sum]:
    """The sums of all scores that need not be stored: of at most `columns_max` columns, each with at most
    `bindings_max` bindings, where `bindings` has those of each node."""
    if not columns_max:
        return []
    finder = _Finder(graph, set(outputs), columns_max)
    found: list[Sum] = []
    seen: set[int] = set()
    for index in range(len(graph.nodes)):
        if index not in seen and finder.makes_scores(index):
            scores = finder.scores_from(index)
            seen |= scores or {index}
            sums = finder.sums_of(scores) if scores else []
            if all(sum(bindings[tensor] for tensor in finder.bound_by(one)) <= bindings_max for one in sums):
                found += sums
    return found


class _Finder:
    def __init__(self, graph: WireGraph, outputs: set[int], columns_max: int) -> None:
        self.graph, self.outputs, self.columns_max = graph, outputs, columns_max
        self.users: list[list[int]] = [[] for _ in graph.nodes]
        for index, node in enumerate(graph.nodes):
            for operand in dict.fromkeys(node.inputs):
                self.users[operand].append(index)
        self.over = self.elementwise()

    def elementwise(self) -> set[int]:
        """The products that may make scores, and all that is elementwise over them."""
        over: set[int] = set()
        for index, (node, type_) in enumerate(zip(self.graph.nodes, self.graph.types, strict=True)):
            same = any(one in over and self.graph.types[one].size == type_.size for one in node.inputs)
            if self.makes_scores(index) or (same and (node.op in ELEMENTWISE or node.op in ("reshape", "transpose"))):
                over.add(index)
        return over

    def makes_scores(self, index: int) -> bool:
        graph = self.graph
        if graph.nodes[index].op != "dot" or graph.types[index].dtype.name not in FLOATS:
            return False
        (_, rows, length), (_, columns, _) = (sizes_of(graph, index, side) for side in (0, 1))
        return min(rows, columns) >= FEWEST and max(rows, columns) <= self.columns_max and 0 < length <= WIDEST

    def scores_from(self, seed: int) -> set[int] | None:
        """The seed and all that is elementwise with it; None if some of it must be stored."""
        graph, size = self.graph, self.graph.types[seed].size

        def alike(index: int) -> bool:
            return index in self.over and graph.types[index].size == size

        scores, pending = set[int](), [seed]
        while pending:
            index = pending.pop()
            if index in scores:
                continue
            if index in self.outputs:
                return None
            scores.add(index)
            if graph.nodes[index].op != "dot":
                pending += filter(alike, graph.nodes[index].inputs)
            for user in self.users[index]:
                op = graph.nodes[user].op
                if alike(user) and op != "dot":
                    pending.append(user)
                elif op not in SUMS and not (op == "dot" and graph.nodes[user].inputs.count(index) == 1):
                    return None
        return scores

    def sums_of(self, scores: set[int]) -> list[Sum]:
        """The kernels for these scores, or none if they have no softmax or one of their sums has another form."""
        roots = sorted({user for index in scores for user in self.users[index]} - scores)
        if any(self.graph.types[root].dtype.name not in FLOATS for root in roots):
            return []
        softmaxes = {root: found for root in roots if (found := softmax_of(self.graph, root)) is not None}
        if not softmaxes:
            return []
        last = {found.total: self.last_of(found, softmaxes, scores) for found in softmaxes.values()}
        own = {root: tuple(sorted({softmaxes[root].peak, total} - {root})) for total, root in last.items()}
        within = {index for joined in own.values() for index in joined}
        reductions = [root for root in roots if self.graph.nodes[root].op in SUMS]
        again = _computed_again(self.graph, reductions, max(roots, default=0))
        sums = [self.sum_of(root, scores, own.get(root, ()), again) for root in roots if root not in within]
        made = [one for one in sums if one is not None]
        if len(made) < len(sums) or all(self.graph.nodes[one.root].op != "dot" for one in made):
            return []
        return [replace(one, stored=tuple([i for i in one.own if self.is_read(i, one, made)])) for one in made]

    def last_of(self, softmax: Softmax, softmaxes: Mapping[int, Softmax], scores: set[int]) -> int:
        """The product that can compute the softmax's sums, else the sum of the softmax."""
        for root, other in softmaxes.items():
            values = [operand for operand in self.graph.nodes[root].inputs if operand not in scores]
            if other.total == softmax.total != root and not self.need(values, {softmax.peak, softmax.total}):
                return root
        return softmax.total

    def need(self, nodes: list[int], sums: set[int]) -> bool:
        """Whether any of these nodes depends on one of these sums."""
        pending, seen = nodes, set[int]()
        while pending:
            index = pending.pop()
            if index in sums:
                return True
            if index not in seen and index > min(sums):
                seen.add(index)
                pending += self.graph.nodes[index].inputs
        return False

    def sum_of(self, root: int, scores: set[int], own: tuple[int, ...], again: set[int]) -> Sum | None:
        graph = self.graph
        inlined, dots = set[int](), set[int]()
        pending = [operand for operand in graph.nodes[root].inputs if operand in scores]
        while pending:
            index = pending.pop()
            if index in scores and graph.nodes[index].op == "dot":
                dots.add(index)
            elif index not in inlined and (index in scores or index in own or index in again or self.is_view(index)):
                inlined.add(index)
                pending += graph.nodes[index].inputs
        walk = walk_of(graph, root, sorted(dots), own) if dots and len(inlined) <= NODES_MAX else None
        if walk is None or walk.width > WIDEST or walk.columns > self.columns_max:
            return None
        return Sum(root, tuple(sorted(dots)), frozenset(inlined), own)

    def is_view(self, index: int) -> bool:
        return self.graph.nodes[index].op in MOVES and splat_bits(self.graph.nodes[index]) is None

    def bound_by(self, one: Sum) -> set[int]:
        """The tensors that a kernel reads and stores."""
        inside = {one.root, *one.dots, *one.inlined}
        read = {operand for index in inside for operand in self.graph.nodes[index].inputs} - inside
        return {one.root, *one.stored, *(index for index in read if splat_bits(self.graph.nodes[index]) is None)}

    def is_read(self, index: int, own: Sum, sums: Iterable[Sum]) -> bool:
        """Whether a sum that is computed with another is read by anything else."""
        elsewhere = set[int]().union(*(one.inlined | {one.root} for one in sums if one is not own))
        pending = [index]
        while pending:
            current = pending.pop()
            if current in self.outputs:
                return True
            for user in self.users[current]:
                if user in elsewhere or user not in own.inlined | {own.root}:
                    return True
                of_rows = self.graph.types[user].size < self.graph.types[own.dots[0]].size
                if of_rows and user not in (*own.own, own.root):
                    pending.append(user)
        return False


def _computed_again(graph: WireGraph, sums: Iterable[int], last: int) -> set[int]:
    """What is cheaper computed again than stored: arithmetic on positions, and on these sums of scores."""
    given, again = set(sums), set[int]()
    for index, node in enumerate(graph.nodes[:last]):
        if splat_bits(node) is not None:
            given.add(index)
        elif node.op == "iota" or (node.op in FUSABLE and node.inputs and given.issuperset(node.inputs)):
            given.add(index)
            again.add(index)
    return again
