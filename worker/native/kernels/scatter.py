"""scatter: updates are put into the rows that their indices name, in row-major order of the indices.

A task has some columns of a plane: it computes these of the data, and then passes over all indices.  So a row that is
named several times gets its updates in order, whatever the threads; updates and indices are computed as they are
needed.
"""

from __future__ import annotations

import math

from ...compiler.element_exprs import register
from ...compiler.expressions import Expr
from ..llvm import I32, index, ir, loop
from ..printer import Printer
from ..scalars import applied, is_signed
from ..vectors import Vectors
from .frame import Frame, Kernel, Value, narrowed
from .map import along, span, steps_of

COLUMNS_MIN = 64  # of a task, since each passes over all indices
TASKS = 8
COMBINE = {"add": "add"}  # what was there and an update; "set" takes the update


def lower_scatter(frame: Frame) -> Kernel:
    return _Scatter(frame).kernel()


class _Scatter:
    """A result as `planes` of `rows` of `width` elements, and `count` updates of each plane, which are rows."""

    def __init__(self, frame: Frame) -> None:
        self.frame, build = frame, frame.build
        _, (data, indices, updates), attrs = frame.graph.nodes[frame.root]
        shape, axis = frame.shape(frame.root), attrs["axis"]
        self.combine = COMBINE.get(attrs["mode"])
        self.planes, self.rows, self.width = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        self.count = math.prod(frame.shape(indices))
        plane, row, x = (build.var(*of) for of in (("plane", self.planes), ("row", self.rows), ("x", self.width)))
        outer, inner = build.unravel(plane, shape[:axis]), build.unravel(x, shape[axis + 1 :])
        where = build.unravel(build.var("at", self.count), frame.shape(indices))
        elements = frame.elements()
        self.data = elements.at(data, (*outer, row, *inner))
        self.target = elements.at(indices, where)
        self.update = elements.at(updates, (*outer, *where, *inner))
        self.place = build.sum(build.scaled(plane, self.rows * self.width), build.scaled(row, self.width), x)
        self.signed = is_signed(frame.dtype(indices))
        self.dtype = register(frame.dtype(frame.root))
        self.own = build.load(frame.root, self.place, self.dtype)

    def kernel(self) -> Kernel:
        frame, lanes = self.frame, self.frame.lanes()
        columns = max(COLUMNS_MIN, -(-self.width // TASKS))
        columns = min(columns + -columns % lanes, self.width)
        across = -(-self.width // columns)
        builder, printer, task, _ = frame.function()
        printer.bind("plane", narrowed(builder, builder.sdiv(task, index(across))))
        ends = span(builder, builder.srem(task, index(across)), columns, self.width)
        printer.hoist([self.data, self.target, self.update], ("row", "at", "x"))
        with loop(builder, index(0), index(self.rows), index(1), "row") as row, printer.scope():
            printer.bind("row", narrowed(builder, row))
            self._store(printer, ends, self.data)
        with loop(builder, index(0), index(self.count), index(1), "at") as at, printer.scope():
            printer.bind("at", narrowed(builder, at))
            target = printer.scalar(self.target)
            with builder.if_then(self._is_row(builder, target)), printer.scope():
                printer.bind("row", Vectors(builder, 1).resize(target, I32))
                self._store(printer, ends, self.update, self.combine)
        builder.ret_void()
        return Kernel(builder.module, self.planes * across)

    def _is_row(self, builder: ir.IRBuilder, target: Value) -> Value:
        """Whether an index is one of the rows; negative ones are large without their sign."""
        most = (1 << (target.type.width - self.signed)) - 1
        return builder.icmp_unsigned("<=", target, ir.Constant(target.type, min(self.rows - 1, most)))

    def _store(self, printer: Printer, ends: tuple[Value, Value], value: Expr, combine: str | None = None) -> None:
        """A row's columns: a value, or what an op makes of what is there and of the value."""
        builder = printer.builder
        printer.hoist([value, self.place], ("x",))
        for columns, lanes in along(builder, *ends, steps_of(self.frame.lanes()), self.width):
            with columns as position, printer.scope():
                printer.bind_lanes("x", narrowed(builder, position), lanes)
                new = printer.vector(value)
                if combine is not None:
                    new = applied(Vectors(builder, lanes), combine, self.dtype, printer.vector(self.own), new)
                printer.store(self.frame.root, self.place, new)
