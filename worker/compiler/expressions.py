"""Scalar expressions: values and indices, hash-consed, with the algebra that keeps index maps simple.

An Expr is `(op, args, dtype, attr)`; equal expressions of one Builder are one object, so sharing is free and comparing
is `is`.  dtypes are those of WGSL registers: f32, i32, u32, bool (f16 tensors compute in f32, rounded by
`to_f16`).

Index expressions are u32 with a known range [lo, hi].  They are kept in a normal form: `affine` is `const +
sum(coefficient * atom)`, an atom being a variable, an `index_div` or `index_mod` by a constant, or a clamped run-time
value.  Reshape, transpose, slice and broadcast are then only arithmetic, and a load that is contiguous looks
contiguous:

    (g*A + r) div (g*D) = A div D           where 0 <= r < g
    (g*A + r) mod (g*D) = g*(A mod D) + r   where 0 <= r < g
    c*d*(x div d) + c*(x mod d) = c*x
    c*d*((x div d) mod e) + c*(x mod d) = c*(x mod d*e)

It does not know WGSL: `legalise.py` has the text of every op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

U32_MAX = (1 << 32) - 1


class Expr:
    """One interned expression; make it through a Builder.  `lo` and `hi` bound an index expression's value."""

    __slots__ = ("args", "attr", "dtype", "free", "hi", "lo", "op", "uid", "volatile")

    def __init__(self, uid: int, op: str, args: tuple[Expr, ...], dtype: str, attr: Any, lo: int, hi: int) -> None:
        self.uid = uid
        self.op = op
        self.args = args
        self.dtype = dtype
        self.attr = attr
        self.lo = lo
        self.hi = hi
        own = frozenset([attr]) if op in ("var", "mutable") else frozenset()
        self.free: frozenset[str] = own.union(*(arg.free for arg in args)) if args else own
        self.volatile: bool = op in ("mutable", "shared", "read") or any(arg.volatile for arg in args)

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        return f"{self.op}[{self.attr}]({inner})" if self.attr is not None else f"{self.op}({inner})"


class Builder:
    """The builder of one kernel's expressions."""

    def __init__(self) -> None:
        self._interned: dict[Any, Expr] = {}
        self._divisions: dict[tuple[str, int, int], Expr] = {}  # nested views ask again and again

    def make(self, op: str, args: Sequence[Expr], dtype: str, attr: Any = None, lo: int = 0, hi: int = U32_MAX) -> Expr:
        """The expression with these parts; ranges are not part of its identity."""
        args = tuple(args)
        key = (op, tuple(arg.uid for arg in args), dtype, type(attr), attr)
        expr = self._interned.get(key)
        if expr is None:
            expr = self._interned[key] = Expr(len(self._interned), op, args, dtype, attr, lo, hi)
        return expr

    def __len__(self) -> int:
        return len(self._interned)

    # -- values -------------------------------------------------------------------------------------------

    def literal(self, bits: int, dtype: str) -> Expr:
        """A constant, given by its 32 bits (bool: 0 or 1)."""
        return self.make("lit", (), dtype, bits, bits, bits)

    def load(self, buffer: int, index: Expr, dtype: str) -> Expr:
        return self.make("load", (index,), dtype, buffer)

    def mutable(self, name: str, dtype: str) -> Expr:
        """The present value of a `var`: never shared between statements."""
        return self.make("mutable", (), dtype, name)

    # -- indices ------------------------------------------------------------------------------------------

    def var(self, name: str, bound: int) -> Expr:
        """A named index in [0, bound)."""
        return self.make("var", (), "u32", name, 0, bound - 1)

    def number(self, value: int) -> Expr:
        return self.literal(value, "u32")

    def bounded(self, value: Expr, hi: int) -> Expr:
        """A u32 value that the caller has made sure lies in [0, hi]."""
        return self.make("bounded", (value,), "u32", hi, 0, hi)

    def least(self, index: Expr, hi: int) -> Expr:
        """min(index, hi), as an atom."""
        return index if index.hi <= hi else self.make("least", (index,), "u32", hi, min(index.lo, hi), hi)

    def affine(self, const: int, terms: Mapping[Expr, int]) -> Expr:
        """const + sum(coefficient * atom), normalised."""
        kept = self._recombine({atom: factor for atom, factor in terms.items() if factor})
        const, kept = self._flatten(const, kept)
        if not kept:
            return self.number(const)
        if const == 0 and len(kept) == 1 and next(iter(kept.values())) == 1:
            return next(iter(kept))
        ordered = sorted(kept.items(), key=lambda term: (-abs(term[1]), term[0].uid))
        lo, hi = _range(const, kept)
        factors = tuple(factor for _, factor in ordered)
        return self.make("affine", [atom for atom, _ in ordered], "u32", (const, *factors), lo, hi)

    def sum(self, *parts: Expr) -> Expr:
        const, terms = 0, dict[Expr, int]()
        for part in parts:
            base, more = terms_of(part)
            const += base
            for atom, factor in more.items():
                terms[atom] = terms.get(atom, 0) + factor
        return self.affine(const, terms)

    def scaled(self, index: Expr, factor: int) -> Expr:
        const, terms = terms_of(index)
        return self.affine(const * factor, {atom: own * factor for atom, own in terms.items()})

    def minus(self, left: Expr, right: Expr) -> Expr:
        return self.sum(left, self.scaled(right, -1))

    def div(self, index: Expr, by: int) -> Expr:
        """floor(index / by)."""
        return self._remembered("div", self._div, index, by)

    def mod(self, index: Expr, by: int) -> Expr:
        """index mod by."""
        return self._remembered("mod", self._mod, index, by)

    def _remembered(self, op: str, compute: Callable[[Expr, int], Expr], index: Expr, by: int) -> Expr:
        key = (op, index.uid, by)
        quotient = self._divisions.get(key)
        if quotient is None:
            quotient = self._divisions[key] = compute(index, by)
        return quotient

    def _div(self, index: Expr, by: int) -> Expr:
        const, terms = terms_of(index)
        if by == 1:
            return index
        whole = {atom: factor // by for atom, factor in terms.items() if factor % by == 0}
        rest = {atom: factor for atom, factor in terms.items() if factor % by}
        lo, hi = _range(const % by, rest)
        if lo < 0:
            return self.make("index_div", (index,), "u32", by, max(index.lo, 0) // by, index.hi // by)
        if hi < by:
            return self.affine(const // by, whole)
        inner = self._divided(const % by, rest, by)
        return self.sum(self.affine(const // by, whole), inner)

    def _mod(self, index: Expr, by: int) -> Expr:
        const, terms = terms_of(index)
        rest = {atom: factor % by if factor > 0 else factor for atom, factor in terms.items() if factor % by}
        rest = {atom: terms[atom] if factor < 0 else factor for atom, factor in rest.items()}
        lo, hi = _range(const % by, rest)
        if lo < 0:
            return self.make("index_mod", (index,), "u32", by, 0, min(by - 1, max(index.hi, 0)))
        if hi < by:
            return self.affine(const % by, rest)
        split = _split(const % by, rest, by)
        if split is not None:
            unit, high_const, high, low_const, low = split
            reduced = self.mod(self.affine(high_const, high), by // unit)
            return self.sum(self.scaled(reduced, unit), self.affine(low_const, low))
        only = self.affine(const % by, rest)
        if only.op == "index_mod" and only.attr % by == 0:
            return self.mod(only.args[0], by)
        return self.make("index_mod", (only,), "u32", by, 0, min(by - 1, only.hi))

    def unravel(self, index: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
        """The coordinates of a row-major linear index."""
        coordinates: list[Expr] = []
        stride = 1
        for position in range(len(shape) - 1, -1, -1):
            dim = shape[position]
            quotient = self.div(index, stride)
            last = position == 0 or quotient.hi < dim
            coordinates.append(self.number(0) if dim == 1 else quotient if last else self.mod(quotient, dim))
            stride *= dim
        return tuple(reversed(coordinates))

    def ravel(self, coordinates: Sequence[Expr], shape: Sequence[int]) -> Expr:
        """The row-major linear index of coordinates."""
        stride, parts = 1, []
        for coordinate, dim in zip(reversed(coordinates), reversed(shape), strict=True):
            parts.append(self.scaled(coordinate, stride))
            stride *= dim
        return self.sum(*parts) if parts else self.number(0)

    def _divided(self, const: int, rest: dict[Expr, int], by: int) -> Expr:
        split = _split(const, rest, by)
        if split is not None:
            unit, high_const, high, _, _ = split
            return self.div(self.affine(high_const, high), by // unit)
        only = self.affine(const, rest)
        if only.op == "index_div":
            return self.div(only.args[0], only.attr * by)
        if only.op == "index_mod" and only.attr % by == 0:
            return self.mod(self.div(only.args[0], by), only.attr // by)
        return self.make("index_div", (only,), "u32", by, only.lo // by, only.hi // by)

    def _recombine(self, terms: dict[Expr, int]) -> dict[Expr, int]:
        changed = True
        while changed:
            changed = False
            for atom in [atom for atom in terms if atom.op == "index_mod"]:
                factor, by = terms[atom], atom.attr
                quotient = self.div(atom.args[0], by)
                if quotient is not atom and terms.get(quotient) == factor * by:
                    del terms[atom], terms[quotient]
                    const, whole = terms_of(atom.args[0])
                    if const:  # keep the form simple: constants go through the caller's flattening
                        whole = {atom.args[0]: 1}
                    for part, own in whole.items():
                        terms[part] = terms.get(part, 0) + own * factor
                    changed = True
                    break
                outer = next((each for each in terms if each.op == "index_mod" and each.args[0] is quotient), None)
                if outer is not None and terms[outer] == factor * by:
                    del terms[atom], terms[outer]
                    joined = self.mod(atom.args[0], by * outer.attr)
                    terms[joined] = terms.get(joined, 0) + factor
                    changed = True
                    break
        return {atom: factor for atom, factor in terms.items() if factor}

    @staticmethod
    def _flatten(const: int, terms: dict[Expr, int]) -> tuple[int, dict[Expr, int]]:
        if not any(atom.op in ("affine", "lit") for atom in terms):
            return const, terms
        flat: dict[Expr, int] = {}
        for atom, factor in terms.items():
            base, inner = terms_of(atom)
            const += base * factor
            for part, own in inner.items():
                flat[part] = flat.get(part, 0) + own * factor
        return const, {atom: factor for atom, factor in flat.items() if factor}


def terms_of(index: Expr) -> tuple[int, dict[Expr, int]]:
    """An index as (const, {atom: coefficient})."""
    if index.op == "lit":
        return index.attr, {}
    if index.op == "affine":
        return index.attr[0], dict(zip(index.args, index.attr[1:], strict=True))
    return 0, {index: 1}


def _range(const: int, terms: Mapping[Expr, int]) -> tuple[int, int]:
    lo = hi = const
    for atom, factor in terms.items():
        lo += factor * (atom.lo if factor > 0 else atom.hi)
        hi += factor * (atom.hi if factor > 0 else atom.lo)
    return lo, hi


def _split(
    const: int, terms: Mapping[Expr, int], by: int
) -> tuple[int, int, dict[Expr, int], int, dict[Expr, int]] | None:
    """unit, and the terms as unit*high + low with 0 <= low < unit, for the largest unit that divides `by`."""
    for unit in sorted({math.gcd(by, factor) for factor in terms.values()}, reverse=True):
        if unit == 1 or unit == by:
            continue
        high = {atom: factor // unit for atom, factor in terms.items() if factor % unit == 0}
        low = {atom: factor for atom, factor in terms.items() if factor % unit}
        lo, hi = _range(const % unit, low)
        if lo >= 0 and hi < unit and _range(const // unit, high)[0] >= 0:
            return unit, const // unit, high, const % unit, low
    return None
