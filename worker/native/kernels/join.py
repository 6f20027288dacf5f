"""join: a concat of many parts, which are copied as they lie.

The parts and the result are rows of elements that lie together: those of a part are a piece of each row of the result.
A task copies one part's pieces of some rows, so that tasks that follow each other write neighbours.  Where a part lies
is looked up in the arguments by the task, and so the code is as long for any number of parts.
"""

from __future__ import annotations

import math

from ..llvm import I64, index, ir, loop
from ..vectors import Vectors
from .frame import Frame, Kernel, Value
from .map import span

TASK_BYTES = 1 << 18  # of the result's rows whose pieces are copied by tasks that follow each other


def lower_join(frame: Frame) -> Kernel:
    _, parts, attrs = frame.graph.nodes[frame.root]
    shape, axis = frame.shape(frame.root), attrs["axis"]
    rows, width = math.prod(shape[:axis]), math.prod(shape[axis:])
    pieces = [math.prod(frame.shape(part)[axis:]) for part in parts]
    some = max(1, min(rows, TASK_BYTES // (width * frame.itemsize(frame.root))))
    builder, _, task, _ = frame.function()
    arguments = builder.function.args[0]
    part = builder.srem(task, index(len(parts)))
    first, stop = span(builder, builder.sdiv(task, index(len(parts))), some, rows)
    begins = [sum(pieces[:place]) for place in range(len(parts))]
    reads = [frame.reads.index(_stored(frame, part)) for part in parts]
    read, begin, piece = (_looked_up(builder, name, numbers, part) for name, numbers in (
        ("reads", reads), ("begins", begins), ("pieces", pieces)
    ))  # fmt: skip
    element = ir.IntType(8 * frame.itemsize(frame.root)).as_pointer()
    source, result = (
        builder.inttoptr(builder.load(builder.gep(arguments, [place])), element)
        for place in (read, index(len(frame.reads)))
    )
    with loop(builder, first, stop, index(1), "row") as row:
        start = builder.gep(source, [builder.mul(row, piece)])
        into = builder.gep(result, [builder.add(builder.mul(row, index(width)), begin)])
        _copy(builder, start, into, piece, frame.vector_bytes // frame.itemsize(frame.root))
    builder.ret_void()
    return Kernel(builder.module, len(parts) * -(-rows // some))


def _stored(frame: Frame, part: int) -> int:
    """The tensor in memory that is a part, in another shape or not."""
    while part not in frame.reads:
        (part,) = frame.graph.nodes[part].inputs
    return part


def _looked_up(builder: ir.IRBuilder, name: str, numbers: list[int], which: Value) -> Value:
    """The number at a place among some that are known beforehand."""
    kind = ir.ArrayType(I64, len(numbers))
    table = ir.GlobalVariable(builder.module, kind, name)
    table.global_constant, table.linkage = True, "internal"
    table.initializer = ir.Constant(kind, numbers)
    return builder.load(builder.gep(table, [index(0), which]))


def _copy(builder: ir.IRBuilder, start: Value, into: Value, count: Value, lanes: int) -> None:
    """Copy so many elements, whole vectors first."""
    done: Value = index(0)
    for step in dict.fromkeys((lanes, 1)):
        v, stop = Vectors(builder, step), builder.and_(count, index(-step))
        with loop(builder, done, stop, index(step), "element") as at:
            v.store(v.load(builder.gep(start, [at])), builder.gep(into, [at]))
        done = stop
