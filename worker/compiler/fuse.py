"""Nodes -> groups: which nodes share a kernel.

A group computes one tensor, its `root`, from tensors in memory.  Its other nodes are inlined (computed where needed,
by `elements`) or anchors (computed once per output position by the kernel's frame: the reductions of a row kernel,
the product of a matmul).  Nodes are visited from the outputs back; a node joins the group that alone uses it if that
can take it:

    map      any elementwise ops and views
    row      the root has the shape of the reductions' input, or of their result; all reduce the same axes, and every
             use of a reduction is at its own row (so softmax and layer_norm are one kernel)
    matmul   one dot or conv, read by the root at its own position (bias, activation, residual become the epilogue)
    scatter  updates and indices may be computed on the fly
    sort     keys are read again by every step: moves, casts and padding may be computed on the fly
    join     the parts of a long concat are copied as they lie in memory, in whatever shape

Whether an anchor is read at its own position is not guessed from patterns: it is lowered with symbolic indices and
looked at.  It does not know WGSL.  The figures below bound recomputation and kernel size; they never change results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from wire.ir.graph import Node, WireGraph
from wire.ir.ops import ELEMENTWISE, LEAVES, VIEWS

from .constants import splat_bits
from .element_exprs import FUSABLE, Elements, Index
from .expressions import Builder, Expr
from .scores import MOVES, Sum, find_sums
from .target import Target

REDUCTIONS = frozenset({"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "argmax"})
COMPUTED_BY = {"sort": MOVES | {"cast", "pad"}, "join": {"reshape"}}  # what families of few ops compute while loading

WEIGHTS_MAX = (150, 30, 5)  # of one group's inlined nodes: bounds compile time and recursion; smaller if text gets long
VIEW_AXES = 4  # for each multiple of this number of axes a view weighs one more: an axis may cost a division
COSTLY_WEIGHT = 8  # a polyfill is tens of instructions; drivers inline it and compile slower than linearly
ANCHORS_MAX = 12  # reductions of one kernel: each has up to two accumulators per invocation in workgroup memory
CLASSES_MAX = 6  # different index maps under which one node is computed in one kernel
EXPRESSIONS_MAX = 6_000  # distinct scalar expressions of one group's symbolic lowering
COPY_COST_MAX = 6  # a node cheaper than this may be computed by several kernels rather than stored
PICKED_ROWS_MAX = 64  # of a product whose operand is picked in its kernel: each block of rows picks it again
UNPACKED_MIN = (
    2  # an operand of a product is made in its kernel if it takes at least this multiple of its sources' bytes
)
SPREAD = 4  # a costly node broadcast to this many times its size is stored first


@dataclass(slots=True)
class Group:
    """One kernel to be.  `anchors` are in topological order; `reads` are the nodes it takes from memory.  Anchors of
    scores are the products that make them, and the other sums that the kernel stores."""

    root: int
    kind: str
    anchors: list[int] = field(default_factory=list)
    inlined: set[int] = field(default_factory=set)
    reads: set[int] = field(default_factory=set)
    weight: int = 0


def fuse(graph: WireGraph, target: Target, weight_max: int = WEIGHTS_MAX[0]) -> list[Group]:
    """The groups in an order in which they can run; every node outside them is a leaf or unused."""
    return _Fuser(graph, target, weight_max).run()


def row_shape(graph: WireGraph, anchor: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A reduction's input shape, its kept axes and its reduced axes."""
    node = graph.nodes[anchor]
    shape = graph.types[node.inputs[0]].shape
    gone = (node.attrs["axis"],) if node.op == "argmax" else node.attrs["axes"]
    return shape, tuple(axis for axis in range(len(shape)) if axis not in gone), tuple(sorted(gone))


def row_index(
    build: Builder, shape: tuple[int, ...], kept: Iterable[int], gone: Iterable[int], row: Expr, column: Expr
) -> Index:
    """The index into a reduction's input at (row, column)."""
    kept, gone = tuple(kept), tuple(gone)
    outer = build.unravel(row, [shape[axis] for axis in kept])
    inner = build.unravel(column, [shape[axis] for axis in gone])
    place = dict(zip((*kept, *gone), (*outer, *inner), strict=True))
    return tuple(place[axis] for axis in range(len(shape)))


class _Misfit(Exception):
    """An anchor is read at another position than its own."""


class _Fuser:
    def __init__(self, graph: WireGraph, target: Target, weight_max: int) -> None:
        self.graph = graph
        self.weight_max = weight_max
        self.target = target
        counted = range(len(graph.nodes)) if weight_max < WEIGHTS_MAX[0] else [*graph.inputs, *graph.params]
        self.bindings = dict.fromkeys(range(len(graph.nodes)), 1)  # at first, what is computed may never be stored
        self.bindings.update((index, target.bindings(graph.types[index])) for index in counted)
        self.taken = [target.takes(graph, index) for index in range(len(graph.nodes))]
        self.outputs = set(graph.outputs)
        for node, taken in zip(graph.nodes, self.taken, strict=True):
            self.outputs.update(self.constants_of_product(node) if taken else node.inputs)
        self.consumers: list[list[int]] = [[] for _ in graph.nodes]
        self.groups: list[Group] = []
        self.member: list[list[Group]] = [[] for _ in graph.nodes]  # groups that compute a node
        self.classes: list[set[object]] = [set() for _ in graph.nodes]
        self.settled: set[int] = set()  # in groups that are made beforehand
        for index, node in enumerate(graph.nodes):
            for operand in dict.fromkeys(node.inputs):
                self.consumers[operand].append(index)
        self.cost = self._copy_costs()
        self.unpacking = set[int]().union(*(self.unpacked(node) for node in graph.nodes if node.op == "dot"))

    def run(self) -> list[Group]:
        if self.weight_max == WEIGHTS_MAX[0]:  # smaller groups are asked for where text is too long
            limits = self.target.scores_max, self.target.bindings_max
            for found in find_sums(self.graph, self.outputs, *limits, self.bindings):
                self.settle(found)
        for index in range(len(self.graph.nodes) - 1, -1, -1):
            if not self.in_memory(index) and not self.inline_only(index):
                self.visit(index)
        return self.in_order()

    def settle(self, found: Sum) -> None:
        """The group of one sum of scores."""
        inside = {found.root, *found.dots, *found.inlined}
        reads = set[int]().union(*(self.operands(index) for index in inside)) - inside
        anchors = sorted({*found.dots, *found.stored})
        group = Group(found.root, "scores", anchors, set(found.inlined), reads, sum(map(self.weight, found.inlined)))
        self.groups.append(group)
        self.settled |= {found.root, *found.dots, *found.own}
        for index in inside:
            self.member[index].append(group)
            self.classes[index] |= {index}

    def in_order(self) -> list[Group]:
        """The groups by their roots, but each after those that make what it reads."""
        made = {index: group for group in self.groups for index in (group.root, *group.anchors)}
        ordered: dict[int, Group] = {}
        pending = [(group, False) for group in sorted(self.groups, key=lambda group: -group.root)]
        while pending:
            group, ready = pending.pop()
            if ready:
                ordered[group.root] = group
            elif group.root not in ordered:
                pending.append((group, True))
                pending += [(made[index], False) for index in sorted(group.reads, reverse=True) if index in made]
        return list(ordered.values())

    def constants_of_product(self, node: Node) -> list[int]:
        """Operands of a product that are one number, where it cannot take that from an expression."""
        if self.target.kind_of(node) != "matmul" or "const" in self.target.prologue:
            return []
        return [operand for operand in node.inputs if splat_bits(self.graph.nodes[operand]) is not None]

    def in_memory(self, index: int) -> bool:
        node = self.graph.nodes[index]
        leaf = node.op in LEAVES and splat_bits(node) is None
        return leaf or not self.taken[index] or self.graph.types[index].size == 0

    def inline_only(self, index: int) -> bool:
        return splat_bits(self.graph.nodes[index]) is not None and index not in self.outputs

    def visit(self, index: int) -> None:
        if index in self.settled:
            return
        users = [group for consumer in self.consumers[index] for group in self.member[consumer]]
        users = [group for group in {id(group): group for group in users}.values() if index not in group.inlined]
        if index not in self.outputs:
            if not users:
                return
            if len(users) == 1 and self.join(index, users[0]):
                return
            if len(users) > 1 and self.copies_well(index) and all(self.may_inline(index, group) for group in users):
                for group in users:
                    self.inline(index, group)
                return
        self.start(index)

    # -- joining ------------------------------------------------------------------------------------------

    def join(self, index: int, group: Group) -> bool:
        op = self.graph.nodes[index].op
        if op in FUSABLE:
            if self.may_inline(index, group):
                self.inline(index, group)
                return True
            return False
        if op in REDUCTIONS:
            return group.kind in ("map", "row") and self.try_anchor(index, group, "row")
        return (
            self.target.kind_of(self.graph.nodes[index]) == "matmul"
            and group.kind == "map"
            and self.try_anchor(index, group, "matmul")
        )

    def may_inline(self, index: int, group: Group) -> bool:
        node, own = self.graph.nodes[index], self.graph.types[index]
        if group.weight + self.weight(index) > self.weight_max or not self.binds(index, group):
            return False
        if (node.op, own.dtype.name) in self.target.looping and (group.kind != "map"):
            return False
        if group.kind in COMPUTED_BY and node.op not in COMPUTED_BY[group.kind]:
            return False
        if self.target.kind_of(node) == "join":
            return False
        users = [consumer for consumer in self.consumers[index] if group in self.member[consumer]]
        if len(self.classes_of(index, users)) > CLASSES_MAX and node.op not in LEAVES:
            return False
        for consumer in users:
            if self.target.kind_of(self.graph.nodes[consumer]) == "matmul" and not self.as_prologue(index):
                return False
            spread = self.graph.types[consumer].size >= SPREAD * own.size
            if spread and node.op in self.target.costly and not self.from_row(index, consumer):
                return False
        return not (group.kind == "matmul" and self.feeds_dot(index, group) and not self.as_prologue(index))

    def binds(self, index: int, group: Group) -> bool:
        """Whether a group that computes this node, too, has bindings for all that it reads and stores."""
        bound = {group.root, *self.stored_by(group), *self.reads_after(index, group)}
        return sum(self.bindings[tensor] for tensor in bound) <= self.target.bindings_max

    def stored_by(self, group: Group) -> list[int]:
        """The tensors that a group of scores stores besides its root."""
        scores = group.anchors if group.kind == "scores" else []
        return [anchor for anchor in scores if self.graph.nodes[anchor].op != "dot"]

    def inline(self, index: int, group: Group) -> None:
        group.reads = self.reads_after(index, group)
        group.inlined.add(index)
        group.weight += self.weight(index)
        users = [consumer for consumer in self.consumers[index] if group in self.member[consumer]]
        self.classes[index] |= self.classes_of(index, users)
        self.member[index].append(group)

    def weight(self, index: int) -> int:
        op = self.graph.nodes[index].op
        if op in VIEWS:
            return 1 + len(self.graph.types[index].shape) // VIEW_AXES
        return COSTLY_WEIGHT if op in self.target.costly else 1

    def reads_after(self, index: int, group: Group) -> set[int]:
        return (group.reads - {index}) | self.operands(index)

    def operands(self, index: int) -> set[int]:
        return {operand for operand in self.graph.nodes[index].inputs if not self.inline_only(operand)}

    def classes_of(self, index: int, users: list[int]) -> set[object]:
        """Labels of the different index maps `index` is needed under."""
        labels: set[object] = set()
        for consumer in users:
            own = self.classes[consumer]
            same = self.graph.nodes[consumer].op in ELEMENTWISE and (
                self.graph.types[consumer].shape == self.graph.types[index].shape
            )
            labels |= own if same else {(label, consumer) for label in own}
        return labels

    def as_prologue(self, index: int) -> bool:
        return self.graph.nodes[index].op in self.target.prologue or index in self.unpacking

    def unpacked(self, dot: Node) -> set[int]:
        """The nodes that make a dot's right operand, if its kernel should make it: from a tensor of another dtype that
        takes less memory, or from rows that lie in several places, such as pages of a cache."""
        left, right = dot.inputs
        if left == right:
            return set()
        inside, sources, pending = set[int](), set[int](), [right]
        while pending:
            index = pending.pop()
            node = self.graph.nodes[index]
            alone = len(self.consumers[index]) == 1 and index not in self.outputs
            if self.inline_only(index) or index in inside:
                continue
            inner = alone and not self.in_memory(index)
            if inner and node.op in self.target.picking and self.rows(dot) <= PICKED_ROWS_MAX:
                inside.add(index)
            elif inner and node.op in self.target.unpacking:
                inside.add(index)
                pending.extend(node.inputs)
            else:
                sources.add(index)
        if any(self.graph.nodes[index].op in self.target.picking for index in inside):
            return inside  # what it is picked from is read once, where it would be read, written and read again
        if not any(self.graph.nodes[index].op == "cast" for index in inside):
            return set()
        read = sum(self.graph.types[source].size_bytes for source in sources)
        return inside if UNPACKED_MIN * read <= self.graph.types[right].size_bytes else set()

    def rows(self, dot: Node) -> int:
        """How many rows each product of a dot has."""
        left = self.graph.types[dot.inputs[0]]
        others = (*dot.attrs["lhs_batch"], *dot.attrs["lhs_contract"])
        return math.prod(size for axis, size in enumerate(left.shape) if axis not in others)

    def feeds_dot(self, index: int, group: Group) -> bool:
        """Whether `index` is used, through inlined nodes, by the group's dot."""
        pending = [index]
        while pending:
            for consumer in self.consumers[pending.pop()]:
                if consumer in group.anchors:
                    return True
                if consumer in group.inlined:
                    pending.append(consumer)
        return False

    def from_row(self, index: int, consumer: int) -> bool:
        """Whether a costly node is per row of a reduction over the consumer's shape, so computed once per row."""
        shape = self.graph.types[consumer].shape
        pending, seen = [index], 0
        while pending and seen < 8:
            seen += 1
            node = self.graph.nodes[pending.pop()]
            if node.op in REDUCTIONS:
                return self.graph.types[node.inputs[0]].size == math.prod(shape)
            pending.extend(operand for operand in node.inputs if not self.inline_only(operand))
        return False

    def copies_well(self, index: int) -> bool:
        return self.cost[index] <= COPY_COST_MAX

    def _copy_costs(self) -> list[float]:
        """What computing a node once more costs, all from memory; infinite past a reduction or a dot.  What several
        nodes use and what costs too much to be computed by each of them is taken to be stored."""
        costs, below = list[float](), list[float]()  # of a node, and of what it adds to the cost of those that use it
        for index, (node, type_) in enumerate(zip(self.graph.nodes, self.graph.types, strict=True)):
            own = sum(below[operand] for operand in node.inputs)
            if node.op in LEAVES:
                own = 0
            elif node.op in ELEMENTWISE and node.op not in self.target.costly:
                own += 2 + (1 if type_.size > 1 else 0)
            elif node.op not in MOVES and node.op != "iota":
                own = math.inf
            costs.append(own)
            stored = own > COPY_COST_MAX and len(self.consumers[index]) > 1
            below.append(0 if stored or index in self.outputs else own)
        return costs

    # -- new groups and anchors ---------------------------------------------------------------------------

    def start(self, index: int) -> None:
        op = self.graph.nodes[index].op
        kind = "row" if op in REDUCTIONS else self.target.kind_of(self.graph.nodes[index]) or "map"
        anchors = [index] if kind in ("row", "matmul") else []
        group = Group(index, kind, anchors, set(), self.operands(index), self.weight(index))
        self.groups.append(group)
        self.member[index].append(group)
        self.classes[index] = {index}

    def try_anchor(self, index: int, group: Group, kind: str) -> bool:
        if not self.binds(index, group) or len(group.anchors) >= ANCHORS_MAX:
            return False
        if any(self.is_looping(node) for node in (*group.inlined, group.root)):
            return False
        anchors = sorted([index, *group.anchors])
        candidate = Group(group.root, kind, anchors, group.inlined, self.reads_after(index, group))
        if not fits(self.graph, candidate):
            return False
        group.kind, group.anchors, group.reads = candidate.kind, candidate.anchors, candidate.reads
        self.member[index].append(group)
        self.classes[index] = {index}
        return True

    def is_looping(self, index: int) -> bool:
        return (self.graph.nodes[index].op, self.graph.types[index].dtype.name) in self.target.looping


def fits(graph: WireGraph, group: Group) -> bool:
    """Whether every anchor is read only at its own position, and the kernel stays small."""
    build = Builder()
    try:
        return _fits_row(graph, group, build) if group.kind == "row" else _fits_matmul(graph, group, build)
    except _Misfit:
        return False


def _fits_row(graph: WireGraph, group: Group, build: Builder) -> bool:
    forms = {row_shape(graph, anchor) for anchor in group.anchors}
    if len(forms) != 1:
        return False
    shape, kept, gone = forms.pop()
    rows = math.prod(shape[axis] for axis in kept)
    columns = math.prod(shape[axis] for axis in gone)
    root_type = graph.types[group.root]
    if group.root not in group.anchors and root_type.shape != shape and root_type.size != rows:
        return False
    row, column = build.var("row", rows), build.var("column", columns)

    def at_own_row(anchor: int, index: Index) -> Expr:
        if build.ravel(index, graph.types[anchor].shape) is not row and rows != 1:
            raise _Misfit
        return build.make("var", (), "f32", f"anchor{anchor}")

    elements = _symbolic(graph, group, build, at_own_row)
    where = row_index(build, shape, kept, gone, row, column)
    for anchor in group.anchors:
        elements.at(graph.nodes[anchor].inputs[0], where)
    if group.root not in group.anchors:
        full = root_type.shape == shape and root_type.size != rows
        elements.at(group.root, where if full else build.unravel(row, root_type.shape))
    return len(build) <= EXPRESSIONS_MAX


def _fits_matmul(graph: WireGraph, group: Group, build: Builder) -> bool:
    (dot,) = group.anchors
    root_type, dot_type = graph.types[group.root], graph.types[dot]
    if root_type.size != dot_type.size:
        return False
    place = build.var("place", dot_type.size)

    def at_own_place(anchor: int, index: Index) -> Expr:
        if build.ravel(index, dot_type.shape) is not place and dot_type.size != 1:
            raise _Misfit
        return build.make("var", (), "f32", f"anchor{anchor}")

    elements = _symbolic(graph, group, build, at_own_place)
    elements.at(group.root, build.unravel(place, root_type.shape))
    return len(build) <= EXPRESSIONS_MAX


def _symbolic(graph: WireGraph, group: Group, build: Builder, check: Callable[[int, Index], Expr]) -> Elements:
    anchors = {anchor: partial(check, anchor) for anchor in group.anchors}
    return Elements(graph, build, {node: node for node in group.reads}, anchors)
