"""scatter, always in row-major order of the indices, so duplicates give the same result every time.

Two forms.  Few indices and few columns: one invocation per result element looks at every index (`scan`).  Otherwise the
data is copied and one invocation per (outer, inner) position walks the indices and updates in place (`walk`), in
several dispatches where the indices exceed what one invocation may loop over.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...compiler.element_exprs import Index
from ...compiler.expressions import Expr
from ..kernel_ir import Assign, Declare, Kernel, Let, Loop, Statement, Store, When
from .frame import Frame

SCAN_INDICES_MAX = 1_024
SCAN_COLUMNS_MAX = 256
WALK_STEP = 32_768  # indices of one dispatch
COMBINE = {"add": "add", "max": "max", "min": "min"}


def lower_scatter(frame: Frame) -> list[Kernel]:
    """One kernel (scan) or a copy and its walks; there is at least one update."""
    scatter = _Scatter(frame)
    if scatter.count <= SCAN_INDICES_MAX and scatter.columns <= SCAN_COLUMNS_MAX:
        return [scatter.scan()]
    starts = range(0, scatter.count, WALK_STEP)
    return [scatter.copy(), *(_Scatter(Frame(frame.graph, frame.group, frame.profile)).walk(start) for start in starts)]


class _Scatter:
    def __init__(self, frame: Frame) -> None:
        self.frame, self.build = frame, frame.build
        node = frame.graph.nodes[frame.root]
        self.data, self.indices, self.updates = node.inputs
        self.axis, self.mode = node.attrs["axis"], node.attrs["mode"]
        self.shape = frame.shape(frame.root)
        self.index_shape = frame.shape(self.indices)
        self.count = math.prod(self.index_shape)
        self.columns = math.prod(self.shape) // self.shape[self.axis]
        self.elements = frame.elements()
        self.at = self.build.var("at", self.count)

    def scan(self) -> Kernel:
        build = self.build
        item, groups, invocations, head = self.frame.threads(self.frame.size, "i")
        index = build.unravel(item, self.shape)
        first = self.elements.at(self.data, index)
        total = build.mutable("total", first.dtype)
        hit = build.make("eq", [self._target(), index[self.axis]], "bool")
        take = When(hit, (Assign("total", self._combined(total, index)),))
        loop = Loop(self.at, build.number(0), self.count, 1, (take,))
        body = (*head, Declare("total", first), loop, Store(self.frame.root, item, (total,)))
        return Kernel("scatter_scan", groups, invocations, body, self.frame.dtypes)

    def copy(self) -> Kernel:
        build = self.build
        item, groups, invocations, head = self.frame.threads(self.frame.size, "i")
        value = self.elements.at(self.data, build.unravel(item, self.shape))
        body = (*head, Store(self.frame.root, item, (value,)))
        return Kernel("scatter_copy", groups, invocations, body, self.frame.dtypes)

    def walk(self, start: int) -> Kernel:
        build, frame = self.build, self.frame
        item, groups, invocations, head = frame.threads(self.columns, "column")
        others = [dim for axis, dim in enumerate(self.shape) if axis != self.axis]
        place = build.unravel(item, others)
        target = build.var("chosen", self.shape[self.axis])
        index = (*place[: self.axis], target, *place[self.axis :])
        where = build.ravel(index, self.shape)
        own = build.make("read", [where], self._update(index).dtype, frame.root)
        store = Store(frame.root, where, (self._combined(own, index),))
        inside = build.make("inside", [self._target()], "bool", (0, self.shape[self.axis]))
        take: tuple[Statement, ...] = (Let(target, self._target()), store)
        stop = min(start + WALK_STEP, self.count)
        loop = Loop(self.at, build.number(start), stop, 1, (When(inside, take),))
        kernel = Kernel("scatter_walk", groups, invocations, (*head, loop), frame.dtypes)
        return replace(kernel, in_place=frozenset([frame.root]))

    def _target(self) -> Expr:
        """The index value as u32; a negative one becomes huge, so out of range either way."""
        value = self.elements.at(self.indices, self.build.unravel(self.at, self.index_shape))
        return value if value.dtype == "u32" else self.build.make("cast", [value], "u32", "i32")

    def _update(self, index: Index) -> Expr:
        inner = self.build.unravel(self.at, self.index_shape)
        return self.elements.at(self.updates, (*index[: self.axis], *inner, *index[self.axis + 1 :]))

    def _combined(self, own: Expr, index: Index) -> Expr:
        value = self._update(index)
        if self.mode == "set":
            return value
        return self.elements.scalar(COMBINE[self.mode], [own, value], self.frame.dtype(self.frame.root))
