"""Reductions, and what is fused around them: softmax, layer norm, sums of expressions.

The order of summation is part of the definition of the engine's arithmetic ("native-2"), and follows from the shape
and the axes alone.  The elements that a reduction takes together are numbered in row-major order of the reduced axes:

    the last axis is reduced    lane j mod 32 adds element j, each in the order of its elements, and then lane i
                                takes lane i + 16, i + 8, ... i + 1
    else                        runs of 256 elements, each added in order from the identity; then the runs, in order

In the first form vectors run along the reduced elements, in the second along the kept ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from wire.ir.dtypes import dtype_named

from ...compiler.constants import identity_of
from ...compiler.element_exprs import NARROW, Anchor, register
from ...compiler.expressions import Expr, terms_of
from ...compiler.fuse import REDUCTIONS, row_index, row_shape
from ..llvm import I32, I64, STORED, index, ir, loop, loop_with, prefetch, undefined
from ..printer import Buffer, Printer, stride_of
from ..scalars import applied, literal
from ..target import COSTLY
from ..vectors import REGISTERS, Vectors
from .edges import edge_of
from .frame import Frame, Kernel, Value, largest, least, narrowed
from .map import along, in_order, parts_of, sliced, span, steps_of, tile_of

LANES = 32  # of a sum along the last axis
RUN = 256  # elements of a sum along other axes
COMBINE = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min"}
TASK_ELEMENTS = 1 << 15
WORTH_KEEPING = COSTLY | {"select"}  # a mask lengthens the chain of an exp, which is as long as a processor looks ahead
KEPT_MAX = 1 << 13  # columns of a row that is kept in scratch memory, which the first caches hold
AHEAD_MIN = 256  # columns of a row that is fetched ahead
ABREAST = 4  # vectors that are reduced side by side, since one chain of additions waits for itself

Registers = dict[int, list[Value]]  # of a reduction: its vectors
Step = Callable[[Registers, Value], Registers]
Form = Callable[[Expr], Expr]  # what an expression is in some columns


def lower_row(frame: Frame) -> Kernel:
    row = _Row(frame)
    return row.along_columns() if row.inner else row.along_rows()


def reaches(frame: Frame) -> dict[int, int]:
    """How far a group reads the matrices of tensors (..., rows, columns), by their numbers: of each row the columns up
    to its own number plus this, where the rest is behind the edge.  Tensors that are read otherwise are left out."""
    row = _Row(frame)
    return {} if row.edge is None else {node: far for node in frame.reads if (far := row.reach(node)) is not None}


def _same(expr: Expr) -> Expr:
    return expr


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Reductions that one pass over the columns computes; `kept` are expressions that it leaves in memory."""

    anchors: tuple[int, ...]
    kept: tuple[Expr, ...] = ()


@dataclass(eq=False)
class _Row:
    frame: Frame
    scratch_bytes: int = field(default=0, init=False)
    scratch: Value = field(default=None, init=False)

    def __post_init__(self) -> None:
        frame, build = self.frame, self.frame.build
        nodes = frame.graph.nodes
        self.anchors = [node for node, (op, _, _) in enumerate(nodes) if op in REDUCTIONS]
        self.shape, self.kept, self.gone = row_shape(frame.graph, self.anchors[0])
        self.rows = math.prod(self.shape[axis] for axis in self.kept)
        self.columns = math.prod(self.shape[axis] for axis in self.gone)
        self.inner = len(self.shape) - 1 in self.gone  # be it of one element: a rank's part of it may be
        after = [axis for axis in self.kept if axis > max(self.gone)]
        self.width = 1 if self.inner else math.prod(self.shape[axis] for axis in after)
        self.full = frame.shape(frame.root) == self.shape and frame.root not in self.anchors and self.columns > 1
        self.lanes = min(frame.lanes(), LANES)
        self.column = build.var("column", self.columns)
        outer = build.var("outer", self.rows // self.width)
        self.row = build.sum(build.scaled(outer, self.width), build.var("x", self.width))
        readers: dict[int, Anchor] = {anchor: self._reader(anchor) for anchor in self.anchors}
        elements = frame.elements(readers)
        where = row_index(build, self.shape, self.kept, self.gone, self.row, self.column)
        self.inputs = {anchor: elements.at(nodes[anchor].inputs[0], where) for anchor in self.anchors}
        at = where if self.full else build.unravel(self.row, frame.shape(frame.root))
        self.place = build.ravel(at, frame.shape(frame.root))
        self.value = readers[frame.root](at) if frame.root in self.anchors else elements.at(frame.root, at)
        self.edge = edge_of(build, self.exprs, self.column) if self.inner and self.columns >= LANES else None

    @property
    def exprs(self) -> list[Expr]:
        """What is computed of a row's columns."""
        return [*self.inputs.values(), self.value]

    def reach(self, node: int) -> int | None:
        """How far a tensor's rows are read, as `reaches` says it."""
        build, shape = self.frame.build, self.frame.shape(node)
        assert self.edge is not None
        loads = [part for expr in self.exprs for part in parts_of(expr) if part.op == "load" and part.attr == node]
        if len(shape) < 2 or node not in self.edge.unread(self.exprs):
            return None
        found = set[int | None]()
        for load in loads:
            row = build.mod(build.div(load.args[0], shape[-1]), shape[-2])
            further = build.minus(self.edge.column, row)
            known = build.mod(load.args[0], shape[-1]) is self.column and further.op == "lit"
            found.add(terms_of(further)[0] - 1 if known else None)
        return found.pop() if len(found) == 1 else None

    def _reader(self, anchor: int) -> Anchor:
        """What a reduction gave; it varies with the rows."""
        dtype = register(self.frame.dtype(anchor))
        held = self.frame.build.make("held", [self.row], dtype, f"r{anchor}")
        return lambda index: held

    def sweeps(self) -> list[_Sweep]:
        """The passes that reduce, in order: a pass ends before a reduction that needs one of its results."""
        passes: list[list[int]] = []
        for anchor in self.anchors:
            needs = _held(self.inputs[anchor])
            if not passes or needs & {f"r{other}" for other in passes[-1]}:
                passes.append([])
            passes[-1].append(anchor)
        kept = self._worth_keeping(passes)
        return [_Sweep(tuple(anchors), tuple(exprs)) for anchors, exprs in zip(passes, kept, strict=True)]

    def _worth_keeping(self, passes: list[list[int]]) -> list[list[Expr]]:
        """Costly expressions and masks of each pass's columns that a later pass, or the result, needs again."""
        kept: list[list[Expr]] = [[] for _ in passes]
        if not self.inner or self.columns > KEPT_MAX:
            return kept
        uses = [{part.uid: part for anchor in anchors for part in parts_of(self.inputs[anchor])} for anchors in passes]
        uses.append({part.uid: part for part in parts_of(self.value)} if self.full else {})
        for place, parts in enumerate(uses[:-1]):
            later = set[int]().union(*uses[place + 1 :])
            known = {expr.uid for exprs in kept for expr in exprs}
            kept[place] = [
                part for uid, part in parts.items()
                if part.op in WORTH_KEEPING and "column" in part.free and uid in later and uid not in known
            ]  # fmt: skip
        return kept

    def combined(self, v: Vectors, anchor: int, a: Value, b: Value) -> Value:
        return applied(v, COMBINE[self.frame.graph.nodes[anchor].op], register(self.frame.dtype(anchor)), a, b)

    def identity(self, anchor: int) -> Value:
        """What changes nothing, a scalar."""
        own = self.frame.graph.types[anchor].dtype
        name = register(own.name)
        value = np.asarray(identity_of(self.frame.graph.nodes[anchor].op, own)).astype(dtype_named(name).numpy)
        return literal(int.from_bytes(value.tobytes(), "little"), name)

    def finish(self, v: Vectors, anchor: int, value: Value) -> Value:
        """A reduction's value as its dtype has it."""
        dtype = self.frame.dtype(anchor)
        return applied(v, NARROW[dtype], "f32", value) if dtype in NARROW else value

    # -- the last axis is reduced -------------------------------------------------------------------------

    def along_columns(self) -> Kernel:
        frame, build = self.frame, self.frame.build
        rows, _ = tile_of(self.rows, self.columns, 1, TASK_ELEMENTS)
        builder, printer, task, self.scratch = frame.function()
        first, stop = span(builder, task, rows, self.rows)
        printer.bind("x", ir.Constant(I32, 0))
        printer.hoist([*self.inputs.values(), self.value, self.place], ("outer", "column"))
        sweeps, ahead = self.sweeps(), self._read_ahead()
        with loop(builder, first, stop, index(1), "row") as row, printer.scope():
            printer.bind("outer", narrowed(builder, row))
            for place, sweep in enumerate(sweeps):
                kept = [self._kept_buffer(printer, expr) for expr in sweep.kept]
                self._reduce_columns(
                    printer, sweep, kept, partial(self._fetch, printer, ahead if place == 1 else (), row)
                )
            if self.full:
                for start, end, form in self._pieces(printer, self.columns):
                    value = form(self.value)
                    printer.hoist([value, self.place], ("column",))
                    for columns, width in along(builder, start, end, steps_of(self.lanes), self.columns):
                        with columns as position, printer.scope():
                            printer.bind_lanes("column", narrowed(builder, position), width)
                            printer.store(frame.root, self.place, printer.vector(value), frame.non_temporal)
                            if len(sweeps) == 1 and width == self.lanes:
                                self._fetch(printer, ahead, row, position)
            else:
                printer.store(frame.root, self.place, printer.scalar(self.value))
        frame.end(builder)
        tasks = -(-self.rows // rows)
        outer = build.var("outer", self.rows)
        even = self.rows % rows == 0 and in_order(frame, frame.root, self.place, outer)
        slices = tasks if even else 1
        return Kernel(builder.module, tasks, self.scratch_bytes, slices=slices, sliced=sliced(frame, self.exprs, outer))

    def _read_ahead(self) -> list[Expr]:
        """The loads of a long row that are fetched while the row before it is computed, by its second pass: the first
        one waits for memory, and the others would leave it alone.  No address is read from memory: there is no row
        behind the last one."""
        if self.columns < AHEAD_MIN:
            return []
        loads = {part: None for root in self.inputs.values() for part in parts_of(root) if part.op == "load"}
        return [
            load for load in loads
            if {"outer", "column"} <= load.free and stride_of(load.args[0], "column", self.lanes) == 1
            and not any(part.op == "load" for part in parts_of(load.args[0]))
        ]  # fmt: skip

    def _fetch(self, printer: Printer, loads: Sequence[Expr], row: Value, position: Value) -> None:
        """Fetch a vector of the next row."""
        builder = printer.builder
        for load in loads:
            with printer.elsewhere():
                printer.bind("outer", narrowed(builder, builder.add(row, index(1))))
                printer.bind("column", narrowed(builder, position))
                prefetch(builder, printer.address(load))

    def _pieces(self, printer: Printer, columns: int) -> list[tuple[Value, Value, Form]]:
        """The columns before the edge, up to a multiple of LANES, and those behind it."""
        if self.edge is None:
            return [(index(0), index(columns), _same)]
        builder = printer.builder
        edge = builder.sext(printer.scalar(self.edge.column), I64)
        up = builder.and_(builder.add(edge, index(LANES - 1)), index(-LANES))
        stop = least(builder, largest(builder, up, index(0)), index(columns))
        return [(index(0), stop, _same), (stop, index(columns), self.edge.behind)]

    def _kept_buffer(self, printer: Printer, expr: Expr) -> int:
        """A row of scratch memory for an expression."""
        number, dtype = -1 - len(printer.buffers), "u8" if expr.dtype == "bool" else expr.dtype
        pointer = printer.builder.gep(self.scratch, [index(self.scratch_bytes)])
        typed = printer.builder.bitcast(pointer, STORED[dtype].as_pointer())
        printer.buffers = {**printer.buffers, number: Buffer(typed, expr.dtype)}
        self.scratch_bytes += -(-self.columns * 8 // 64) * 64
        return number

    def _reduce_columns(
        self, printer: Printer, sweep: _Sweep, kept: Sequence[int], fetch: Callable[[Value], None]
    ) -> None:
        builder, anchors = printer.builder, sweep.anchors
        count = LANES // self.lanes
        v = Vectors(builder, self.lanes)
        held = [v.splat(self.identity(anchor)) for anchor in anchors for _ in range(count)]
        whole = self.columns - self.columns % LANES
        for start, end, form in self._pieces(printer, whole):
            inputs = [form(self.inputs[anchor]) for anchor in anchors]
            printer.hoist(inputs, ("column",))
            with loop_with(builder, start, end, index(LANES), held, "columns") as (position, held, following):
                values = []
                for vector in range(count):
                    with printer.scope():
                        at = builder.add(position, index(vector * self.lanes))
                        printer.bind_lanes("column", narrowed(builder, at), self.lanes)
                        values.append([printer.vector(expr) for expr in inputs])
                        self._keep(printer, sweep, kept, form)
                    fetch(at)
                for place, anchor in enumerate(anchors):
                    for vector in range(count):
                        mine = held[place * count + vector]
                        following.append(self.combined(v, anchor, mine, values[vector][place]))
        rest = self._rest(printer, sweep, kept, whole) if whole < self.columns else {}
        for place, anchor in enumerate(anchors):
            sums = held[place * count : (place + 1) * count]
            if rest:
                sums = [self.combined(v, anchor, mine, other) for mine, other in zip(sums, rest[anchor], strict=True)]
            total = self._folded(builder, anchor, sums)
            printer.bind(f"r{anchor}", self.finish(Vectors(builder, 1), anchor, total))
        for expr, buffer in zip(sweep.kept, kept, strict=True):
            printer.kept[expr.uid] = self.frame.build.load(buffer, self.column, expr.dtype)

    def _keep(self, printer: Printer, sweep: _Sweep, kept: Sequence[int], form: Form = _same) -> None:
        """Leave expressions in memory, but for what is another one behind the edge, and so not looked for there."""
        for expr, buffer in zip(sweep.kept, kept, strict=True):
            if form(expr) is expr:
                printer.store(buffer, self.column, printer.vector(expr))

    def _rest(self, printer: Printer, sweep: _Sweep, kept: Sequence[int], whole: int) -> dict[int, list[Value]]:
        """The columns behind the last whole 32, in lanes of which the last ones have the identity."""
        builder = printer.builder
        memories = {}
        for anchor in sweep.anchors:
            memories[anchor] = self._memory(builder, REGISTERS[register(self.frame.dtype(anchor))])
            for lane in range(self.columns - whole, LANES):
                builder.store(self.identity(anchor), builder.gep(memories[anchor], [index(lane)]))
        with loop(builder, index(whole), index(self.columns), index(1), "rest") as position, printer.scope():
            printer.bind_lanes("column", narrowed(builder, position), 1)
            for anchor, memory in memories.items():
                value = printer.scalar(self.inputs[anchor])
                builder.store(value, builder.gep(memory, [builder.sub(position, index(whole))]))
            self._keep(printer, sweep, kept)
        lanes = range(0, LANES, self.lanes)
        return {anchor: [self._loaded(builder, memory, lane) for lane in lanes] for anchor, memory in memories.items()}

    def _loaded(self, builder: ir.IRBuilder, memory: Value, lane: int) -> Value:
        """A vector of what lies from `lane` on, element by element: i1 has no vectors in memory."""
        if self.lanes == 1:
            return builder.load(builder.gep(memory, [index(lane)]))
        vector = undefined(ir.VectorType(memory.type.pointee, self.lanes))
        if memory.type.pointee != REGISTERS["bool"]:
            return Vectors(builder, self.lanes).load(builder.gep(memory, [index(lane)]))
        for at in range(self.lanes):
            element = builder.load(builder.gep(memory, [index(lane + at)]))
            vector = builder.insert_element(vector, element, ir.Constant(I32, at))
        return vector

    def _memory(self, builder: ir.IRBuilder, kind: ir.Type) -> Value:
        """Room for the lanes of one sum, on the stack."""
        with builder.goto_entry_block():
            memory = builder.alloca(kind, size=LANES)
        memory.align = 64
        return memory

    def _folded(self, builder: ir.IRBuilder, anchor: int, sums: list[Value]) -> Value:
        """The tree over the lanes."""
        while len(sums) > 1:
            half = len(sums) // 2
            v = Vectors(builder, self.lanes)
            sums = [self.combined(v, anchor, sums[at], sums[at + half]) for at in range(half)]
        (value,), width = sums, self.lanes
        while width > 1:
            width //= 2
            nothing = undefined(value.type)
            low, high = (
                builder.shuffle_vector(
                    value, nothing, ir.Constant(ir.VectorType(I32, width), list(range(at, at + width)))
                )
                for at in (0, width)
            )
            if width == 1:
                low, high = (builder.extract_element(side, ir.Constant(I32, 0)) for side in (low, high))
            value = self.combined(Vectors(builder, width), anchor, low, high)
        return value

    # -- other axes are reduced ---------------------------------------------------------------------------

    def along_rows(self) -> Kernel:
        frame, height = self.frame, self.rows // self.width
        block = max(self.lanes, TASK_ELEMENTS // self.columns)
        rows, columns = tile_of(height, self.width, self.lanes * ABREAST, block)
        across = -(-self.width // columns)
        builder, printer, task, _ = frame.function()
        first_row, stop_row = span(builder, builder.sdiv(task, index(across)), rows, height)
        first, stop = span(builder, builder.srem(task, index(across)), columns, self.width)
        printer.hoist([*self.inputs.values(), self.value, self.place], ("outer", "column", "x"))
        with loop(builder, first_row, stop_row, index(1), "outer") as outer, printer.scope():
            printer.bind("outer", narrowed(builder, outer))
            steps = (self.lanes * ABREAST, *steps_of(self.lanes))
            for several, step in along(builder, first, stop, steps, self.width):
                lanes = min(step, self.lanes)
                with several as position:
                    self._reduce_rows(printer, position, lanes, step // lanes)
        builder.ret_void()
        return Kernel(builder.module, -(-height // rows) * across)

    def _reduce_rows(self, printer: Printer, position: Value, lanes: int, abreast: int) -> None:
        builder = printer.builder
        firsts = [narrowed(builder, builder.add(position, index(at * lanes))) for at in range(abreast)]
        results: list[dict[str, Value]] = [{} for _ in firsts]
        v = Vectors(builder, lanes)
        for sweep in self.sweeps():
            starts = [v.splat(self.identity(anchor)) for anchor in sweep.anchors for _ in firsts]
            with loop_with(builder, index(0), index(self.columns), index(RUN), starts, "run") as (
                run,
                totals,
                next_totals,
            ):
                stop = least(builder, builder.add(run, index(RUN)), index(self.columns))
                with loop_with(builder, run, stop, index(1), starts, "column") as (column, held, following):
                    for anchor in sweep.anchors:
                        for at in range(abreast):
                            value = self._at(printer, self.inputs[anchor], column, firsts[at], lanes, results[at])
                            following.append(self.combined(v, anchor, held[len(following)], value))
                for place, (mine, other) in enumerate(zip(totals, held, strict=True)):
                    next_totals.append(self.combined(v, sweep.anchors[place // abreast], mine, other))
            for place, total in enumerate(totals):
                anchor = sweep.anchors[place // abreast]
                results[place % abreast][f"r{anchor}"] = self.finish(v, anchor, total)
        if not self.full:
            for first, known in zip(firsts, results, strict=True):
                self._stored(printer, None, first, lanes, known)
            return
        with loop(builder, index(0), index(self.columns), index(1), "result") as column:
            for first, known in zip(firsts, results, strict=True):
                self._stored(printer, column, first, lanes, known)

    def _at(
        self, printer: Printer, expr: Expr, column: Value, first: Value, lanes: int, known: dict[str, Value]
    ) -> Value:
        with printer.scope():
            self._bind(printer, column, first, lanes, known)
            return printer.vector(expr)

    def _stored(
        self, printer: Printer, column: Value | None, first: Value, lanes: int, known: dict[str, Value]
    ) -> None:
        with printer.scope():
            self._bind(printer, column, first, lanes, known)
            printer.store(self.frame.root, self.place, printer.vector(self.value))

    def _bind(self, printer: Printer, column: Value | None, first: Value, lanes: int, known: dict[str, Value]) -> None:
        if column is not None:
            printer.bind("column", narrowed(printer.builder, column))
        printer.bind_lanes("x", first, lanes)
        for name, value in known.items():
            printer.bind(name, value)


def _held(expr: Expr) -> set[str]:
    """The reductions whose results an expression needs."""
    names, seen, pending = set[str](), set[int](), [expr]
    while pending:
        current = pending.pop()
        if current.uid in seen:
            continue
        seen.add(current.uid)
        if current.op == "held":
            names.add(current.attr)
        else:
            pending.extend(current.args)
    return names
