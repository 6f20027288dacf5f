"""Edges: the column from which on a mask of positions, such as a causal one, is false in a row.

Behind it a `select` takes its other value, as a rule one number for the whole row: what follows from it is computed
once for a row, and what the `select` would have taken is not read.  So the product that makes it need not compute it.
No mask is looked for by its name: conditions are compared as sums of positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...compiler.expressions import Builder, Expr, terms_of
from .map import parts_of

WIDE = ("i32", "i64")  # integers that hold positions;
FAR = 1 << 30  # sums of these are nearer than this, and so do not wrap
Sum = tuple[int, dict[Expr, int]]
# By how much a is larger than b, at least, where a comparison of both holds; the other two are these of b and a.
AT_LEAST = {"ge": 0, "gt": 1}
TURNED = {"le": "ge", "lt": "gt"}


@dataclass(frozen=True, slots=True)
class Edge:
    """The column from which on some selects of a row take their second value: an index, which may be negative."""

    build: Builder
    column: Expr
    selects: frozenset[Expr]
    along: str

    def behind(self, root: Expr) -> Expr:
        """An expression as it is from the edge on."""
        done: dict[Expr, Expr] = {}

        def of(expr: Expr) -> Expr:
            if self.along not in expr.free or expr.dtype == "u32" or expr.op == "load":
                return expr
            if expr not in done:
                if expr in self.selects:
                    done[expr] = of(expr.args[2])
                else:
                    args = [of(arg) for arg in expr.args]
                    same = all(one is other for one, other in zip(args, expr.args, strict=True))
                    done[expr] = expr if same else self.build.make(expr.op, args, expr.dtype, expr.attr)
            return done[expr]

        return of(root)

    def unread(self, roots: Iterable[Expr]) -> set[int]:
        """The buffers that expressions read before the edge alone."""
        roots = tuple(roots)
        every, behind = (
            {part.attr for root in roots for part in parts_of(form(root)) if part.op == "load"}
            for form in (_same, self.behind)
        )
        return every - behind


def edge_of(build: Builder, roots: Iterable[Expr], column: Expr) -> Edge | None:
    """The edge of a row of these expressions, if there is one."""
    selects: dict[Expr, list[Expr]] = {}
    for part in (part for root in roots for part in parts_of(root)):
        if part.op == "select" and part.dtype != "u32":
            edge = _false_from(build, part.args[0], column)
            if edge is not None:
                selects.setdefault(edge, []).append(part)
    for edge, found in selects.items():
        return Edge(build, edge, frozenset(found), column.attr)
    return None


def _same(expr: Expr) -> Expr:
    return expr


def _false_from(build: Builder, condition: Expr, column: Expr) -> Expr | None:
    """The column from which on a condition is false."""
    op, args = condition.op, condition.args
    if op == "and":
        found = (_false_from(build, arg, column) for arg in args)
        return next((edge for edge in found if edge is not None), None)
    if op == "select":  # of conditions: where the first one is false, so is the last one
        never = args[2].op == "lit" and not args[2].attr
        return _false_from(build, args[0], column) if never else None
    op, args = (TURNED[op], args[::-1]) if op in TURNED else (op, args)
    if op not in AT_LEAST:
        return None
    above, below = (_sum_of(build, arg) for arg in args)
    if above is None or below is None:
        return None
    const, terms = _added(above, below, -1)
    if terms.pop(column, 0) != -1 or any(column in parts_of(atom) for atom in terms):
        return None
    return build.affine(const - AT_LEAST[op] + 1, terms)


def _sum_of(build: Builder, expr: Expr) -> Sum | None:
    """An integer as a sum of positions, if it is one."""
    found: Sum | None
    if expr.dtype not in WIDE:
        return None
    if expr.op == "cast" and expr.attr == "u32":
        found = terms_of(expr.args[0])
    elif expr.op == "lit":
        bits = int(expr.dtype[1:])
        found = expr.attr - (expr.attr >> (bits - 1) << bits), {}
    elif expr.op == "add":
        sides = [_sum_of(build, arg) for arg in expr.args]
        found = None if sides[0] is None or sides[1] is None else _added(sides[0], sides[1], 1)
    else:
        return None
    if found is None:
        return None
    whole = build.affine(*found)
    return found if -FAR < whole.lo <= whole.hi < FAR else None


def _added(a: Sum, b: Sum, factor: int) -> Sum:
    const, terms = a[0] + factor * b[0], dict(a[1])
    for atom, own in b[1].items():
        terms[atom] = terms.get(atom, 0) + factor * own
    return const, terms
