"""Copies of an image, from which a product of its windows reads the rows of B as they lie.

For each channel and each tap across, a copy has the elements that this tap finds in the windows of some rows of the
result, zeros of the padding among them, one row behind the other.  A tap further down finds its elements in the same
copy, some rows later.  So every row of B is contiguous: an element is copied once per tap across, where packed panels
would hold it once per tap, and no padded image is made.

A task's windows are a box: some whole rows of the result, or a part of one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wire.cached_property import cached_property
from wire.ir.types import Attrs

from ...compiler.element_exprs import Elements
from ...compiler.expressions import Expr
from ..cores import RUN
from ..llvm import index, ir, loop
from ..printer import EVEN, Printer
from ..vectors import Vectors
from .frame import Frame, Value, largest, least, narrowed
from .map import along, parts_of
from .taps import Axis

ACROSS_MAX = 16  # taps across: each has instructions of its own
ELEMENTS = 1 << 17  # of a task's copies, which are for half a second cache
COLUMNS, ROWS = 1024, 4  # of a box that pay for packing the weights, and for copying the rows above and below it
WIDTH_MAX, WIDTH_MIN = 1024, 64  # of rows that are not cut, and of the parts of others
BEHIND = 64  # elements behind the last one of all copies that vectors reach
STEPS = 4  # elements of a short vector, at the end of a row that is cut
AT_ONCE = 8  # vectors of a row that are copied without a loop


@dataclass(frozen=True, slots=True)
class Box:
    """The windows of a task: `tall` rows of `wide`."""

    tall: int
    wide: int

    @property
    def columns(self) -> int:
        return self.tall * self.wide


@dataclass(frozen=True)
class Sizes:
    """How the windows of a conv lie in x, and what copies for a run of their product hold."""

    down: Axis
    across: Axis
    height: int
    width: int
    channels: int

    @classmethod
    def of(cls, attrs: Attrs, x: Sequence[int], weights: Sequence[int], result: Sequence[int]) -> Sizes:
        rows = zip(x[2:], attrs["low"], weights[2:], attrs["stride"], attrs["rhs_dilation"], strict=True)
        down, across = [Axis(1, 0, 1, 1, 1), *(Axis(*row) for row in rows)][-2:]
        height, width = (1, *result[2:])[-2:]
        return cls(down, across, height, width, weights[1])

    @property
    def taps(self) -> int:
        """The elements of a window in a channel."""
        return self.down.taps * self.across.taps

    @property
    def length(self) -> int:
        return self.channels * self.taps

    def channels_of(self, k: int) -> range:
        """The channels of the run that begins at `k`."""
        return range(k // self.taps, (min(k + RUN, self.length) - 1) // self.taps + 1)

    @cached_property
    def slots(self) -> int:
        """The channels that a run has at most."""
        return max(len(self.channels_of(k)) for k in range(0, self.length, RUN))

    @property
    def copies(self) -> int:
        """The copies of a channel: of rows that lie a stride apart, for each tap across."""
        return self.down.stride * self.across.taps

    def plane(self, box: Box) -> int:
        """The elements of a copy: an odd number of cache lines of 16, so that copies begin in different sets."""
        return (-(-self.down.held(box.tall) * box.wide // 16) | 1) * 16

    def held(self, box: Box) -> int:
        """The elements of all copies of a run."""
        return self.slots * self.copies * self.plane(box)

    def copied(self, box: Box) -> int:
        """The elements that a task copies in all."""
        return self.channels * self.copies * self.plane(box)

    @property
    def padded(self) -> bool:
        """Whether windows reach out of x."""
        ends = ((self.down, self.height), (self.across, self.width))
        return any(axis.low or axis.read(windows) > axis.low + axis.size for axis, windows in ends)

    @cached_property
    def boxes(self) -> list[Box]:
        """The boxes that a task may have, the largest first."""
        if self.width <= WIDTH_MAX and self.held(Box(1, self.width)) <= ELEMENTS:
            tallest = min(self.height, max(COLUMNS // self.width, ROWS))
            heights = dict.fromkeys(-(-self.height // -(-self.height // tall)) for tall in range(tallest, 0, -1))
            boxes = [Box(tall, self.width) for tall in heights]
        else:
            widths = range(min(self.width, COLUMNS), WIDTH_MIN - 1, -1)
            boxes = [Box(1, wide) for wide in widths if self.width % wide == 0 or (self.height == 1 and wide % 64 == 0)]
        return [box for box in boxes if self.held(box) <= ELEMENTS]


def is_by_copies(attrs: Attrs, x: Sequence[int], weights: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a conv, with its padding, is a product that reads copies."""
    if len(x) not in (3, 4) or math.prod(weights[1:]) == 0 or math.prod(weights[2:]) == 1 or weights[-1] > ACROSS_MAX:
        return False
    if any(spread > 1 for spread in attrs["lhs_dilation"]) or min(*attrs["low"], *attrs["high"]) < 0:
        return False
    return attrs["stride"][-1] in EVEN and bool(Sizes.of(attrs, x, weights, result).boxes)


@dataclass(eq=False)
class Copies:
    """The copies of one kernel: `batch` counts samples and, within each, groups of channels."""

    frame: Frame
    elements: Elements
    node: int  # x
    sizes: Sizes
    box: Box
    batch: Expr
    groups: int

    @property
    def bytes(self) -> int:
        """The bytes of scratch memory for the copies of a run, a multiple of 64."""
        return (self.sizes.held(self.box) + BEHIND) * self.frame.graph.types[self.node].dtype.itemsize

    def line(self, builder: ir.IRBuilder, k: Value, first: Value) -> Value:
        """The place where row `k` of B begins in the copies of its run, whose first channel is `first`."""
        down, across = self.sizes.down, index(self.sizes.across.taps)
        tap = builder.urem(k, index(self.sizes.taps))
        reach = builder.mul(builder.udiv(tap, across), index(down.reach))
        channel = builder.mul(builder.sub(builder.udiv(k, index(self.sizes.taps)), first), index(down.stride))
        copy = builder.add(channel, builder.urem(reach, index(down.stride)))
        copy = builder.add(builder.mul(copy, across), builder.urem(tap, across))
        row = builder.mul(builder.udiv(reach, index(down.stride)), index(self.box.wide))
        return builder.add(builder.mul(copy, index(self.sizes.plane(self.box))), row)

    def clear(self, printer: Printer, start: Value) -> None:
        """Zeros wherever no element of x comes to lie: those are the same places in all runs."""
        builder, v = printer.builder, Vectors(printer.builder, self.frame.lanes())
        zeros = v.constant(0.0, start.type.pointee)
        if self.sizes.padded:
            with loop(builder, index(0), index(self.sizes.held(self.box)), index(v.lanes), "clear") as at:
                v.store(zeros, builder.gep(start, [at]))

    def fill(
        self, printer: Printer, start: Value, columns: tuple[Value, Value], channels: tuple[Value, Value]
    ) -> None:  # fmt: skip
        """Copy what the windows `columns` read of some channels."""
        builder, sizes, box = printer.builder, self.sizes, self.box
        down, width = sizes.down, index(sizes.width)
        first_row = builder.sdiv(columns[0], width)
        stop_row = builder.add(builder.sdiv(builder.sub(columns[1], index(1)), width), index(1))
        first_x = index(0) if box.wide == sizes.width else builder.srem(columns[0], width)
        stop_x = width if box.wide == sizes.width else builder.add(first_x, builder.sub(*columns[::-1]))
        begin = builder.sub(builder.mul(first_row, index(down.stride)), index(down.low))
        end = builder.add(
            begin,
            builder.add(builder.mul(builder.sub(stop_row, first_row), index(down.stride)),
                        index(down.read(1) - down.stride)),
        )  # fmt: skip
        first_y, stop_y = largest(builder, begin, index(0)), least(builder, end, index(down.size))
        values = list(self._lines_of_taps())
        printer.hoist([value for *_, value in values], ("channel", "y", *(name for _, name, *_ in values)))
        with loop(builder, *channels, index(1), "channel") as channel, printer.scope():
            printer.bind("channel", narrowed(builder, channel))
            slot = builder.mul(builder.sub(channel, channels[0]), index(sizes.copies))
            with loop(builder, first_y, stop_y, index(1), "y") as y, printer.scope():
                printer.bind("y", narrowed(builder, y))
                local = builder.sub(y, begin)
                line = builder.mul(builder.srem(local, index(down.stride)), index(sizes.across.taps))
                row = builder.mul(builder.sdiv(local, index(down.stride)), index(box.wide))
                copy = builder.mul(builder.add(slot, line), index(sizes.plane(box)))
                to = builder.sub(builder.add(copy, row), first_x)
                for tap, name, first, stop, value in values:
                    place = builder.gep(start, [builder.add(to, index(tap * sizes.plane(box)))])
                    if box.wide == sizes.width and _is_free(value, name):
                        self._whole_row(printer, name, first, stop - first, value, place)
                        continue
                    ends = largest(builder, first_x, index(first)), least(builder, stop_x, index(stop))
                    self._row(printer, name, first, ends, value, place)

    def _whole_row(self, printer: Printer, name: str, first: int, count: int, value: Expr, to: Value) -> None:
        """A row of a copy that is not cut: whole vectors alone, the last of which begins within the one before."""
        builder = printer.builder
        width = min(self.frame.lanes(), 1 << (count.bit_length() - 1))
        printer.hoist([value], (name,))

        def copied(position: Value) -> None:
            with printer.scope():
                printer.bind_lanes(name, narrowed(builder, position), width)
                place = builder.gep(to, [builder.add(position, index(first))])
                Vectors(builder, width).store(printer.vector(value), place)

        whole = count - count % width
        if whole <= AT_ONCE * width:
            for at in range(0, whole, width):
                copied(index(at))
        else:
            with loop(builder, index(0), index(whole), index(width), "vector") as position:
                copied(position)
        if whole < count:
            copied(index(count - width))

    def _row(
        self, printer: Printer, name: str, first: int, ends: tuple[Value, Value], value: Expr, to: Value
    ) -> None:  # fmt: skip
        """A row of a copy: `value` counts from the window `first`."""
        builder, lanes = printer.builder, self.frame.lanes()
        steps = tuple(dict.fromkeys((lanes, min(STEPS, lanes), 1)))
        printer.hoist([value], (name,))
        begin, end = (builder.sub(at, index(first)) for at in ends)
        end = largest(builder, begin, end)
        for turns, width in along(builder, begin, end, steps, 2 * lanes - 1):
            with turns as position, printer.scope():
                printer.bind_lanes(name, narrowed(builder, position), width)
                place = builder.gep(to, [builder.add(position, index(first))])
                Vectors(builder, width).store(printer.vector(value), place)

    def _lines_of_taps(self) -> Iterator[tuple[int, str, int, int, Expr]]:
        """The taps across that find any elements of x: for each, a variable, the windows from which to which it finds
        one, and the element of the window that is so many behind the first of these."""
        build, across = self.frame.build, self.sizes.across
        for tap in range(across.taps):
            shift = tap * across.reach - across.low
            first = max(0, -(shift // across.stride))
            stop = min(self.sizes.width, (across.size - 1 - shift) // across.stride + 1)
            if first < stop:
                name = f"x{tap}"
                x = build.scaled(build.var(name, stop - first), across.stride)
                x = build.sum(x, build.number(first * across.stride + shift))
                yield tap, name, first, stop, self._element(x)

    def _element(self, x: Expr) -> Expr:
        build, sizes = self.frame.build, self.sizes
        group = build.mod(self.batch, self.groups)
        channel = build.sum(build.scaled(group, sizes.channels), build.var("channel", sizes.channels))
        rank = len(self.frame.shape(self.node))
        where = (build.var("y", sizes.down.size), x)[4 - rank :]
        return self.elements.at(self.node, (build.div(self.batch, self.groups), channel, *where))


def _is_free(value: Expr, name: str) -> bool:
    """Whether vectors along a variable may begin anywhere: a quotient or a remainder asks for a multiple of lanes."""
    return not any(part.op in ("index_div", "index_mod") and name in part.free for part in parts_of(value))
