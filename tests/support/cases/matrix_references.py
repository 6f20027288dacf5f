"""What solves and factors matrices, by textbook algorithms in long double, one matrix after the other.

Golub and Van Loan, Matrix Computations: Gaussian elimination with partial pivoting, Cholesky by columns, Householder's
reflections, and Jacobi's rotations for eigenvalues and, from one side, for singular values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.types import Attrs, TensorType

Array = NDArray[Any]
TINY = np.finfo(np.longdouble).eps


def _each(function: Callable[..., Array]) -> Callable[[Attrs, list[Array], TensorType], Array]:
    """The row of an op: `function(attrs, *matrices)` of every matrix."""

    def row(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        ahead = operands[0].shape[:-2]
        wide = [array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble) for array in operands]
        found = [function(attrs, *[array[at] for array in wide]) for at in np.ndindex(ahead)]
        return np.array(found, found[0].dtype if found else out.dtype.numpy).reshape(out.shape)

    return row


def _cholesky(attrs: Attrs, x: Array) -> Array:
    lower = np.zeros_like(x)
    for at in range(len(x)):
        rest = x[at:, at] - lower[at:, :at] @ lower[at, :at].conj()
        if not rest[0].real > 0:
            return np.full_like(x, np.nan)
        lower[at:, at] = rest / np.sqrt(rest[0].real)
    return lower


def _lu(attrs: Attrs, x: Array) -> Array:
    factors, rows = x.copy(), np.arange(len(x), dtype=np.int32)
    swapped = np.zeros(min(x.shape), np.int32)
    for at in range(min(x.shape)):
        swapped[at] = pivot = at + int(np.argmax(np.abs(factors[at:, at].real) + np.abs(factors[at:, at].imag)))
        factors[[at, pivot]], rows[[at, pivot]] = factors[[pivot, at]], rows[[pivot, at]]
        if factors[at, at] != 0:
            factors[at + 1 :, at] /= factors[at, at]
        factors[at + 1 :, at + 1 :] -= np.outer(factors[at + 1 :, at], factors[at, at + 1 :])
    return (factors, swapped, rows)[attrs["output"]]


def _solve(attrs: Attrs, a: Array, b: Array) -> Array:
    factors, rows = _lu(Attrs({"output": 0}), a), _lu(Attrs({"output": 2}), a)
    if np.any(np.diag(factors) == 0):
        return np.full_like(b, np.nan)
    found = b[rows]
    for at in range(len(a)):
        found[at] -= factors[at, :at] @ found[:at]
    for at in reversed(range(len(a))):
        found[at] = (found[at] - factors[at, at + 1 :] @ found[at + 1 :]) / factors[at, at]
    return found


def _qr(attrs: Attrs, x: Array) -> Array:
    m, n = x.shape
    right, left = x.copy(), np.eye(m, dtype=x.dtype)
    for at in range(min(m - 1, n)):
        column = right[at:, at].copy()
        if not np.any(column[1:]):
            continue
        column[0] += _length(column) * _direction(column[0])
        column /= _length(column)
        right[at:] -= 2 * np.outer(column, column.conj() @ right[at:])
        left[:, at:] -= 2 * np.outer(left[:, at:] @ column, column.conj())
    k = m if attrs["full"] else min(m, n)
    return (left[:, :k], np.triu(right)[:k])[attrs["output"]]


def _eigh(attrs: Attrs, x: Array) -> Array:
    x = np.tril(x, -1) + np.tril(x, -1).T.conj() + np.diag(np.diag(x).real)
    vectors = np.eye(len(x), dtype=x.dtype)
    for _ in range(60):
        for p in range(len(x)):
            for q in range(p + 1, len(x)):
                if abs(x[p, q]) > TINY * np.sqrt(abs(x[p, p] * x[q, q])):
                    turn = _rotation(x[p, p].real, x[q, q].real, x[p, q])
                    x[:, [p, q]] = x[:, [p, q]] @ turn
                    x[[p, q]] = turn.T.conj() @ x[[p, q]]
                    vectors[:, [p, q]] = vectors[:, [p, q]] @ turn
    values = np.diag(x).real
    order = np.argsort(values)
    return (values[order], vectors[:, order])[attrs["output"]]


def _rotation(a: Any, d: Any, b: Any) -> Array:
    """The rotation R with R^H @ [[a, b], [b*, d]] @ R diagonal."""
    angle = np.arctan2(2 * np.abs(b), d - a) / 2
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return np.diag(np.array([1, np.conj(_direction(b))], turn.dtype if np.isrealobj(b) else None)) @ turn


def _direction(value: Any) -> Any:
    """The number of size 1 in whose direction `value` lies; 1 of 0."""
    return value / np.abs(value) if value != 0 else value + 1


def _length(column: Array) -> Any:
    return np.sqrt((column.conj() @ column).real)


def _svd(attrs: Attrs, x: Array) -> Array:
    if x.shape[0] < x.shape[1]:
        turned = _svd(Attrs({**attrs, "output": 2 - attrs["output"]}), x.T)
        return turned if attrs["output"] == 1 else turned.T
    m, n = x.shape
    columns, right = x.copy(), np.eye(n, dtype=x.dtype)
    for _ in range(60):
        for p in range(n):
            for q in range(p + 1, n):
                one, two = columns[:, p], columns[:, q]
                if abs(one.conj() @ two) > TINY * _length(one) * _length(two):
                    turn = _rotation(_length(one) ** 2, _length(two) ** 2, one.conj() @ two)
                    columns[:, [p, q]] = columns[:, [p, q]] @ turn
                    right[:, [p, q]] = right[:, [p, q]] @ turn
    size = np.sqrt((columns * columns.conj()).sum(0).real)
    order = np.argsort(-size)
    left = columns[:, order] / size[order]
    if attrs["full"] and m > n:  # a last column that is orthogonal to the others
        left = _qr(Attrs({"full": 1, "output": 0}), left)
    return (left, size[order], right[:, order].T.conj())[attrs["output"]]


MATRICES = {name: _each(function) for name, function in (
    ("cholesky", _cholesky), ("solve", _solve), ("lu", _lu), ("qr", _qr), ("eigh", _eigh), ("svd", _svd),
)}  # fmt: skip
