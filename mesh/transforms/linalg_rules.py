"""Derivatives and batches of what solves and factors matrices.

`TANGENTS` has one row per op: `(inputs, results, tangents, **attrs)` to the tangents of all results, where a tangent is
None if it is zero (or its result has none).  A row is linear in the tangents, so forward mode reads it as it stands and
reverse mode is the same row, transposed by `backward`; both are made of `mesh.numpy`, so they have derivatives again.

What the operand's upper triangle is not read for (cholesky, eigh) it has no derivative by.  Where factors are not
determined, their derivatives are not finite: of a singular matrix, of vectors that belong to equal eigenvalues or
singular values.  `solve` has its reverse rule in `vjp_rules.py`, for transposing a row by itself ends nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from wire.errors import Unsupported
from wire.ir.ops import MULTIPLE

from .. import numpy as mnp
from ..core.array import Array, apply
from ..core.multi_output import several

Tangents = Sequence[Array | None]
Rule = Callable[..., list[Array | None]]
Backward = Callable[..., Any]
t, solve_triangular = mnp.matrix_transpose, mnp.linalg.solve_triangular


def h(x: Array) -> Array:
    """The adjoint: transposed and conjugated."""
    return t(mnp.conj(x))


def results_of(op: str, inputs: Sequence[Array], **attrs: Any) -> list[Array]:
    """Every result of the op."""
    return several(op, inputs, **attrs) if op in MULTIPLE else [apply(op, *inputs, **attrs)]


# -- the three transforms ---------------------------------------------------------------------------------


def jvp(op: str, inputs: list[Array], tangents: Tangents, **attrs: Any) -> tuple[list[Array], list[Array | None]]:
    """The rule of JVPS."""
    results = results_of(op, inputs, **attrs)
    return results, TANGENTS[op](inputs, results, tangents, **attrs)


def vjp(
    backward: Backward, op: str, inputs: list[Array], needs_grad: Sequence[bool], **attrs: Any
) -> tuple[list[Array], Callable[[Tangents], list[Array | None]]]:
    """The rule of VJPS, for an op of one operand."""
    results = results_of(op, inputs, **attrs)

    def pull(cotangents: Tangents) -> list[Array | None]:
        moving: list[int] = []

        def tangents_of(moved: Array) -> list[Array]:
            moves = TANGENTS[op](inputs, results, [moved], **attrs)
            moving.extend(place for place, move in enumerate(moves) if move is not None)
            return [move for move in moves if move is not None]

        _, transposed = backward(tangents_of, [mnp.zeros_like(inputs[0])])
        pulled: list[Array | None] = transposed([cotangents[place] for place in moving])
        return pulled

    return results, pull


def vmap(op: str, size: int, inputs: Sequence[Array], batched: Sequence[bool], **attrs: Any) -> Any:
    """The rule of VMAPS, for an op of one operand: what is ahead of a matrix is a batch already."""
    results = results_of(op, inputs, **attrs)
    return results, [True] * len(results)


def solve_vmap(size: int, inputs: Sequence[Array], batched: Sequence[bool]) -> Array:
    """One matrix for all has the columns of all side by side."""
    a, b = inputs
    if not batched[0]:
        columns = mnp.moveaxis(b, 0, -2)
        wide = apply("solve", a, mnp.reshape(columns, (*columns.shape[:-2], size * columns.shape[-1])))
        return mnp.moveaxis(mnp.reshape(wide, columns.shape), -2, 0)
    return apply("solve", a, b if batched[1] else mnp.broadcast_to(b, (size, *b.shape)))


# -- tangents ---------------------------------------------------------------------------------------------


def _cholesky(inputs: Sequence[Array], results: Sequence[Array], tangents: Tangents) -> list[Array | None]:
    """Murray, Differentiation of the Cholesky decomposition (2016), equation 8."""
    (lower,), (moved,) = results, tangents
    assert moved is not None
    inner = _within(lower, _of_lower(moved))
    return [mnp.matmul(lower, mnp.tril(inner) * (1 - 0.5 * _identity(lower)))]


def _solve(inputs: Sequence[Array], results: Sequence[Array], tangents: Tangents) -> list[Array | None]:
    """The tangent of x, where a @ x = b: a @ dx = db - da @ x."""
    (a, _), (x,), (of_a, of_b) = inputs, results, tangents
    parts = [] if of_b is None else [of_b]
    parts += [] if of_a is None else [-mnp.matmul(of_a, x)]
    return [apply("solve", a, reduce(mnp.add, parts))]


def _lu(inputs: Sequence[Array], results: Sequence[Array], tangents: Tangents) -> list[Array | None]:
    """The tangent of L and U, where P x = L U: L^-1 P dx U^-1 is a lower triangle, of dL, and an upper one, of dU.

    As jax has it (lax/linalg.py): L is completed to m columns by those of an identity, and U to n rows.
    """
    (factors, _, rows), (moved,) = results, tangents
    assert moved is not None
    m, n = factors.shape[-2:]
    few = min(m, n)
    lower = mnp.tril(_widened(factors[..., :few], m - few), -1)  # its ones are the diagonal, which is not stored
    upper = mnp.triu(t(_widened(t(factors[..., :few, :]), n - few))) + _ones_behind(n, few, factors)
    permuted = mnp.take_along_axis(moved, rows[..., None], -2)
    inner = solve_triangular(lower, permuted, lower=True, unit_diagonal=True)
    inner = t(solve_triangular(t(upper), t(inner), lower=True))
    of_lower = mnp.matmul(lower + mnp.eye(m, dtype=factors.dtype), mnp.tril(inner, -1))
    return [of_lower + mnp.matmul(mnp.triu(inner), upper), None, None]


def _qr(inputs: Sequence[Array], results: Sequence[Array], tangents: Tangents, full: int) -> list[Array | None]:
    """Walter and Lehmann, Algorithmic differentiation of linear algebra functions (2010), section 3.3.

    A wide x is a square one, whose factors these are, and what follows: R's rest is Q.mT times it.
    """
    (x,), (q, r), (moved,) = inputs, results, tangents
    assert moved is not None
    m, n = x.shape[-2:]
    if full and m > n:
        raise Unsupported(
            f"a complete qr of matrices of {m} by {n} has no derivative: the last columns of Q are not determined",
            op="qr",
            next_step="Take mode='reduced'",
        )
    inner = t(solve_triangular(t(r[..., :m]), t(moved[..., :m]), lower=True))  # dx R^-1
    turned = mnp.matmul(h(q), inner)
    below = mnp.tril(turned, -1)
    skew = below - h(below) + _imaginary_diagonal(turned)  # so that R's diagonal stays real
    of_q = mnp.matmul(q, skew - turned) + inner
    of_r = mnp.matmul(turned - skew, r[..., :m])
    if n > m:
        rest = mnp.matmul(h(of_q), x[..., m:]) + mnp.matmul(h(q), moved[..., m:])
        of_r = mnp.concat([of_r, rest], axis=-1)
    return [of_q, of_r]


def _eigh(inputs: Sequence[Array], results: Sequence[Array], tangents: Tangents) -> list[Array | None]:
    """Giles, Collected matrix derivative results (2008), section 3.1: v^H dx v has dw on its diagonal."""
    (w, v), (moved,) = results, tangents
    assert moved is not None
    inner = mnp.matmul(h(v), mnp.matmul(_of_lower(moved), v))
    return [mnp.real(mnp.linalg.diagonal(inner)), mnp.matmul(v, inner * _reciprocal_differences(w))]


def _svd(inputs: Sequence[Array], results: Sequence[Array], tangents: Tangents, full: int) -> list[Array | None]:
    """Townsend, Differentiating the singular value decomposition (2016), equations 18 to 20."""
    (u, s, vh), (moved,) = results, tangents
    assert moved is not None
    m, n = inputs[0].shape[-2:]
    if full and m != n:
        raise Unsupported(
            f"a full svd of matrices of {m} by {n} has no derivative: the last vectors are not determined",
            op="svd",
            next_step="Take full_matrices=False",
        )
    inner = mnp.matmul(h(u), mnp.matmul(moved, h(vh)))
    across, down = inner * s[..., None, :], s[..., :, None] * inner
    apart = _reciprocal_differences(s * s)
    turned = apart * (across + h(across)) + _imaginary_diagonal(inner) / s[..., None, :]
    of_u, of_v = mnp.matmul(u, turned), mnp.matmul(h(vh), apart * (down + h(down)))
    if m > n:
        image = mnp.matmul(moved, h(vh))
        of_u = of_u + (image - mnp.matmul(u, mnp.matmul(h(u), image))) / s[..., None, :]
    if n > m:
        image = mnp.matmul(h(moved), u)
        of_v = of_v + (image - mnp.matmul(h(vh), mnp.matmul(vh, image))) / s[..., None, :]
    return [of_u, mnp.real(mnp.linalg.diagonal(inner)), h(of_v)]


TANGENTS: dict[str, Rule] = {
    "cholesky": _cholesky,
    "solve": _solve,
    "lu": _lu,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
}


# -- helpers ----------------------------------------------------------------------------------------------


def _identity(like: Array) -> Array:
    return mnp.eye(like.shape[-1], dtype=like.dtype)


def _of_lower(x: Array) -> Array:
    """The Hermitian matrices that have the lower triangles of x."""
    below = mnp.tril(x, -1)
    return below + h(below) + mnp.where(mnp.eye(x.shape[-1], dtype="bool"), mnp.real(x), 0)


def _imaginary_diagonal(x: Array) -> Array | float:
    """What a complex x has on its diagonal besides real numbers, as a matrix."""
    return mnp.where(mnp.eye(x.shape[-1], dtype="bool"), x - mnp.real(x), 0) if mnp.iscomplexobj(x) else 0.0


def _within(lower: Array, x: Array) -> Array:
    """L^-1 x L^-H, of a Hermitian x."""
    return solve_triangular(lower, h(solve_triangular(lower, x, lower=True)), lower=True)


def _reciprocal_differences(values: Array) -> Array:
    """1 / (v_j - v_i) at i, j, and 0 on the diagonal."""
    ones = _identity(values)
    return 1 / (values[..., None, :] - values[..., :, None] + ones) - ones


def _widened(x: Array, count: int) -> Array:
    """x with `count` columns of zeros behind."""
    return mnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)]) if count else x


def _ones_behind(size: int, count: int, like: Array) -> Array:
    """A matrix of zeros with ones on the diagonal behind the first `count`."""
    return mnp.eye(size, dtype=like.dtype) * (mnp.arange(size) >= count)
