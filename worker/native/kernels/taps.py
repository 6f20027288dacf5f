"""Convolutions of few channels, depthwise ones above all, with what is computed with their result.

A task is some rows of the result of some groups.  It copies what it reads of x into scratch memory, zeros around it,
and elements that lie a stride apart beside each other: there the windows of neighbours are neighbours, from the end of
a row to the begin of the next one, too.  So a vector of results is a chain of fused products of loads with weights, one
per tap, and vectors do not end with rows.  What lies between rows is computed and left behind.

The order of sums is that of every conv ("native-2"): a window has at most as many elements as a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wire.ir.types import Attrs

from ...compiler.element_exprs import Anchor, Index
from ...compiler.expressions import Expr
from ..llvm import F32, F64, index, ir, loop
from ..printer import Buffer, Printer
from ..vectors import Vectors
from .frame import Frame, Kernel, Value, least, narrowed
from .map import along, span, steps_of

RESULT = -1  # the number of the buffer with results
OUT_MAX = 4  # channels of a group's result: each reads the copy again, where a product of many would pack it once
LENGTH_MAX = 128  # elements of a window: each is an instruction; a run has 256
ELEMENTS = 1 << 13  # of a task's copy and its result, which the first cache holds
TASK_FLOPS = 1 << 19
ABREAST = 4  # vectors of results at a time, since a chain waits for itself
KINDS = {"f32": F32, "f64": F64}


def is_by_taps(attrs: Attrs, x: Sequence[int], weights: Sequence[int]) -> bool:
    """Whether a conv over an x of this shape, with its padding, is for this family."""
    taps = math.prod(weights[2:])
    few = weights[0] // attrs["groups"] <= OUT_MAX and 1 < taps <= taps * weights[1] <= LENGTH_MAX
    return few and len(x) in (3, 4) and all(spread == 1 for spread in attrs["lhs_dilation"])


def lower_taps(frame: Frame) -> Kernel:
    return _Taps(frame).kernel()


@dataclass(frozen=True, slots=True)
class Axis:
    """How windows lie along an axis of x: `size` elements, `low` zeros before them, `taps` that lie `reach` apart in
    windows that lie `stride` apart."""

    size: int
    low: int
    taps: int
    stride: int
    reach: int

    def read(self, windows: int) -> int:
        """The elements from the first to the last one that so many windows read."""
        return (windows - 1) * self.stride + (self.taps - 1) * self.reach + 1

    def held(self, windows: int) -> int:
        """The elements of each of the `stride` lines in which a copy has these."""
        return -(-self.read(windows) // self.stride)

    def tap(self, which: int) -> tuple[int, int]:
        """The line in which a tap finds its elements, and where the first window's is."""
        return which * self.reach % self.stride, which * self.reach // self.stride


@dataclass(eq=False)
class _Taps:
    frame: Frame

    def __post_init__(self) -> None:
        frame, build = self.frame, self.frame.build
        self.anchor = next(place for place, node in enumerate(frame.graph.nodes) if node.op == "conv")
        _, (x, weights), attrs = frame.graph.nodes[self.anchor]
        self.samples, self.out, *places = frame.shape(self.anchor)
        self.groups, flat = attrs["groups"], (1,) * (2 - len(places))
        self.each, self.channels = self.out // self.groups, frame.shape(weights)[1]
        self.height, self.width = (*flat, *places)
        names = ("low", "stride", "rhs_dilation")
        ones = [Axis(1, 0, 1, 1, 1)] * len(flat)
        rows = zip(frame.shape(x)[2:], frame.shape(weights)[2:], *(attrs[name] for name in names), strict=True)
        self.down, self.across = (
            *ones,
            *(Axis(size, low, taps, stride, reach) for size, taps, low, stride, reach in rows),
        )
        self.kind = "f64" if frame.dtype(self.anchor) == "f64" else "f32"
        self.lanes = frame.lanes()
        self.line = self.across.held(self.width)
        self.tall = self._rows_of_task()
        self.plane = self.down.held(self.tall) * self.line
        self.planes = self.down.stride * self.across.stride
        self.elements = frame.elements()
        self.sample, self.group = build.var("sample", self.samples), build.var("group", self.groups)
        self.x_node, self.w_node, self.flat = x, weights, len(flat)

    def _rows_of_task(self) -> int:
        of_row = self.line * (self.channels * self.down.stride**2 * self.across.stride + 2)
        most = max(4, ELEMENTS // of_row)
        return -(-self.height // -(-self.height // most))

    @property
    def slack(self) -> int:
        """Elements behind the last ones that whole vectors reach."""
        return (ABREAST + 1) * self.lanes

    def kernel(self) -> Kernel:
        frame = self.frame
        bands = -(-self.height // self.tall)
        flops = 2 * self.tall * self.line * self.channels * self.each * self.down.taps * self.across.taps
        some = min(self.groups, max(1, TASK_FLOPS // flops))
        blocks = -(-self.groups // some)
        sizes = (self.channels * self.planes * self.plane, self.tall * self.line, self.tall * self.width)
        starts, size_bytes = [0], 4 if self.kind == "f32" else 8
        for size in sizes:
            starts.append(starts[-1] + -(-(size + self.slack) * size_bytes // 64) * 64)
        builder, printer, task, scratch = frame.function()
        pointer = KINDS[self.kind].as_pointer()
        copy, sums, result = (builder.bitcast(builder.gep(scratch, [index(at)]), pointer) for at in starts[:-1])
        first_row, stop_row = span(builder, builder.srem(task, index(bands)), self.tall, self.height)
        rest = builder.sdiv(task, index(bands))
        first, stop = span(builder, builder.srem(rest, index(blocks)), some, self.groups)
        printer.bind("sample", narrowed(builder, builder.sdiv(rest, index(blocks))))
        v = Vectors(builder, self.lanes)
        zeros = v.constant(0.0, KINDS[self.kind])
        with loop(builder, index(0), index(sizes[0]), index(self.lanes), "clear") as at:
            v.store(zeros, builder.gep(copy, [at]))
        with loop(builder, first, stop, index(1), "group") as group, printer.scope():
            printer.bind("group", narrowed(builder, group))
            self._copy(printer, copy, first_row, stop_row)
            with loop(builder, index(0), index(self.each), index(1), "each") as which, printer.scope():
                printer.bind("each", narrowed(builder, which))
                self._sum(printer, copy, sums, builder.sub(stop_row, first_row))
                self._pack(printer, sums, result, builder.sub(stop_row, first_row))
                self._finish(printer, result, first_row, stop_row)
        builder.ret_void()
        return Kernel(builder.module, self.samples * bands * blocks, starts[-1])

    # -- the copy -----------------------------------------------------------------------------------------

    def _copy(self, printer: Printer, copy: Value, first_row: Value, stop_row: Value) -> None:
        """What a task's rows of a group read, every row in lines of elements that lie a stride apart."""
        builder, down = printer.builder, self.down
        values = list(self._lines())
        begin = builder.sub(builder.mul(first_row, index(down.stride)), index(down.low))
        read = builder.add(
            builder.mul(builder.sub(stop_row, first_row), index(down.stride)), index(down.read(1) - down.stride)
        )
        first, stop = (self._bounded(builder, at) for at in (begin, builder.add(begin, read)))
        inner = ("channel", "y", *(name for name, *_ in values))
        printer.hoist([value for _, _, _, value in values], inner)
        with loop(builder, index(0), index(self.channels), index(1), "channel") as channel, printer.scope():
            printer.bind("channel", narrowed(builder, channel))
            with loop(builder, first, stop, index(1), "y") as y, printer.scope():
                printer.bind("y", narrowed(builder, y))
                local = builder.sub(y, begin)
                line = builder.add(builder.mul(channel, index(down.stride)), builder.srem(local, index(down.stride)))
                row = builder.add(
                    builder.mul(line, index(self.across.stride * self.plane)),
                    builder.mul(builder.sdiv(local, index(down.stride)), index(self.line)),
                )
                for name, count, place, value in values:
                    printer.hoist([value], (name,))
                    for columns, width in along(builder, index(0), index(count), steps_of(self.lanes), count):
                        with columns as position, printer.scope():
                            printer.bind_lanes(name, narrowed(builder, position), width)
                            at = builder.add(builder.add(row, position), index(place))
                            Vectors(builder, width).store(printer.vector(value), builder.gep(copy, [at]))

    def _bounded(self, builder: ir.IRBuilder, row: Value) -> Value:
        """The row of x that is nearest."""
        row = builder.select(builder.icmp_signed("<", row, index(0)), index(0), row)
        return least(builder, row, index(self.down.size))

    def _lines(self) -> Iterator[tuple[str, int, int, Expr]]:
        """The lines of a row of x that a tap reads: a variable along each, its elements, where it begins in a copy, and
        an element."""
        build, across = self.frame.build, self.across
        stop = min(across.size, across.read(self.width) - across.low)
        for line in sorted({across.tap(which)[0] for which in range(across.taps)}):
            first = (line - across.low) % across.stride
            count = len(range(first, stop, across.stride))
            if count:
                name = f"x{line}"
                x = build.sum(build.scaled(build.var(name, count), across.stride), build.number(first))
                place = line * self.plane + (first + across.low) // across.stride
                yield name, count, place, self.elements.at(self.x_node, self._index(x))

    def _index(self, x: Expr) -> Index:
        build = self.frame.build
        channel = build.sum(build.scaled(self.group, self.channels), build.var("channel", self.channels))
        y = build.var("y", self.down.size)
        return (self.sample, channel, *(y, x)[self.flat :])

    # -- sums ---------------------------------------------------------------------------------------------

    def _sum(self, printer: Printer, copy: Value, sums: Value, rows: Value) -> None:
        """Windows of the copy, from the first to the last, those that begin between rows included."""
        builder, v = printer.builder, Vectors(printer.builder, self.lanes)
        taps = list(self._windows())
        factors = [v.splat(printer.scalar(weight)) for _, weight in taps]
        stop = builder.add(builder.mul(builder.sub(rows, index(1)), index(self.line)), index(self.width))
        with loop(builder, index(0), stop, index(ABREAST * self.lanes), "window") as at:
            held = [v.constant(0.0, KINDS[self.kind])] * ABREAST
            for (place, _), factor in zip(taps, factors, strict=True):
                for which in range(ABREAST):
                    start = builder.gep(copy, [builder.add(at, index(place + which * self.lanes))])
                    held[which] = v.fma(v.load(start), factor, held[which])
            for which, value in enumerate(held):
                v.store(value, builder.gep(sums, [builder.add(at, index(which * self.lanes))]))

    def _windows(self) -> Iterator[tuple[int, Expr]]:
        """The elements of a window in order: where the first window's lies in the copy, and its weight."""
        build = self.frame.build
        out = self._out
        for channel in range(self.channels):
            for down in range(self.down.taps):
                for across in range(self.across.taps):
                    (row_line, row), (line, column) = self.down.tap(down), self.across.tap(across)
                    plane = (channel * self.down.stride + row_line) * self.across.stride + line
                    where = (out, build.number(channel), *(build.number(down), build.number(across))[self.flat :])
                    yield plane * self.plane + row * self.line + column, self.elements.at(self.w_node, where)

    @property
    def _out(self) -> Expr:
        build = self.frame.build
        return build.sum(build.scaled(self.group, self.each), build.var("each", self.each))

    def _pack(self, printer: Printer, sums: Value, result: Value, rows: Value) -> None:
        """Rows without what lies between them: a row's last vector may reach into the next row, which comes later."""
        builder, v = printer.builder, Vectors(printer.builder, self.lanes)
        with loop(builder, index(0), rows, index(1), "row") as row:
            source, to = (builder.gep(start, [builder.mul(row, index(wide))])
                          for start, wide in ((sums, self.line), (result, self.width)))  # fmt: skip
            with loop(builder, index(0), index(self.width), index(self.lanes), "x") as x:
                v.store(v.load(builder.gep(source, [x])), builder.gep(to, [x]))

    def _finish(self, printer: Printer, result: Value, first_row: Value, stop_row: Value) -> None:
        """Compute the group's result from the sums."""
        frame, build, builder = self.frame, self.frame.build, printer.builder
        first, stop = (builder.mul(row, index(self.width)) for row in (first_row, stop_row))
        buffers = printer.buffers
        begin = builder.gep(result, [builder.neg(first)])  # so that x itself is the place in it
        printer.buffers = {**buffers, RESULT: Buffer(begin, self.kind)}
        size = self.height * self.width
        x = build.var("x", size)
        value_of = frame.elements({self.anchor: self._anchor(build.load(RESULT, x, self.kind))})
        place = build.sum(build.scaled(self.sample, self.out * size), build.scaled(self._out, size), x)
        value = value_of.at(frame.root, build.unravel(place, frame.shape(frame.root)))
        printer.hoist([value, place], ("x",))
        even = self.height % self.tall == 0  # or the last task's rows leave another rest of a vector than the others'
        total = self.tall * self.width if even else 2 * self.lanes - 1
        for columns, width in along(builder, index(0), builder.sub(stop, first), steps_of(self.lanes), total):
            with columns as position, printer.scope():
                printer.bind_lanes("x", narrowed(builder, builder.add(position, first)), width)
                printer.store(frame.root, place, printer.vector(value))
        printer.buffers = buffers

    def _anchor(self, product: Expr) -> Anchor:
        def read(index: Index) -> Expr:
            return self.elements.rounded(product, self.frame.dtype(self.anchor))

        return read
