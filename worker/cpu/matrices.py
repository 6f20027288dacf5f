"""Matrices solved and factored by numpy's LAPACK, one row each; of (..., m, n), where what is ahead is a batch.

numpy raises for the whole batch if one matrix has no factors; here that one has NaN (`_each`).  f16 and bf16 are
factored in f32.  numpy has no LU of its own: `_lu` is one by blocks, so that most of its work is products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from wire.ir.types import Attrs, HostArray, TensorType

from .control import Run, Several
from .elementwise import Kernel

PANEL = 32  # columns that are factored one by one


def _wide(array: HostArray) -> HostArray:
    """What LAPACK knows."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


def _each(function: Callable[..., Sequence[HostArray]], *operands: HostArray) -> list[HostArray]:
    """`function` of whole batches, or if it refuses of each matrix by itself, with NaN for those it refuses."""
    try:
        return list(function(*operands))
    except np.linalg.LinAlgError:
        ahead = operands[0].shape[:-2]
        flat = [array.reshape(math.prod(ahead), *array.shape[len(ahead) :]) for array in operands]
        rows = [_or_nan(function, [array[at] for array in flat]) for at in range(math.prod(ahead))]
        return [np.stack(column).reshape(*ahead, *column[0].shape) for column in zip(*rows, strict=True)]


def _or_nan(function: Callable[..., Sequence[HostArray]], operands: list[HostArray]) -> list[HostArray]:
    try:
        return list(function(*operands))
    except np.linalg.LinAlgError:
        harmless = np.eye(operands[0].shape[-2], operands[0].shape[-1], dtype=operands[0].dtype)
        return [np.full_like(array, np.nan) for array in function(harmless, *operands[1:])]


def _cholesky(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    (factor,) = _each(lambda x: [np.linalg.cholesky(x)], _wide(operands[0]))
    return factor.astype(out.dtype.numpy, copy=False)


def _solve(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    (solution,) = _each(lambda a, b: [np.linalg.solve(a, b)], *map(_wide, operands))
    return solution.astype(out.dtype.numpy, copy=False)


def _qr(x: HostArray, attrs: Attrs) -> Sequence[HostArray]:
    return np.linalg.qr(x, "complete" if attrs["full"] else "reduced")


def _eigh(x: HostArray, attrs: Attrs) -> Sequence[HostArray]:
    return np.linalg.eigh(x)


def _svd(x: HostArray, attrs: Attrs) -> Sequence[HostArray]:
    """LAPACK turns for ever over some infinities, so it is not given them."""
    finite = np.asarray(np.isfinite(x).all(axis=(-2, -1), keepdims=True))
    results = np.linalg.svd(x if finite.all() else np.where(finite, x, 0), full_matrices=bool(attrs["full"]))
    if finite.all():
        return results
    return [np.where(finite if array.ndim == x.ndim else finite[..., 0], array, np.nan) for array in results]


def _lu(x: HostArray, attrs: Attrs) -> Sequence[HostArray]:
    """Golub and Van Loan, Matrix Computations, 4th edition, algorithm 3.4.1 in panels, over all matrices at once."""
    ahead, (m, n) = x.shape[:-2], x.shape[-2:]
    few, count = min(m, n), math.prod(ahead)
    factors = x.reshape(count, m, n).copy()
    every = np.arange(count)
    swapped = np.zeros((count, few), np.int32)
    for first in range(0, few, PANEL):
        last = min(first + PANEL, few)
        for at in range(first, last):
            swapped[:, at] = pivot = at + np.argmax(_size(factors[:, at:, at]), axis=1)
            factors[every, at], factors[every, pivot] = factors[every, pivot], factors[every, at]
            below, divisor = factors[:, at + 1 :, at], factors[:, at, at, None]
            np.divide(below, divisor, out=below, where=divisor != 0)
            factors[:, at + 1 :, at + 1 : last] -= below[:, :, None] * factors[:, at, None, at + 1 : last]
        if last < n:
            _behind(factors, first, last)
    rows = np.tile(np.arange(m, dtype=np.int32), (count, 1))
    for at in range(few):
        rows[every, at], rows[every, swapped[:, at]] = rows[every, swapped[:, at]], rows[every, at]
    shapes = (x.shape, (*ahead, few), (*ahead, m))
    return [array.reshape(shape) for array, shape in zip((factors, swapped, rows), shapes, strict=True)]


def _size(array: HostArray) -> HostArray:
    """The magnitude by which LAPACK chooses pivots."""
    if array.dtype.kind == "c":
        return np.asarray(np.abs(array.real) + np.abs(array.imag))
    return np.asarray(np.abs(array))


def _behind(factors: HostArray, first: int, last: int) -> None:
    """What the panel from column `first` to `last` does to the columns behind it."""
    lower = np.tril(factors[:, first:last, first:last], -1) + np.eye(last - first, dtype=factors.dtype)
    turned = np.linalg.solve(lower[:, ::-1, ::-1], factors[:, first:last, last:][:, ::-1])  # back substitution
    factors[:, first:last, last:] = turned[:, ::-1]
    factors[:, last:, last:] -= factors[:, last:, first:last] @ factors[:, first:last, last:]


def _several(function: Callable[[HostArray, Attrs], Sequence[HostArray]]) -> Several:
    """The row of a factorisation; its results have the operand's precision, indices aside."""

    def row(attrs: Attrs, operands: list[HostArray], run: Run) -> list[HostArray]:
        (x,) = operands
        factors = _each(lambda matrices: function(matrices, attrs), _wide(x))
        return [array.astype(x.dtype, copy=False) if x.dtype.itemsize == 2 and array.dtype.kind == "f" else array
                for array in factors]  # fmt: skip

    return row


MATRICES: dict[str, Kernel] = {"cholesky": _cholesky, "solve": _solve}
FACTORISATIONS: dict[str, Several] = {
    "lu": _several(_lu),
    "qr": _several(_qr),
    "eigh": _several(_eigh),
    "svd": _several(_svd),
}
