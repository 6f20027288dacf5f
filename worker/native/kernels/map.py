"""Elementwise chains and views: a loop over rows of the result, and vectors along each row.

The result's axes are folded into two: `outer` and, along the lanes, `x`.  Which ones are folded into x is chosen by
what the loads then look like; the bits of an element do not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from ...compiler.element_exprs import Index
from ...compiler.expressions import Builder, Expr
from ..llvm import I64, index, ir, loop
from ..printer import stride_of
from .frame import Frame, Kernel, Value, least, narrowed

TASK_ELEMENTS = 1 << 15  # of the result: some tens of microseconds, so that tasks are worth handing out
GATHERED = 64  # columns of a task that gathers: the rows that follow find what they read in the first cache
GATHER_COST, DIVISION_COST = 2, 3  # of a lane, where a vector load is 1


@dataclass(frozen=True, slots=True)
class Plane:
    """A result as rows of `width` elements: its index at (outer, x), and the value there."""

    height: int
    width: int
    place: Expr
    value: Expr


def lower_map(frame: Frame) -> Kernel:
    plane = best_plane(frame)
    lanes = frame.lanes()
    rows, columns = tile_of(plane.height, plane.width, lanes, TASK_ELEMENTS)
    if gathers(plane, lanes) and plane.height > 1:
        rows, columns = min(plane.height, TASK_ELEMENTS // GATHERED), GATHERED
    across = -(-plane.width // columns)
    builder, printer, task, _ = frame.function()
    first_row, stop_row = span(builder, builder.sdiv(task, index(across)), rows, plane.height)
    first, stop = span(builder, builder.srem(task, index(across)), columns, plane.width)
    exprs = [plane.value, plane.place]
    printer.hoist(exprs, ("outer", "x"))
    with loop(builder, first_row, stop_row, index(1), "outer") as outer, printer.scope():
        printer.bind("outer", narrowed(builder, outer))
        printer.hoist(exprs, ("x",))
        for x, width in along(builder, first, stop, steps_of(lanes), plane.width):
            with x as position, printer.scope():
                printer.bind_lanes("x", narrowed(builder, position), width)
                printer.store(frame.root, plane.place, printer.vector(plane.value))
    builder.ret_void()
    return Kernel(builder.module, -(-plane.height // rows) * across)


def gathers(plane: Plane, lanes: int) -> bool:
    """Whether neighbours along x read elements that are not neighbours."""
    return any(
        expr.op == "load" and stride_of(expr.args[0], "x", lanes) not in (0, 1) for expr in parts_of(plane.value)
    )


def span(builder: ir.IRBuilder, number: Value, size: int, total: int) -> tuple[Value, Value]:
    """The first and the stop of block `number` of blocks of `size` out of `total`."""
    first = builder.mul(number, index(size))
    return first, least(builder, builder.add(first, index(size)), index(total))


def along(
    builder: ir.IRBuilder, first: Value, stop: Value, steps: Sequence[int], total: int
) -> Iterator[tuple[AbstractContextManager[Value], int]]:
    """Loops, with the elements of their turns, that together pass from `first` to `stop`, by the largest of
    `steps` first: a part of a row of `total` elements that begins at a multiple of it.  Loops without a turn are left
    out.  Each is to be entered before the next."""
    left = total
    for step in steps:
        if left >= step:
            end = builder.add(first, builder.and_(builder.sub(stop, first), ir.Constant(I64, -step)))
            yield loop(builder, first, end, index(step), "element" if step == 1 else "vector"), step
            first = end
        left %= step


def steps_of(lanes: int) -> tuple[int, ...]:
    """Whole vectors, then single elements."""
    return tuple(dict.fromkeys((lanes, 1)))


def tile_of(height: int, width: int, lanes: int, elements: int) -> tuple[int, int]:
    """Rows and columns of a task of about so many elements; columns are a multiple of `lanes`."""
    if width >= 2 * elements:
        return 1, max(lanes, elements // lanes * lanes)
    return max(1, min(height, elements // width)), width + -width % lanes


def best_plane(frame: Frame) -> Plane:
    """The folding whose loads and index arithmetic cost least."""
    shape = frame.shape(frame.root)
    planes = [plane_of(frame, split) for split in range(len(shape) + 1) if split == len(shape) or shape[split] != 1]
    return min(planes, key=lambda plane: cost_of(plane, frame.lanes()))


def plane_of(frame: Frame, split: int) -> Plane:
    """The result with its axes from `split` on along x, the others along `outer`; expressions know how far these go."""
    frame = replace(frame, build=Builder())
    shape = frame.shape(frame.root)
    height, width = math.prod(shape[:split]), math.prod(shape[split:])
    where = indices(frame, shape[:split], shape[split:])
    return Plane(height, width, frame.build.ravel(where, shape), frame.elements().at(frame.root, where))


def indices(frame: Frame, outer: Sequence[int], inner: Sequence[int]) -> Index:
    build = frame.build
    rows = build.unravel(build.var("outer", math.prod(outer)), outer)
    return (*rows, *build.unravel(build.var("x", math.prod(inner)), inner))


def parts_of(root: Expr) -> Iterator[Expr]:
    """An expression and all that it is made of, each once."""
    seen, pending = set[int](), [root]
    while pending:
        expr = pending.pop()
        if expr.uid not in seen:
            seen.add(expr.uid)
            pending.extend(expr.args)
            yield expr


def cost_of(plane: Plane, lanes: int) -> float:
    """Estimate how long an element takes, in vector loads of a lane; narrow rows waste lanes."""
    used = lanes if plane.width >= lanes else 1
    total = 0.0
    for expr in parts_of(plane.value):
        if "x" not in expr.free:
            total += 0.0 if "outer" not in expr.free else 1 / plane.width
        elif expr.op == "load":
            total += 1 / used if stride_of(expr.args[0], "x", used) == 1 else GATHER_COST
        elif expr.op in ("index_div", "index_mod"):
            total += DIVISION_COST / used if stride_of(expr, "x", used) is None else 1 / used
        else:
            total += 1 / used
    return total + 2 / plane.width
