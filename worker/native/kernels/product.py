"""Products of matrices, with the views that their operands are read through, and what is computed with their result.

A task is a tile of the result.  A core (`products.py`) computes it from operands that lie anywhere, at any strides.
Where something is computed with the result, the core leaves the tile in scratch memory, and the loops that follow take
it from the cache.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wire.cached_property import cached_property
from wire.ir.types import Attrs

from ...compiler.element_exprs import Anchor, Index
from ...compiler.expressions import Expr, terms_of
from ..cores import CORE, FEW, PACKED_ROWS_MIN, RUN
from ..few_rows import LINES_AHEAD
from ..llvm import ADDRESS, F32, F64, I64, index, ir, loop, prefetch
from ..printer import Buffer, Printer, stride_of
from ..vectors import Vectors
from ..weights import Layout
from .copies import Box, Copies, Sizes, is_by_copies
from .frame import Frame, Kernel, Value, largest, least, narrowed
from .map import along, parts_of, sliced, span, steps_of
from .taps import is_by_taps, lower_taps

TILE = (512, 512)  # rows and columns of a task: each packs its operands, and this many pay for it
TALL = 1024  # rows where the result needs no room of the task's
TASK_FLOPS_MIN = 1 << 21  # tens of microseconds
AHEAD = 16  # lines of the right operand that are fetched before they are needed
CYCLES_TO_PACK, CYCLES_TO_COPY = 0.5, 0.25  # an element of A, and one of a copy
ACROSS = 64  # columns of a product of which a part is not read that are computed together
REACH = "reach"  # an attribute of a dot, for which `_Dot.reach` has the meaning
RESULT, UNPACKED = -1, -2  # the numbers of buffers: a tile, and a run of the right operand
KINDS = {"f32": F32, "f64": F64}
OfRun = Callable[[Value, Value], list[Value]]  # the core's arguments for the right operand's rows from one to another


def lower_product(frame: Frame) -> Kernel:
    return lower_taps(frame) if _is_by_taps(frame) else _product_of(frame).kernel()


def _product_of(frame: Frame) -> _Product:
    conv = _conv_of(frame)
    return _Dot(frame) if conv is None else _Copied(frame) if is_by_copies(*conv) else _Windows(frame)


def _conv_of(frame: Frame) -> tuple[Attrs, Sequence[int], Sequence[int], Sequence[int]] | None:
    """The attributes of a group's conv, and the shapes of x, the weights, and the result."""
    for place, (op, inputs, attrs) in enumerate(frame.graph.nodes):
        if op == "conv":
            x, weights = (frame.shape(source) for source in inputs)
            return attrs, x, weights, frame.shape(place)
    return None


def _is_by_taps(frame: Frame) -> bool:
    conv = _conv_of(frame)
    return conv is not None and is_by_taps(*conv[:3])


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix in memory: its buffer, the index of element (0, 0) of a batch, its strides along rows and columns."""

    buffer: int
    start: Expr
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Places:
    """The places in memory of a box's elements, in row-major order; those of a long box are more than code can list."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, builder: ir.IRBuilder, element: Value) -> Value:
        """The place of an element, in elements from that of the first one."""
        place = index(0)
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            coordinate = builder.urem(element, index(size))
            place = builder.add(place, builder.mul(coordinate, index(stride)))
            element = builder.udiv(element, index(size))
        return place


@dataclass(frozen=True, slots=True)
class Table:
    """An operand that is read through tables: element (k, column) lies at the sum of both places from `start`."""

    buffer: int
    start: Expr
    rows: Places
    columns: Places


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A right operand that is computed: element (k, column) of a batch.  A task makes it in scratch memory, for one run
    of the length after the other, with rows or columns contiguous as they are in what it is made of."""

    value: Expr
    by_rows: bool


@dataclass(frozen=True, slots=True)
class Lines:
    """A right operand whose rows or columns lie anywhere in a buffer, as those of pages do: the line of a k, or of an
    x, begins at `start`, and its elements follow each other."""

    buffer: int
    start: Expr
    by_rows: bool


class _Scratch:
    """The scratch memory of a task: parts of it, of known sizes, and the rest."""

    def __init__(self, builder: ir.IRBuilder, begin: Value) -> None:
        self._builder, self._begin = builder, begin
        self.taken = 0  # bytes

    def take(self, size: int) -> Value:
        part = self.rest
        self.taken += size + -size % 64
        return part

    @property
    def rest(self) -> Value:
        return self._builder.gep(self._begin, [index(self.taken)])


def is_even(frame: Frame) -> bool:
    """Whether the operands of a group's product are tensors in memory at even strides, if they have to be."""
    return _is_by_taps(frame) or _product_of(frame).even


@dataclass(eq=False)
class _Product(ABC):
    """A batch of products [rows, length] x [length, columns], whose results follow each other in memory."""

    frame: Frame

    def __post_init__(self) -> None:
        frame = self.frame
        self.anchor = next(place for place, node in enumerate(frame.graph.nodes) if node.op in ("dot", "conv"))
        self.batches, self.rows, self.columns, self.length = self._sizes()
        self.kind = "f64" if frame.dtype(self.anchor) == "f64" else "f32"
        build = frame.build
        self.batch, self.row = build.var("batch", self.batches), build.var("row", self.rows)
        self.x, self.k = build.var("x", self.columns), build.var("k", self.length)
        self._bytes = 8 if self.kind == "f64" else 4
        self._plain = frame.elements()

    @property
    def even(self) -> bool:
        return self.left is not None and self.right is not None

    @property
    def _is_direct(self) -> bool:
        """Whether the core computes the result itself, and not what the result is made of."""
        return self.frame.root == self.anchor and self.frame.dtype(self.anchor) == self.kind

    @abstractmethod
    def _sizes(self) -> tuple[int, int, int, int]:
        """Batches, rows, columns, length."""

    @property
    @abstractmethod
    def left(self) -> Operand | None: ...

    @property
    @abstractmethod
    def right(self) -> Operand | Table | Unpacked | Lines | None: ...

    @property
    @abstractmethod
    def core(self) -> str:
        """The core's name, as a kernel asks for it."""
        ...

    @property
    def matrix(self) -> Layout | None:
        """The right operand, if it is the same for all of a batch and better packed: where it is a weight, that is done
        beforehand, and so its place is an argument of the kernel."""
        return None

    def _strided(self, load: Expr, row: Expr, column: Expr) -> Operand | None:
        const, terms = terms_of(load.args[0])
        strides = [terms.pop(variable, 0) for variable in (row, column)]
        if any(atom.free & {row.attr, column.attr} for atom in terms):
            return None
        return Operand(load.attr, self.frame.build.affine(const, terms), *strides)

    # -- the kernel ---------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        frame, build = self.frame, self.frame.build
        assert self.even, "the outline keeps other operands out"
        tall, wide = self._tile()
        down, across = -(-self.rows // tall), -(-self.columns // wide)
        direct = self._is_direct
        builder, printer, task, scratch = frame.function()
        tile = builder.sdiv(task, index(across))
        first_column, stop_column = span(builder, builder.srem(task, index(across)), wide, self.columns)
        first_row, stop_row = span(builder, builder.srem(tile, index(down)), tall, self.rows)
        printer.bind("batch", narrowed(builder, builder.sdiv(tile, index(down))))
        height, width = builder.sub(stop_row, first_row), builder.sub(stop_column, first_column)
        result_type = KINDS[self.kind].as_pointer()
        if direct:
            place = build.sum(
                build.scaled(self.batch, self.rows * self.columns), build.scaled(self.row, self.columns), self.x
            )
            with printer.scope():
                printer.bind("row", narrowed(builder, first_row))
                printer.bind("x", narrowed(builder, first_column))
                start = builder.zext(printer.scalar(place), I64)
            into, across_row = builder.gep(printer.buffers[frame.root].pointer, [start]), index(self.columns)
        room = _Scratch(builder, scratch)
        if not direct:
            into, across_row = builder.bitcast(room.take(tall * wide * self._bytes), result_type), index(wide)
        self._multiply(printer, (first_row, first_column), (height, width), into, across_row, room)
        if not direct:
            self._finish(printer, into, wide, (first_row, stop_row), (first_column, stop_column))
        builder.ret_void()
        tasks, right = self.batches * down * across, self.right
        read = frame.reads.index(right.buffer) if self.matrix and isinstance(right, Operand) else 0
        return Kernel(builder.module, tasks, room.taken, (self.core,), self.matrix, read, *self._slices())

    def _slices(self) -> tuple[int, tuple[int, ...]]:
        """`slices` and `sliced` of the kernel."""
        return 1, ()

    def _tile(self) -> tuple[int, int]:
        """Rows and columns of a task."""
        tall, wide = min(self.rows, TALL if self._is_direct else TILE[0]), min(self.columns, TILE[1])
        while self.batches * -(-self.rows // tall) * -(-self.columns // wide) < self.frame.tasks_min:
            if 2 * tall * wide * self.length < 2 * TASK_FLOPS_MIN:
                break
            if (tall > wide and not isinstance(self.right, Unpacked)) or wide <= 64:
                tall = -(-tall // 2)
            else:
                wide = -(-wide // 128) * 64
        return tall, wide

    def _multiply(
        self, printer: Printer, corner: tuple[Value, Value], size: tuple[Value, Value], into: Value,
        across_row: Value, room: _Scratch,
    ) -> None:  # fmt: skip
        """Compute a task's tile of the product."""
        right = self.right
        if isinstance(right, Operand):
            of_right = (
                self._by_strides(printer, corner[1]) if self.matrix else self._of_columns(printer, right, corner[1])
            )
            self._call_core(printer, of_right, corner, size, into, across_row, room)
        else:
            columns = corner[1], printer.builder.add(corner[1], size[1])
            of_run = self._of_runs(printer, columns, room)
            self._by_runs(printer, of_run, corner, size, into, across_row, room)

    @abstractmethod
    def _of_runs(self, printer: Printer, columns: tuple[Value, Value], room: _Scratch) -> OfRun:
        """Make ready what a task reads of the right operand: it returns the core's arguments for a run of the
        length."""

    def _call_core(
        self, printer: Printer, of_right: Sequence[Value], corner: tuple[Value, Value], size: tuple[Value, Value],
        into: Value, across_row: Value, room: _Scratch, run: tuple[Value, Value] | None = None,
    ) -> None:  # fmt: skip
        """Multiply, along the whole length or a run of it, from `first` to `stop`."""
        builder = printer.builder
        assert self.left is not None
        first, stop = run or (index(0), index(self.length))
        further = builder.add(builder.mul(corner[0], index(self.left.row)), builder.mul(first, index(self.left.column)))
        words = [*self._words(printer, self.left, further), *of_right]
        core = builder.inttoptr(self._core_address(builder), CORE.as_pointer())
        length = builder.sub(stop, first)
        builder.call(core, [*words, builder.bitcast(into, ADDRESS), across_row, *size, length, room.rest])

    def _by_runs(
        self, printer: Printer, of_run: OfRun, corner: tuple[Value, Value], size: tuple[Value, Value], into: Value,
        across_row: Value, room: _Scratch,
    ) -> None:  # fmt: skip
        """Multiply a run of the length at a time, and add it to those before: the core adds runs in the same order."""
        builder, (tall, wide) = printer.builder, self._tile()
        if self.length <= RUN:  # a product of length 0 is zeros
            run = index(0), index(self.length)
            with printer.scope():
                self._call_core(printer, of_run(*run), corner, size, into, across_row, room, run)
            return
        further = builder.bitcast(room.take(tall * wide * self._bytes), KINDS[self.kind].as_pointer())
        with loop(builder, index(0), index(self.length), index(RUN), "run") as first, printer.scope():
            stop = least(builder, builder.add(first, index(RUN)), index(self.length))
            is_first = builder.icmp_signed("==", first, index(0))
            target = builder.select(is_first, into, further)
            across = builder.select(is_first, across_row, index(wide))
            self._call_core(printer, of_run(first, stop), corner, size, target, across, room, (first, stop))
            with builder.if_then(builder.not_(is_first)):
                self._add(printer, further, wide, into, across_row, size)

    def _unpack(
        self, printer: Printer, right: Unpacked, block: Value, wide: int, run: tuple[Value, Value],
        columns: tuple[Value, Value],
    ) -> None:  # fmt: skip
        """Make a run of some columns of the right operand."""
        frame, build, builder = self.frame, self.frame.build, printer.builder
        (outer, rows), (inner, line) = ("k", run), ("x", columns)
        if not right.by_rows:
            (outer, rows), (inner, line) = (inner, line), (outer, rows)
        begin = builder.gep(block, [builder.neg(line[0])])  # so that `inner` itself is the place in a line
        printer.buffers = {**printer.buffers, UNPACKED: Buffer(begin, self.kind)}
        total = self.columns if right.by_rows else self.length
        place = build.sum(
            build.scaled(build.var("line", max(self.columns, self.length)), wide if right.by_rows else RUN),
            build.var(inner, total),
        )
        exprs = [right.value, place]
        loads = [expr for expr in parts_of(right.value) if expr.op == "load" and {outer, inner} <= expr.free]
        printer.hoist(exprs, ("row", "x", "k", "line"))
        with loop(builder, *rows, index(1), "line") as at, printer.scope():
            printer.bind(outer, narrowed(builder, at))
            printer.bind("line", narrowed(builder, builder.sub(at, rows[0])))
            printer.hoist(exprs, (inner,))
            for along_line, width in along(builder, *line, steps_of(frame.lanes()), total):
                with along_line as position, printer.scope():
                    printer.bind_lanes(inner, narrowed(builder, position), width)
                    printer.store(UNPACKED, place, printer.vector(right.value))
                    with printer.elsewhere():
                        printer.bind(outer, narrowed(builder, builder.add(at, index(AHEAD))))
                        for load in loads:
                            prefetch(builder, printer.address(load))

    def _add(
        self, printer: Printer, further: Value, wide: int, into: Value, across_row: Value, size: tuple[Value, Value]
    ) -> None:
        """Add a run's products to the tile."""
        builder = printer.builder
        with loop(builder, index(0), size[0], index(1), "row") as row:
            source = builder.gep(further, [builder.mul(row, index(wide))])
            target = builder.gep(into, [builder.mul(row, across_row)])
            for columns, width in along(builder, index(0), size[1], steps_of(self.frame.lanes()), self.columns):
                with columns as column:
                    v = Vectors(builder, width)
                    total, more = (v.load(builder.gep(start, [column])) for start in (target, source))
                    v.store(builder.fadd(total, more), builder.gep(target, [column]))

    def _of_columns(self, printer: Printer, right: Operand, first: Value) -> list[Value]:
        return self._words(printer, right, printer.builder.mul(first, index(right.column)))

    def _by_strides(self, printer: Printer, first: Value) -> list[Value]:
        """The core's arguments for the columns from `first` on, of a right operand that lies where arguments say."""
        builder = printer.builder
        begin, row, column = (self._argument(builder, at) for at in (1, 2, 3))
        further = builder.mul(builder.mul(first, column), index(self._bytes))
        return [builder.inttoptr(builder.add(begin, further), ADDRESS), row, column]

    def _core_address(self, builder: ir.IRBuilder) -> Value:
        return self._argument(builder, 0)

    def _argument(self, builder: ir.IRBuilder, which: int) -> Value:
        """An argument behind the tensors' addresses."""
        return builder.load(builder.gep(builder.function.args[0], [index(len(self.frame.reads) + 1 + which)]))

    def _words(self, printer: Printer, operand: Operand, further: Value) -> list[Value]:
        builder = printer.builder
        start = builder.add(builder.zext(printer.scalar(operand.start), I64), further)
        pointer = builder.gep(printer.buffers[operand.buffer].pointer, [start])
        return [builder.bitcast(pointer, ADDRESS), index(operand.row), index(operand.column)]

    def _finish(
        self, printer: Printer, tile: Value, wide: int, rows: tuple[Value, Value], columns: tuple[Value, Value]
    ) -> None:
        """Compute the result from the tile, row by row."""
        frame, builder = self.frame, printer.builder
        begin = builder.gep(tile, [builder.neg(columns[0])])  # so that x itself is the place in a row of the tile
        printer.buffers = {**printer.buffers, RESULT: Buffer(begin, self.kind)}
        value, place = self._result(wide)
        exprs, lanes = [value, place], frame.lanes()
        total = self.columns if wide in (self.columns, -(-wide // lanes) * lanes) else 2 * lanes - 1
        printer.hoist(exprs, ("row", "x", "tile_row"))
        with loop(builder, rows[0], rows[1], index(1), "row") as row, printer.scope():
            printer.bind("row", narrowed(builder, row))
            printer.bind("tile_row", narrowed(builder, builder.sub(row, rows[0])))
            printer.hoist(exprs, ("x",))
            for columns_of, width in along(builder, *columns, steps_of(lanes), total):
                with columns_of as position, printer.scope():
                    printer.bind_lanes("x", narrowed(builder, position), width)
                    printer.store(frame.root, place, printer.vector(value))

    def _result(self, wide: int) -> tuple[Expr, Expr]:
        """An element of the result, made of one in a tile of so many columns, and its place."""
        build = self.frame.build
        in_tile = build.sum(build.scaled(build.var("tile_row", self.rows), wide), self.x)
        product = build.load(RESULT, in_tile, self.kind)
        value_of = self.frame.elements({self.anchor: self._anchor(product)})
        place = build.sum(
            build.scaled(self.batch, self.rows * self.columns), build.scaled(self.row, self.columns), self.x
        )
        shape = self.frame.shape(self.frame.root)
        return value_of.at(self.frame.root, build.unravel(place, shape)), place

    def _anchor(self, product: Expr) -> Anchor:
        def read(index: Index) -> Expr:
            return self._plain.rounded(product, self.frame.dtype(self.anchor))

        return read


class _Dot(_Product):
    """A dot: axes of one role are folded into one."""

    def _sizes(self) -> tuple[int, int, int, int]:
        _, inputs, attrs = self.frame.graph.nodes[self.anchor]
        (batch, rows, length), (_, columns, _) = (
            _sizes(self.frame.shape(node), attrs, name) for node, name in zip(inputs, ("lhs", "rhs"), strict=True)
        )
        return math.prod(batch), math.prod(rows), math.prod(columns), math.prod(length)

    @property
    def core(self) -> str:
        """Few rows or columns are multiplied where the other operand lies, if its rows or columns are contiguous."""
        if isinstance(self.right, Lines):
            return f"lines_of_few {self.kind}"
        other = self.right if self.rows <= FEW else self.left if self.columns <= FEW else None
        lies = isinstance(other, Unpacked) or (isinstance(other, Operand) and 1 in (other.row, other.column))
        return f"{'few_rows' if lies else 'product'} {self.kind}"

    @property
    def reach(self) -> int | None:
        """How far to the right of the diagonal the result is read, if not everywhere: the outline says so."""
        whole = (self.rows, self.columns) == self.frame.shape(self.anchor)[-2:]
        read_where_it_lies = isinstance(self.right, Operand) and self.matrix is None and self.core.startswith("product")
        return self.frame.graph.nodes[self.anchor].attrs.get(REACH) if whole and read_where_it_lies else None

    def _multiply(
        self, printer: Printer, corner: tuple[Value, Value], size: tuple[Value, Value], into: Value,
        across_row: Value, room: _Scratch,
    ) -> None:  # fmt: skip
        """Multiply; if a part is not read, some columns at a time, of the rows in which one of these is read."""
        builder, right, reach = printer.builder, self.right, self.reach
        if isinstance(right, Lines):
            of_right = self._listed_lines(printer, right, corner[1], size[1], room)
            self._call_core(printer, of_right, corner, size, into, across_row, room)
            return
        if reach is None or not isinstance(right, Operand):
            super()._multiply(printer, corner, size, into, across_row, room)
            return
        stop_row, stop_column = (builder.add(*ends) for ends in zip(corner, size, strict=True))
        with loop(builder, corner[1], stop_column, index(ACROSS), "across") as column:
            row = largest(builder, builder.sub(column, index(reach)), corner[0])
            with builder.if_then(builder.icmp_signed("<", row, stop_row)), printer.scope():
                some = builder.sub(stop_row, row), least(builder, builder.sub(stop_column, column), index(ACROSS))
                down = builder.mul(builder.sub(row, corner[0]), across_row)
                place = builder.gep(into, [builder.add(down, builder.sub(column, corner[1]))])
                of_right = self._of_columns(printer, right, column)
                self._call_core(printer, of_right, (row, column), some, place, across_row, room)

    def _listed_lines(
        self, printer: Printer, right: Lines, column: Value, columns: Value, room: _Scratch
    ) -> list[Value]:
        """The core's arguments: a table of the lines that a task reads."""
        builder = printer.builder
        variable, first, count, most = ("k", index(0), index(self.length), self.length)
        if not right.by_rows:
            variable, first, count, most = "x", column, columns, self._tile()[1]
        table = room.take(8 * (most + LINES_AHEAD))

        def begin(builder: ir.IRBuilder, at: Value) -> Value:
            with printer.scope():
                printer.bind(variable, narrowed(builder, at))
                return builder.zext(printer.scalar(right.start), I64)

        listed = _listed(builder, table, (first, builder.add(first, count)), begin)
        pointer = printer.buffers[right.buffer].pointer
        if right.by_rows:
            return [builder.bitcast(builder.gep(pointer, [column]), ADDRESS), listed, index(1)]
        return [builder.bitcast(pointer, ADDRESS), index(1), listed]

    def _slices(self) -> tuple[int, tuple[int, ...]]:
        operands = self._element(0, self.row, self.k), self._element(1, self.k, self.x)
        return self.batches, sliced(self.frame, (*operands, self._result(self.columns)[0]), self.batch)

    @property
    def matrix(self) -> Layout | None:
        right = self.right
        if not isinstance(right, Operand) or self.rows < PACKED_ROWS_MIN:
            return None
        start, of_batch = terms_of(right.start)
        return None if of_batch else Layout(self.kind, start, right.row, right.column, self.length, self.columns)

    @cached_property
    def left(self) -> Operand | None:
        value = self._element(0, self.row, self.k)
        return self._strided(value, self.row, self.k) if self._is_stored(value) else None

    @cached_property
    def right(self) -> Operand | Unpacked | Lines | None:
        value = self._element(1, self.k, self.x)
        if not self._is_stored(value):
            return Unpacked(value, self._by_rows(value))
        strided = self._strided(value, self.k, self.x)
        picked = strided is None and any(node.op == "gather" for node in self.frame.graph.nodes)
        if not picked:
            return strided
        return (self.rows <= FEW and self._lines(value)) or Unpacked(value, self._by_rows(value))

    def _lines(self, load: Expr) -> Lines | None:
        """The lines that a picked element lies in, if they are contiguous."""
        for by_rows, inner in ((True, self.x), (False, self.k)):
            const, terms = terms_of(load.args[0])
            if terms.pop(inner, 0) == 1 and not any(inner.attr in atom.free for atom in terms):
                return Lines(load.attr, self.frame.build.affine(const, terms), by_rows)
        return None

    def _by_rows(self, value: Expr) -> bool:
        """Whether more of what an element of the right operand is made of lies along its columns than along k."""
        loads, lanes = [expr for expr in parts_of(value) if expr.op == "load"], self.frame.lanes()
        along_x, along_k = (sum(stride_of(load.args[0], name, lanes) in (0, 1) for load in loads) for name in "xk")
        return along_x >= along_k

    def _is_stored(self, value: Expr) -> bool:
        """Whether an element is read as the core takes it."""
        return value.op == "load" and self.frame.dtype(value.attr) == self.kind

    def _element(self, side: int, row: Expr, column: Expr) -> Expr:
        """The element of an operand at `row` and `column`."""
        frame, build = self.frame, self.frame.build
        _, inputs, attrs = frame.graph.nodes[self.anchor]
        shape, name = frame.shape(inputs[side]), ("lhs", "rhs")[side]
        batch, free, contract = _sizes(shape, attrs, name)
        where: list[Expr] = [self.batch] * len(shape)
        for axes, variable, sizes in (
            (attrs[f"{name}_batch"], self.batch, batch),
            (_free(shape, attrs, name), row if side == 0 else column, free),
            (attrs[f"{name}_contract"], self.k, contract),
        ):
            for axis, coordinate in zip(axes, build.unravel(variable, sizes), strict=True):
                where[axis] = coordinate
        return self._plain.at(inputs[side], tuple(where))

    def _of_runs(self, printer: Printer, columns: tuple[Value, Value], room: _Scratch) -> OfRun:
        right, builder, wide = self.right, printer.builder, self._tile()[1]
        assert isinstance(right, Unpacked)
        block = builder.bitcast(room.take(RUN * wide * self._bytes), KINDS[self.kind].as_pointer())
        strides = (index(wide), index(1)) if right.by_rows else (index(1), index(RUN))

        def of_run(first: Value, stop: Value) -> list[Value]:
            self._unpack(printer, right, block, wide, (first, stop), columns)
            return [builder.bitcast(block, ADDRESS), *strides]

        return of_run


class _Windows(_Product):
    """A convolution without padding: rows are channels of the result, columns its places, and the length is that of a
    window.  Where an element of a window lies is the sum of two tables, one by its place in the window, and one by the
    window's."""

    def _sizes(self) -> tuple[int, int, int, int]:
        _, (_, weights), attrs = self.frame.graph.nodes[self.anchor]
        samples, channels, *places = self.frame.shape(self.anchor)
        groups, shape = attrs["groups"], self.frame.shape(weights)
        return samples * groups, channels // groups, math.prod(places), math.prod(shape[1:])

    @property
    def core(self) -> str:
        return f"windows {self.kind}"

    @cached_property
    def left(self) -> Operand | None:
        _, (_, weights), attrs = self.frame.graph.nodes[self.anchor]
        build, shape = self.frame.build, self.frame.shape(weights)
        group = build.mod(self.batch, attrs["groups"])
        channel = build.sum(build.scaled(group, self.rows), self.row)
        value = self._plain.at(weights, (channel, *build.unravel(self.k, shape[1:])))
        return None if value.op != "load" else self._strided(value, self.row, self.k)

    @cached_property
    def right(self) -> Table | None:
        _, (x, weights), attrs = self.frame.graph.nodes[self.anchor]
        build, shape = self.frame.build, self.frame.shape(x)
        channels, *taps = self.frame.shape(weights)[1:]
        sample, group = build.div(self.batch, attrs["groups"]), build.mod(self.batch, attrs["groups"])
        channel = build.var("channel", channels)
        axes = [build.var(f"axis{axis}", dim) for axis, dim in enumerate(shape[2:])]
        value = self._plain.at(x, (sample, build.sum(build.scaled(group, channels), channel), *axes))
        if value.op != "load":
            return None
        const, terms = terms_of(value.args[0])
        strides = [terms.pop(variable, 0) for variable in (channel, *axes)]
        if any(atom.free & {variable.attr for variable in (channel, *axes)} for atom in terms):
            return None
        reach = [1, *attrs["rhs_dilation"]]
        rows = Places((channels, *taps), tuple(stride * far for stride, far in zip(strides, reach, strict=True)))
        steps = tuple(stride * step for stride, step in zip(strides[1:], attrs["stride"], strict=True))
        columns = Places(tuple(self.frame.shape(self.anchor)[2:]), steps)
        return Table(value.attr, build.affine(const, terms), rows, columns)

    def _of_runs(self, printer: Printer, columns: tuple[Value, Value], room: _Scratch) -> OfRun:
        right, builder = self.right, printer.builder
        assert isinstance(right, Table)
        start = builder.gep(printer.buffers[right.buffer].pointer, [builder.zext(printer.scalar(right.start), I64)])
        of_rows, of_columns = (room.take(8 * count) for count in (RUN, self._tile()[1]))
        across = _listed(builder, of_columns, columns, right.columns.at)

        def of_run(first: Value, stop: Value) -> list[Value]:
            down = _listed(builder, of_rows, (first, stop), right.rows.at)
            return [builder.bitcast(start, ADDRESS), down, across]

        return of_run


class _Copied(_Windows):
    """A convolution that reads copies of x, made for each run of the length, with zeros for its padding."""

    @property
    def even(self) -> bool:
        return self.left is not None

    @property
    def core(self) -> str:
        return f"lines {self.kind}"

    @cached_property
    def sizes(self) -> Sizes:
        conv = _conv_of(self.frame)
        assert conv is not None
        return Sizes.of(*conv)

    @cached_property
    def copies(self) -> Copies:
        _, (x, _), attrs = self.frame.graph.nodes[self.anchor]
        return Copies(self.frame, self._plain, x, self.sizes, self._task[1], self.batch, attrs["groups"])

    def _tile(self) -> tuple[int, int]:
        tall, box = self._task
        return tall, box.columns

    @cached_property
    def _task(self) -> tuple[int, Box]:
        """Rows and windows of a task: those that take least of what gives enough tasks."""
        tallest = min(self.rows, TILE[0])
        tall = [-(-tallest // parts) for parts in (1, 2, 4, 8)]
        every = [(rows, box) for rows in dict.fromkeys(tall) for box in self.sizes.boxes]
        worth = [(rows, box) for rows, box in every if 2 * rows * box.columns * self.length >= TASK_FLOPS_MIN]
        return min(worth or every[:1], key=lambda task: self._costs(*task))

    def _costs(self, rows: int, box: Box) -> tuple[int, float]:
        """How many tasks are wanting, and about how many cycles all of them take."""
        lanes = self.frame.lanes()
        down, across = -(-self.rows // rows), -(-self.columns // box.columns)
        vectors = down * rows * across * -(-box.columns // lanes) * self.length / 2
        packed, copied = across * self.rows * self.length, down * across * self.sizes.copied(box)
        few = max(0, self.frame.tasks_min - self.batches * down * across)
        return few, vectors + packed * CYCLES_TO_PACK + copied * CYCLES_TO_COPY

    def _multiply(
        self, printer: Printer, corner: tuple[Value, Value], size: tuple[Value, Value], into: Value,
        across_row: Value, room: _Scratch,
    ) -> None:  # fmt: skip
        """A run of the length at a time, each of which begins with its copies."""
        builder, copies, taps = printer.builder, self.copies, index(self.sizes.taps)
        start = builder.bitcast(room.take(copies.bytes), KINDS[self.kind].as_pointer())
        lines = room.take(8 * RUN)
        columns = corner[1], builder.add(corner[1], size[1])
        copies.clear(printer, start)
        with loop(builder, index(0), index(self.length), index(RUN), "run") as first, printer.scope():
            stop = least(builder, builder.add(first, index(RUN)), index(self.length))
            last = builder.sdiv(builder.sub(stop, index(1)), taps)
            copies.fill(printer, start, columns, (builder.sdiv(first, taps), builder.add(last, index(1))))
            of_channel = builder.sdiv(first, taps)
            table = _listed(builder, lines, (first, stop), lambda at, k: copies.line(at, k, of_channel))
            of_right = [builder.bitcast(start, ADDRESS), table, first]
            self._call_core(printer, of_right, corner, size, into, across_row, room, (first, stop))


def _listed(
    builder: ir.IRBuilder, table: Value, elements: tuple[Value, Value], at: Callable[[ir.IRBuilder, Value], Value]
) -> Value:
    """The address of a table of int64 in scratch memory: the places of some elements."""
    words, (first, stop) = builder.bitcast(table, I64.as_pointer()), elements
    with loop(builder, first, stop, index(1), "place") as element:
        builder.store(at(builder, element), builder.gep(words, [builder.sub(element, first)]))
    return builder.ptrtoint(words, I64)


def _sizes(shape: Sequence[int], attrs: Attrs, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The sizes of a dot's operand's batch, free and contracting axes."""
    axes = attrs[f"{name}_batch"], _free(shape, attrs, name), attrs[f"{name}_contract"]
    batch, free, contract = (tuple(shape[axis] for axis in group) for group in axes)
    return batch, free, contract


def _free(shape: Sequence[int], attrs: Attrs, name: str) -> tuple[int, ...]:
    taken = (*attrs[f"{name}_batch"], *attrs[f"{name}_contract"])
    return tuple(axis for axis in range(len(shape)) if axis not in taken)
