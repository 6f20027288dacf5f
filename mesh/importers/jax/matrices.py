"""Primitives that solve and factor matrices (jax.lax.linalg)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wire.errors import Unsupported

from ... import numpy as mnp
from ...core.array import Array, apply
from ...core.multi_output import several
from ...transforms.control_flow import scan
from .rows import Equation, Row


def _only(equation: Equation, **known: Any) -> None:
    """Raise Unsupported unless these parameters have the one value that is known here."""
    for name, value in known.items():
        setting = equation.params.get(name, value)
        if setting != value:
            raise Unsupported(
                f"the primitive {equation.primitive} with {name}={setting}", op=equation.primitive,
                next_step="Write this part with mesh.numpy, or leave it outside",
            )  # fmt: skip


def _triangular_solve(equation: Equation, a: Array, b: Array) -> Array:
    lower, left = equation["lower"], equation["left_side"]
    a = mnp.conj(a) if equation["conjugate_a"] else a
    if equation["transpose_a"] == left:  # of x @ a = b both sides are transposed
        a, lower = mnp.matrix_transpose(a), not lower
    b = b if left else mnp.matrix_transpose(b)
    solution = mnp.linalg.solve_triangular(a, b, lower=lower, unit_diagonal=equation["unit_diagonal"])
    return solution if left else mnp.matrix_transpose(solution)


def _permutation(equation: Equation, swapped: Array) -> Array:
    """The rows after row i was swapped with row swapped[i], one i after the other."""
    shape = (*swapped.shape[:-1], equation["permutation_size"])
    places = mnp.arange(shape[-1])

    def swap(rows: Array, step: tuple[Array, Array]) -> tuple[Array, tuple[()]]:
        one, other = (mnp.equal(places, place[..., None]) for place in step)
        at_one, at_other = (mnp.sum(mnp.where(mask, rows, 0), -1, keepdims=True) for mask in (one, other))
        return mnp.where(one, at_other, mnp.where(other, at_one, rows)), ()

    steps = mnp.broadcast_to(mnp.arange(swapped.shape[-1]), swapped.shape)
    along = tuple(mnp.moveaxis(array, -1, 0) for array in (steps, swapped))
    rows: Array = scan(swap, mnp.broadcast_to(places, shape), along)[0]
    return rows


def _linear_solve(equation: Equation, *operands: Array) -> Sequence[Array]:
    """What solves; its derivatives are those of what it does, as JAX's own are of the matrix."""
    counts, programs = equation["const_lengths"], equation["jaxprs"]
    first = counts.matvec + counts.vecmat
    right = operands[first + counts.solve + counts.transpose_solve :]
    return equation.closed(programs.solve, (*operands[first : first + counts.solve], *right))


def _qr(equation: Equation, x: Array) -> Sequence[Array]:
    _only(equation, pivoting=False)
    return several("qr", [x], full=int(equation["full_matrices"]))


def _eigh(equation: Equation, x: Array) -> Sequence[Array]:
    _only(equation, subset_by_index=None, sort_eigenvalues=True)
    values, vectors = several("eigh", [x if equation["lower"] else mnp.conj(mnp.matrix_transpose(x))])
    return [vectors, values]


def _svd(equation: Equation, x: Array) -> Sequence[Array]:
    _only(equation, subset_by_index=None)
    u, s, vh = several("svd", [x], full=int(equation["full_matrices"] and equation["compute_uv"]))
    return [s, u, vh] if equation["compute_uv"] else [s]


ROWS: dict[str, Row] = {
    "cholesky": lambda equation, x: apply("cholesky", x),
    "custom_linear_solve": _linear_solve,
    "eigh": _eigh,
    "lu": lambda equation, x: several("lu", [x]),
    "lu_pivots_to_permutation": _permutation,
    "qr": _qr,
    "svd": _svd,
    "triangular_solve": _triangular_solve,
}
