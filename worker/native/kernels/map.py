"""Elementwise chains and views: a loop over rows of the result, and vectors along each row.

The result's axes are folded into two: `outer` and, along the lanes, `x`.  Which ones are folded into x is chosen by
what the loads then look like; the bits of an element do not depend on it.  A row is computed in pieces: where padding
or a part of a concatenation ends, another one begins, so that no lane asks where it is.  A transpose is read by
squares, which are transposed in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise

from ...compiler.element_exprs import Elements
from ...compiler.expressions import Builder, Expr, terms_of
from ..cores import transposed
from ..llvm import I64, index, ir, loop
from ..printer import EVEN, Printer, stride_of
from ..target import COSTLY
from ..vectors import REGISTERS
from .frame import Frame, Kernel, Value, least, narrowed

TASK_ELEMENTS = 1 << 15  # of the result: some tens of microseconds, so that tasks are worth handing out
GATHERED = 64  # columns of a task that gathers: the rows that follow find what they read in the first cache
GATHER_COST, DIVISION_COST = 2, 3  # of a lane, where a vector load is 1
PIECES_MAX = 8  # of a row: each has loops of its own


@dataclass(frozen=True, slots=True)
class Piece:
    """Columns `first` to `stop` of all rows: the index at (outer, `along`), and the value; `along` begins at 0."""

    along: str
    first: int
    stop: int
    place: Expr
    value: Expr

    @property
    def width(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Plane:
    """A result as rows of `width` elements."""

    height: int
    width: int
    pieces: tuple[Piece, ...]


def lower_map(frame: Frame) -> Kernel:
    plane = best_plane(frame)
    lanes = frame.lanes()
    widest = max(steps_for(lanes, piece.value)[0] for piece in plane.pieces)
    rows, columns = tile_of(plane.height, plane.width, widest, TASK_ELEMENTS)
    if gathers(plane, lanes) and plane.height > 1:
        rows, columns = min(plane.height, TASK_ELEMENTS // GATHERED), GATHERED
    across = -(-plane.width // columns)
    builder, printer, task, _ = frame.function()
    first_row, stop_row = span(builder, builder.sdiv(task, index(across)), rows, plane.height)
    first, stop = span(builder, builder.srem(task, index(across)), columns, plane.width)
    inner = [piece.along for piece in plane.pieces]
    printer.hoist([expr for piece in plane.pieces for expr in (piece.value, piece.place)], ("outer", *inner))
    turned = turned_loads(frame, plane)
    if turned:
        first_row = _by_squares(frame, printer, plane.pieces[0], turned, (first_row, stop_row), (first, stop))
    with loop(builder, first_row, stop_row, index(1), "outer") as outer, printer.scope():
        printer.bind("outer", narrowed(builder, outer))
        for piece in plane.pieces:
            _compute(frame, printer, piece, (first, stop) if across > 1 else None)
    frame.end(builder)
    return Kernel(builder.module, -(-plane.height // rows) * across)


def _compute(frame: Frame, printer: Printer, piece: Piece, columns: tuple[Value, Value] | None) -> None:
    """A row's piece, or what of it lies in some columns."""
    builder, steps = printer.builder, steps_for(frame.lanes(), piece.value)
    first, stop = index(0), index(piece.width)
    if columns is not None:
        first, stop = (_within(builder, piece, column, steps[0]) for column in columns)
    exprs = [piece.value, piece.place]
    with printer.scope():
        printer.hoist(exprs, (piece.along,))
        for x, width in along(builder, first, stop, steps, piece.width):
            with x as position, printer.scope():
                printer.bind_lanes(piece.along, narrowed(builder, position), width)
                printer.store(frame.root, piece.place, printer.vector(piece.value), frame.non_temporal)


def turned_loads(frame: Frame, plane: Plane) -> list[Expr]:
    """The loads of a transpose: what is beside each other in memory is so along `outer`, and not along x."""
    lanes, (piece, *others) = frame.lanes(), plane.pieces
    if others or min(plane.height, plane.width) < lanes:
        return []
    loads = [expr for expr in parts_of(piece.value) if expr.op == "load" and _fills(frame, expr.attr)]
    beside = [load for load in loads if stride_of(load.args[0], "outer", lanes) == 1]
    return [load for load in beside if stride_of(load.args[0], piece.along, lanes) not in (0, *EVEN)]


def _fills(frame: Frame, node: int) -> bool:
    """Whether a vector register holds as many of a tensor's elements as a vector here has, as they are in memory."""
    return frame.dtype(node) in REGISTERS and frame.itemsize(node) * frame.lanes() == frame.vector_bytes


def _by_squares(
    frame: Frame, printer: Printer, piece: Piece, turned: Sequence[Expr], rows: tuple[Value, Value],
    columns: tuple[Value, Value],
) -> Value:  # fmt: skip
    """Compute whole squares of rows and columns, in which these loads are transposed; the first row that is left."""
    builder, lanes = printer.builder, frame.lanes()
    stop = builder.add(rows[0], builder.and_(builder.sub(rows[1], rows[0]), index(-lanes)))
    with loop(builder, rows[0], stop, index(lanes), "square") as row:
        for x, width in along(builder, *columns, steps_of(lanes), piece.width):
            with x as position:
                squares = [_square(frame, printer, piece, load, (row, position)) for load in turned if width == lanes]
                for at in range(lanes):
                    with printer.scope():
                        printer.bind("outer", narrowed(builder, builder.add(row, index(at))))
                        printer.bind_lanes(piece.along, narrowed(builder, position), width)
                        for load, square in zip(turned, squares, strict=False):  # a single column has none
                            printer.know(load, square[at])
                        printer.store(frame.root, piece.place, printer.vector(piece.value))
    return stop


def _square(frame: Frame, printer: Printer, piece: Piece, load: Expr, corner: tuple[Value, Value]) -> list[Value]:
    """A load's vectors along x for as many rows as lanes: read along `outer`, and transposed."""
    builder, lines, lanes = printer.builder, list[Value](), frame.lanes()
    for at in range(lanes):
        with printer.scope():
            printer.bind(piece.along, narrowed(builder, builder.add(corner[1], index(at))))
            printer.bind_lanes("outer", narrowed(builder, corner[0]), lanes)
            lines.append(printer.vector(load))
    return transposed(builder, lines, frame.itemsize(load.attr))


def _within(builder: ir.IRBuilder, piece: Piece, column: Value, lanes: int) -> Value:
    """A column's place in a piece, at a multiple of `lanes` or at the end of the piece."""
    ahead = builder.sub(column, index(piece.first - (lanes - 1)))
    whole = builder.and_(ahead, index(-lanes))
    inside = builder.select(builder.icmp_signed("<", whole, index(0)), index(0), whole)
    return least(builder, inside, index(piece.width))


def gathers(plane: Plane, lanes: int) -> bool:
    """Whether neighbours along x read elements that are not neighbours."""
    return any(
        expr.op == "load" and stride_of(expr.args[0], piece.along, lanes) not in (0, *EVEN)
        for piece in plane.pieces for expr in parts_of(piece.value)
    )  # fmt: skip


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


def steps_for(lanes: int, value: Expr) -> tuple[int, ...]:
    """Steps of a value: two vectors at a time first where it has long chains of operations, which share their
    constants and do not wait for each other."""
    costly = any(expr.op in COSTLY for expr in parts_of(value))
    return (2 * lanes, *steps_of(lanes)) if costly else steps_of(lanes)


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
    elements = frame.elements()
    whole = piece_of(frame, elements, split, 0, width)
    pieces, pending = list[Piece](), [whole]
    while pending and len(pieces) + len(pending) <= PIECES_MAX:
        piece = pending.pop()
        cuts = sorted({piece.first, *edges_of(piece), piece.stop})
        if len(cuts) == 2:
            pieces.append(piece)
        else:
            pending += [piece_of(frame, elements, split, *ends) for ends in pairwise(cuts)][::-1]
    return Plane(height, width, (whole,) if pending else tuple(pieces))


def piece_of(frame: Frame, elements: Elements, split: int, first: int, stop: int) -> Piece:
    build, shape = frame.build, frame.shape(frame.root)
    along = f"x{first}:{stop}"
    x = build.sum(build.var(along, stop - first), build.number(first))
    rows = build.unravel(build.var("outer", math.prod(shape[:split])), shape[:split])
    where = (*rows, *build.unravel(x, shape[split:]))
    return Piece(along, first, stop, build.ravel(where, shape), elements.at(frame.root, where))


def edges_of(piece: Piece) -> Iterator[int]:
    """The columns within a piece at which a condition changes that depends on nothing else."""
    for expr in parts_of(piece.value):
        if expr.op == "inside":
            const, terms = terms_of(expr.args[0])
            if [atom.op for atom in terms] == ["var"] and expr.free == {piece.along}:
                (factor,) = terms.values()
                edges = [-((const - edge) // factor) for edge in expr.attr] if factor > 0 else []
                yield from (piece.first + edge for edge in edges if 0 < edge < piece.width)


def parts_of(root: Expr) -> Iterator[Expr]:
    """An expression and all that it is made of, each once."""
    seen, pending = set[int](), [root]
    while pending:
        expr = pending.pop()
        if expr.uid not in seen:
            seen.add(expr.uid)
            pending.extend(expr.args)
            yield expr


def sliced(frame: Frame, roots: Iterable[Expr], variable: Expr) -> tuple[int, ...]:
    """The places in `frame.reads` of tensors of which each value of the variable has a part of its own: equal parts,
    one behind the other."""
    loads = [expr for root in roots for expr in parts_of(root) if expr.op == "load" and expr.attr in frame.reads]
    others = {load.attr for load in loads if not in_order(frame, load.attr, load.args[0], variable)}
    return tuple([place for place, node in enumerate(frame.reads) if node not in others])


def in_order(frame: Frame, node: int, place: Expr, variable: Expr) -> bool:
    """Whether a place in a tensor lies in that one of its equal parts whose number is the variable's value."""
    const, terms = terms_of(place)
    part = terms.pop(variable, 0)
    rest = frame.build.affine(const, terms)
    inside = variable not in parts_of(rest) and 0 <= rest.lo <= rest.hi < part
    return inside and part * (variable.hi + 1) == math.prod(frame.shape(node))


def cost_of(plane: Plane, lanes: int) -> float:
    """Estimate how long an element takes, in vector loads of a lane; narrow pieces waste lanes."""
    return sum(_cost_of_piece(piece, lanes) * piece.width for piece in plane.pieces) / plane.width + 2 / plane.width


def _cost_of_piece(piece: Piece, lanes: int) -> float:
    used = lanes if piece.width >= lanes else 1
    total = 0.0
    for expr in parts_of(piece.value):
        stride = stride_of(expr.args[0] if expr.op == "load" else expr, piece.along, used)
        if piece.along not in expr.free:
            total += 0.0 if "outer" not in expr.free else 1 / piece.width
        elif expr.op == "load":
            total += abs(stride) / used if stride in EVEN else GATHER_COST
        elif expr.op in ("index_div", "index_mod"):
            total += DIVISION_COST / used if stride is None else 1 / used
        else:
            total += 1 / used
    return total
