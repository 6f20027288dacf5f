"""Reductions, and what is fused around them: softmax, layer_norm, sums of expressions.

A row is one position of the kept axes, a column one of the reduced axes.  The kernel sweeps the columns once per batch
of reductions that do not need each other, then once more if the result has columns too.  There is one invocation per
row, or one workgroup per row with a tree in workgroup memory (barriers are dear on software adapters, uncoalesced rows
on real ones).  The order of summation depends on shape and form only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wire.ir.dtypes import dtype_named

from ...compiler.constants import identity_of
from ...compiler.element_exprs import Anchor, Index, register
from ...compiler.expressions import Expr
from ...compiler.fuse import row_index, row_shape
from ..kernel_ir import (
    Assign,
    Barrier,
    Declare,
    Kernel,
    Leave,
    Let,
    Loop,
    Shared,
    Statement,
    Store,
    StoreShared,
    When,
)
from .frame import Frame
from .row_forms import Rows, choose

COMBINE = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min"}


def lower_row(frame: Frame) -> list[Kernel]:
    """One kernel; the reductions' input has at least one element."""
    return [_Row(frame).kernel()]


@dataclass(frozen=True, slots=True)
class _State:
    """One accumulator of one reduction in one lane."""

    name: str
    dtype: str
    first: Expr


class _Row:
    def __init__(self, frame: Frame) -> None:
        self.frame, self.build = frame, frame.build
        self.anchors = frame.group.anchors
        self.shape, self.kept, self.gone = row_shape(frame.graph, self.anchors[0])
        self.rows = math.prod(self.shape[axis] for axis in self.kept)
        self.columns = math.prod(self.shape[axis] for axis in self.gone)
        self.full = frame.shape(frame.root) == self.shape and frame.root not in self.anchors and self.columns > 1
        indexed = any(self.op(anchor) == "argmax" for anchor in self.anchors)
        self.lanes = 4 if self.columns % 4 == 0 and self.columns >= 16 and not indexed else 1
        self.steps = self.columns // self.lanes
        form, self.choice = choose(self._sizes(), frame.profile)
        self.by_thread, self.invocations = form.each, form.invocations
        self.shared: dict[str, Shared] = {}
        self.column = self.build.var("c", self.steps)
        anchors: dict[int, Anchor] = {anchor: self._reader(anchor) for anchor in self.anchors}
        self.elements = frame.elements(anchors)

    def op(self, anchor: int) -> str:
        return self.frame.graph.nodes[anchor].op

    def kernel(self) -> Kernel:
        frame = self.frame
        if self.by_thread:
            self.row, groups, _, head = frame.threads(self.rows, "row", self.invocations)
        else:
            groups = self.rows
            self.row = self.build.var("row", self.rows)
            group = self.build.var("group", self.rows)
            head = (Let(self.row, group),)
            if groups > frame.profile.limits.groups_per_dimension:
                head += (Leave(self.build.make("ge", [self.row, self.build.number(self.rows)], "bool")),)
        body = (*head, *self._reductions(), *self._result())
        shared = tuple(self.shared.values())
        return Kernel("row", groups, self.invocations, body, frame.dtypes, shared, choice=self.choice)

    def _sizes(self) -> Rows:
        operand = self.frame.graph.nodes[self.anchors[0]].inputs[0]
        totals = sum(2 if self.op(anchor) == "argmax" else 1 for anchor in self.anchors)
        across = len(self.shape) - 1 not in self.gone
        return Rows(
            self.frame.dtype(operand), self.rows, self.columns, self.steps, len(self.anchors) + self.full, totals,
            across, self.full,
        )  # fmt: skip

    # -- reductions ---------------------------------------------------------------------------------------

    def _reductions(self) -> list[Statement]:
        body: list[Statement] = []
        for batch in self._batches():
            body += self._sweep(batch)
        return body

    def _batches(self) -> list[list[int]]:
        """The reductions in order, split where one needs the result of an earlier one of its batch."""
        batches: list[list[int]] = []
        for anchor in self.anchors:
            needs = frozenset[str]().union(*(value.free for value in self._inputs(anchor)))
            if not batches or needs & {self._name(other) for other in batches[-1]}:
                batches.append([])
            batches[-1].append(anchor)
        return batches

    def _sweep(self, batch: list[int]) -> list[Statement]:
        states = {(anchor, lane): self._states(anchor, lane) for anchor in batch for lane in range(self.lanes)}
        body: list[Statement] = [Declare(state.name, state.first) for group in states.values() for state in group]
        inner: list[Statement] = []
        for anchor in batch:
            for lane, value in enumerate(self._inputs(anchor)):
                inner += self._take(anchor, states[anchor, lane], [value, self._at(lane)])
        body.append(self._loop(inner))
        for anchor in batch:
            for lane in range(1, self.lanes):
                others = [self._read(state) for state in states[anchor, lane]]
                body += self._take(anchor, states[anchor, 0], others, True)
        if not self.by_thread:
            body += self._across([(anchor, states[anchor, 0]) for anchor in batch])
        body += [Let(self._value(anchor), self._final(anchor, states[anchor, 0])) for anchor in batch]
        if not self.by_thread:
            body.append(Barrier())
        return body

    def _loop(self, inner: list[Statement]) -> Loop:
        zero = self.build.number(0)
        start, step = (zero, 1) if self.by_thread else (self.frame.lane(self.invocations), self.invocations)
        return Loop(self.column, start, self.steps, step, tuple(inner))

    def _inputs(self, anchor: int) -> list[Expr]:
        """The reduced expression in each lane; bool as u32."""
        operand = self.frame.graph.nodes[anchor].inputs[0]
        values = [self.elements.at(operand, self._index(lane)) for lane in range(self.lanes)]
        if self.op(anchor) == "argmax":
            return [self.build.make("rank", [value], "u32") for value in values]
        if values[0].dtype == "bool":
            return [self.build.make("cast", [value], "u32", "bool") for value in values]
        return [self.elements.apart(value) for value in values] if values[0].dtype == "f32" else values

    def _states(self, anchor: int, lane: int) -> list[_State]:
        if self.op(anchor) == "argmax":
            zero, none = self.build.number(0), self.build.number(self.columns)
            return [_State(f"k{anchor}", "u32", zero), _State(f"p{anchor}", "u32", none)]
        dtype = self.frame.dtype(anchor)
        value = identity_of(self.op(anchor), self.frame.graph.types[anchor].dtype)
        held = register(dtype) if dtype != "bool" else "u32"
        bits = int(np.asarray(value).astype(dtype_named(held).numpy).view(np.uint32))
        return [_State(f"a{anchor}_{lane}", held, self.build.literal(bits, held))]

    def _take(self, anchor: int, states: list[_State], values: list[Expr], merged: bool = False) -> list[Statement]:
        """Statements that combine values into accumulators."""
        if self.op(anchor) == "argmax":
            return self._take_best(f"w{anchor}{'m' if merged else ''}", states, values)
        (state,) = states
        combined = self.build.make(COMBINE[self.op(anchor)], [self._read(state), values[0]], state.dtype)
        return [Assign(state.name, combined)]

    def _take_best(self, name: str, states: list[_State], values: list[Expr]) -> list[Statement]:
        rank, place = states
        better = self.build.make("better", [values[0], self._read(rank), values[1], self._read(place)], "bool")
        won = self.build.make("var", (), "bool", name)
        return [
            Let(won, better),
            *(
                Assign(state.name, self.build.make("select", [won, value, self._read(state)], "u32"))
                for state, value in zip(states, values, strict=True)
            ),
        ]

    def _across(self, results: list[tuple[int, list[_State]]]) -> list[Statement]:
        """The tree over the workgroup; leaves every accumulator's total in its variable."""
        lane = self.frame.lane(self.invocations)
        states = [state for _, group in results for state in group]
        for state in states:
            self.shared[f"s_{state.name}"] = Shared(f"s_{state.name}", state.dtype, self.invocations)
        keep: list[Statement] = [StoreShared(f"s_{state.name}", lane, self._read(state)) for state in states]
        body: list[Statement] = [*keep, Barrier()]
        half = self.invocations // 2
        while half:
            other = self.build.sum(lane, self.build.number(half))
            inner: list[Statement] = []
            for anchor, group in results:
                fetched = [self._fetch(state, other, inner, half) for state in group]
                inner += self._take(anchor, group, fetched, True)
            inner += keep
            body += [When(self.build.make("lt", [lane, self.build.number(half)], "bool"), tuple(inner)), Barrier()]
            half //= 2
        first = self.build.number(0)
        body += [Assign(state.name, self._from_shared(state, first)) for state in states]
        return body

    def _fetch(self, state: _State, where: Expr, body: list[Statement], half: int) -> Expr:
        name = self.build.make("var", (), state.dtype, f"o_{state.name}_{half}")
        body.append(Let(name, self._from_shared(state, where)))
        return name

    def _from_shared(self, state: _State, where: Expr) -> Expr:
        return self.build.make("shared", [where], state.dtype, f"s_{state.name}")

    def _read(self, state: _State) -> Expr:
        return self.build.mutable(state.name, state.dtype)

    def _final(self, anchor: int, states: list[_State]) -> Expr:
        value, dtype = self._read(states[-1]), self.frame.dtype(anchor)
        if dtype == "bool" or self.op(anchor) == "argmax":
            return self.build.make("cast", [value], dtype, "u32")
        return self.build.make("to_f16", [value], "f32") if dtype == "f16" else value

    def _name(self, anchor: int) -> str:
        return f"r{anchor}"

    def _value(self, anchor: int) -> Expr:
        return self.build.make("var", (), register(self.frame.dtype(anchor)), self._name(anchor))

    def _reader(self, anchor: int) -> Anchor:
        return lambda index: self._value(anchor)

    # -- positions and the result -------------------------------------------------------------------------

    def _at(self, lane: int) -> Expr:
        return self.build.sum(self.build.scaled(self.column, self.lanes), self.build.number(lane))

    def _index(self, lane: int) -> Index:
        row = self.build.var("row", self.rows)
        return row_index(self.build, self.shape, self.kept, self.gone, row, self._at(lane))

    def _result(self) -> list[Statement]:
        root = self.frame.root
        if self.full:
            return [self._loop(self._stores())]
        if root in self.anchors:
            value = self._value(root)
        else:
            value = self.elements.at(root, self.build.unravel(self.row, self.frame.shape(root)))
        store = Store(root, self.row, (value,))
        if self.by_thread:
            return [store]
        lane = self.frame.lane(self.invocations)
        return [When(self.build.make("lt", [lane, self.build.number(1)], "bool"), (store,))]

    def _stores(self) -> list[Statement]:
        root = self.frame.root
        where = [self._index(lane) for lane in range(self.lanes)]
        values = [self.elements.at(root, index) for index in where]
        places = [self.build.ravel(index, self.shape) for index in where]
        quad = self.frame.contiguous(places) if self.lanes == 4 else None
        if quad is not None:
            return [Store(root, quad, tuple(values))]
        return [Store(root, place, (value,)) for place, value in zip(places, values, strict=True)]
