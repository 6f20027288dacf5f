"""Expressions -> LLVM: a value that a whole vector shares is a scalar, computed in the outermost loop that knows it.

A kernel's loops name variables of expressions (`bind`).  One of them, `along`, runs along the lanes of vectors: in lane
i it is its value in lane 0 plus i.  A load whose index has stride 1 there is one vector load, of stride 0 a scalar one,
of a small stride some vector loads whose elements are picked, and any other is a gather.  No loop changes what an
expression reads, so the innermost loop has only what needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..compiler.expressions import Expr, terms_of
from .llvm import I32, I64, ir, undefined
from .scalars import computed, from_stored, literal, to_stored
from .vectors import Vectors

Value = Any
EVEN = (1, 2, 3, 4, -1)  # strides of loads that are made of vector loads; of larger ones too little is of use


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory: a typed pointer to its first element, and its dtype."""

    pointer: Value
    dtype: str


def stride_of(index: Expr, along: str, lanes: int) -> int | None:
    """The growth of an index from lane to lane, if `along` starts at a multiple of `lanes`; None if it is uneven."""
    if along not in index.free:
        return 0
    if index.op == "var":
        return 1
    if index.op == "affine":
        strides = [stride_of(atom, along, lanes) for atom in index.args]
        known = [stride for stride in strides if stride is not None]
        if len(known) < len(strides):
            return None
        return sum(stride * int(factor) for stride, factor in zip(known, index.attr[1:], strict=True))
    if index.op in ("index_div", "index_mod"):
        if _in_step(index.args[0], along, lanes) and index.attr % lanes == 0:
            return 0 if index.op == "index_div" else 1
        return 0 if stride_of(index.args[0], along, lanes) == 0 else None
    return None


def _in_step(index: Expr, along: str, lanes: int) -> bool:
    """Whether an index is `along` plus a multiple of `lanes`, or that within a multiple of `lanes`."""
    const, terms = terms_of(index)
    mine = [atom for atom in terms if along in atom.free]
    if len(mine) != 1 or terms[mine[0]] != 1 or const % lanes:
        return False
    if any(factor % lanes for atom, factor in terms.items() if atom is not mine[0]):
        return False
    (atom,) = mine
    within = atom.op == "index_mod" and atom.attr % lanes == 0 and _in_step(atom.args[0], along, lanes)
    return atom.op == "var" or within


class Printer:
    """Prints the expressions of one function; `buffers` are the tensors that it reads and writes, by number.

    `scalef` says whether the processor has that instruction, for `Vectors`.
    """

    def __init__(self, builder: ir.IRBuilder, buffers: Mapping[int, Buffer], scalef: bool = False) -> None:
        self.builder = builder
        self.buffers = buffers
        self._scalef = scalef
        self._scopes: list[dict[tuple[int, str], Value]] = [{}]
        self._bound: dict[str, Value] = {}
        self._along = ""
        self._lanes = 1
        self.kept: dict[int, Expr] = {}  # expressions that lie in memory by now, as loads

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is computed here is forgotten at the end: it is in the body of a loop."""
        self._scopes.append({})
        bound, along, lanes = dict(self._bound), self._along, self._lanes
        try:
            yield
        finally:
            self._scopes.pop()
            self._bound, self._along, self._lanes = bound, along, lanes

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Variables have other values here: nothing that was computed is known."""
        scopes, self._scopes = self._scopes, [{}]
        bound = dict(self._bound)
        try:
            yield
        finally:
            self._scopes, self._bound = scopes, bound

    def bind(self, name: str, value: Value) -> None:
        """Give a variable its value, of any register's type; an index is 32 bits."""
        self._bound[name] = value

    def bind_lanes(self, name: str, first: Value, lanes: int) -> None:
        """Run a variable along `lanes` lanes from `first`, which is 32 bits."""
        self._bound[name], self._along, self._lanes = first, name, lanes

    def know(self, expr: Expr, value: Value) -> None:
        """Take a vector for an expression's, within this scope."""
        self._remember(expr, "vector", value)

    @property
    def vectors(self) -> Vectors:
        return Vectors(self.builder, self._lanes, self._scalef)

    def hoist(self, roots: Iterable[Expr], inner: Iterable[str]) -> None:
        """Compute here what does not change with the variables `inner`, which loops inside of this place have."""
        names, seen, pending = frozenset(inner), set[int](), list(roots)
        while pending:
            expr = pending.pop()
            if expr.uid in seen:
                continue
            seen.add(expr.uid)
            if expr.free & names:
                pending.extend(expr.args)
            else:
                self.scalar(expr)

    def vector(self, expr: Expr) -> Value:
        """The value in every lane, a vector (with one lane, a scalar)."""
        expr = self.kept.get(expr.uid, expr)
        if self._lanes == 1 or self._along not in expr.free:
            return self._splat(expr)
        known = self._known(expr, "vector")
        return known if known is not None else self._walk(expr, "vector")

    def scalar(self, expr: Expr) -> Value:
        """The value in lane 0."""
        expr = self.kept.get(expr.uid, expr)
        known = self._known(expr, "scalar")
        return known if known is not None else self._walk(expr, "scalar")

    def store(self, buffer: int, index: Expr, value: Value, non_temporal: bool = False) -> None:
        """Store what `vector` gave at an index.  A non-temporal store is for a buffer that begins at a cache line, and
        lanes that begin at multiples of their number; where the index does not, it is a usual one."""
        held = self.buffers[buffer]
        stored = to_stored(self.vectors, value, held.dtype)
        if self._lanes == 1 or stride_of(index, self._along, self._lanes) == 1:
            lines_up = self._lanes > 1 and _in_step(index, self._along, self._lanes)
            place = self._place(held, self.scalar(index))
            self.vectors.store(stored, place, non_temporal=non_temporal and lines_up)
            return
        places = self.vector(index)
        for lane in range(self._lanes):
            single = Vectors(self.builder, 1)
            single.store(self.vectors.lane(stored, lane), self._place(held, self.vectors.lane(places, lane)))

    # -- expressions --------------------------------------------------------------------------------------

    def _known(self, expr: Expr, mode: str) -> Value | None:
        key = (expr.uid, mode)
        return next((scope[key] for scope in reversed(self._scopes) if key in scope), None)

    def _remember(self, expr: Expr, mode: str, value: Value) -> Value:
        self._scopes[-1][expr.uid, mode] = value
        return value

    def _walk(self, expr: Expr, mode: str) -> Value:
        """Compute operands first, without recursion: chains are long."""
        expr = self.kept.get(expr.uid, expr)
        stack = [(expr, mode, False)]
        while stack:
            current, how, ready = stack.pop()
            current = self.kept.get(current.uid, current)
            if how == "vector" and (self._lanes == 1 or self._along not in current.free):
                how = "scalar"
            if self._known(current, how) is not None:
                continue
            if ready:
                self._remember(current, how, self._computed(current, how))
                continue
            stack.append((current, how, True))
            stack.extend((arg, needed, False) for arg, needed in self._operands(current, how))
        value = self._known(expr, mode)
        return value if value is not None else self._known(expr, "scalar")

    def _operands(self, expr: Expr, mode: str) -> list[tuple[Expr, str]]:
        if expr.op == "load":
            even = mode == "scalar" or stride_of(expr.args[0], self._along, self._lanes) in EVEN
            return [(expr.args[0], "scalar" if even else "vector")]
        if mode == "vector" and expr.dtype == "u32" and stride_of(expr, self._along, self._lanes) is not None:
            return [(expr, "scalar")]
        return [] if expr.op == "held" else [(arg, mode) for arg in expr.args]

    def _computed(self, expr: Expr, mode: str) -> Value:
        v = Vectors(self.builder, self._lanes if mode == "vector" else 1, self._scalef)
        if expr.op == "var":
            first = self._bound[expr.attr]
            return first if mode == "scalar" else self._counted(v, first, 1)
        if expr.op == "held":
            return self._bound[expr.attr]
        if expr.op == "lit":
            return literal(expr.attr, expr.dtype)
        if expr.op == "load":
            return self._load(v, expr, mode)
        if mode == "vector" and expr.dtype == "u32":
            stride = stride_of(expr, self._along, self._lanes)
            if stride is not None:
                return self._counted(v, self.scalar(expr), stride)
        args = [self.vector(arg) if mode == "vector" else self.scalar(arg) for arg in expr.args]
        return computed(v, expr, args)

    def _splat(self, expr: Expr) -> Value:
        """The value as the present lanes need it."""
        if self._lanes > 1 and self._along in expr.free:
            return self.vector(expr)
        if self._lanes == 1:
            return self.scalar(expr)
        known = self._known(expr, f"splat{self._lanes}")
        return known if known is not None else self._remember(
            expr, f"splat{self._lanes}", self.vectors.splat(self.scalar(expr))
        )  # fmt: skip

    def _counted(self, v: Vectors, first: Value, stride: int) -> Value:
        steps = ir.Constant(v.type_of(I32), [lane * stride for lane in range(v.lanes)])
        return self.builder.add(v.splat(first), steps)

    def _load(self, v: Vectors, expr: Expr, mode: str) -> Value:
        held = self.buffers[expr.attr]
        stride = 1 if mode == "scalar" else stride_of(expr.args[0], self._along, self._lanes)
        if stride in EVEN:
            stored = v.load_every(stride, self._place(held, self.scalar(expr.args[0])))
            return from_stored(v, stored, held.dtype)
        places = self.vector(expr.args[0])
        stored = undefined(v.type_of(held.pointer.type.pointee))
        for lane in range(v.lanes):
            element = self.builder.load(self._place(held, v.lane(places, lane)))
            stored = self.builder.insert_element(stored, element, ir.Constant(I32, lane))
        return from_stored(v, stored, held.dtype)

    def address(self, load: Expr) -> Value:
        """The address of what is loaded, in lane 0."""
        return self._place(self.buffers[load.attr], self.scalar(load.args[0]))

    def _place(self, held: Buffer, index: Value) -> Value:
        return self.builder.gep(held.pointer, [self.builder.zext(index, I64)])
