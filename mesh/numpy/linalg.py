"""The standard's extension `linalg`, and numpy's habits beside it.

    mnp.linalg.solve(a, b)
    q, r = mnp.linalg.qr(x)

Everything is of the last two axes (matrices) or of the axes given (vectors), and may be batched.  What solves or
factors runs on cpu workers, and so do the functions made of it.

A matrix that has no such factors raises nothing, since it is factored later and elsewhere: one that is singular (solve,
inv) or not positive definite (cholesky) has NaN in all of its result, and the others of the batch have theirs.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from wire.errors import InputError, ShapeError

from ..core.array import Array, DTypeLike, Operand, apply
from ..core.multi_output import several
from ..util.annotation_checks import checked
from ..util.argument_checks import value_text
from . import creation, elementwise, manipulation, reductions
from .complexes import conj
from .contraction import diagonal, matmul, tensordot, vecdot
from .contraction import outer as _outer
from .creation import eye
from .dtypes import finfo
from .manipulation import matrix_transpose
from .promotion import asarray, cast, inexact, operands
from .reductions import Axis, normal_axes

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


class EighResult(NamedTuple):
    """Eigenvalues, ascending, and the eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Orthonormal columns and an upper triangle."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """A determinant as its sign and the logarithm of its magnitude."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """Singular values, descending, between orthonormal columns (U) and rows (Vh)."""

    U: Array
    S: Array
    Vh: Array


# -- solving ----------------------------------------------------------------------------------------------


def solve(x1: Operand, x2: Operand) -> Array:
    """The x with x1 @ x = x2; x2 is a vector if it has one dimension, else matrices.  Batches broadcast.

    NaN where a matrix of x1 is singular.
    """
    a, b = inexact(x1, x2)
    _check_square("solve", a)
    if b.ndim == 0 or b.shape[-1 if b.ndim == 1 else -2] != a.shape[-1]:
        raise ShapeError(f"solve of {a.shape} and {b.shape}: the rows differ")
    columns = manipulation.expand_dims(b, -1) if b.ndim == 1 else b
    solution = apply("solve", *_one_batch(a, columns))
    return manipulation.squeeze(solution, -1) if b.ndim == 1 else solution


@checked
def solve_triangular(a: Operand, b: Operand, *, lower: bool = False, unit_diagonal: bool = False) -> Array:
    """Solve a @ x = b for a triangular matrix a.

    Parameters
    ----------
    a : Array, (..., n, n)
        The matrix, of which one triangle is read.
    b : Array, (n,) or (..., n, k)
        The right-hand sides.
    lower : bool, optional
        Whether to read the lower triangle instead of the upper one.
    unit_diagonal : bool, optional
        Whether the diagonal is taken as ones, and not read.

    Returns
    -------
    Array, of the shape of b
        The solution x.

    Raises
    ------
    ShapeError
        If a is not square, or b does not fit.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> mnp.linalg.solve_triangular([[2.0, 0.0], [1.0, 4.0]], [2.0, 9.0], lower=True)
    Array([1., 2.], dtype=float32)
    """
    left, right = inexact(a, b)
    _check_square("solve_triangular", left)
    if unit_diagonal:
        left = elementwise.where(_identity(left, "bool"), 1, left)
    if not lower:
        return solve(creation.triu(left), right)
    axis = -1 if right.ndim == 1 else -2
    turned = manipulation.flip(creation.tril(left), (-2, -1))  # an upper triangle, which partial pivoting leaves alone
    return manipulation.flip(solve(turned, manipulation.flip(right, axis)), axis)


def inv(x: Operand) -> Array:
    """The inverses of square matrices; NaN where there is none."""
    (a,) = inexact(x)
    _check_square("inv", a)
    return solve(a, _identity(a))


def pinv(x: Operand, *, rtol: Any = None) -> Array:
    """The pseudo-inverses (Moore and Penrose) of matrices.

    Singular values up to `rtol` times the largest count as 0; by default max(m, n) times the dtype's epsilon.
    """

    def inverse(a: Array) -> Array:
        u, s, vh = svd(a, full_matrices=False)
        kept = _counted(s, a.shape, rtol)
        inverted = elementwise.where(kept, elementwise.divide(1, elementwise.where(kept, s, 1)), 0)
        return matmul(elementwise.multiply(_adjoint(vh), inverted[..., None, :]), _adjoint(u))

    (a,) = inexact(x)
    known = rtol is None or isinstance(rtol, float)
    return _with_derivative("pinv", inverse, a) if known else inverse(a)


def lstsq(a: Operand, b: Operand, rcond: Any = None) -> tuple[Array, Array, Array, Array]:
    """numpy's least squares of a (m, n) and b (m,) or (m, k): the x of the smallest norm, residuals, rank of a, and its
    singular values.

    The residuals are sums of squares where m > n, and NaN if then the rank is below n; else there are none, shape (0,).
    """
    left, right = inexact(a, b)
    if left.ndim != 2 or right.ndim not in (1, 2) or right.shape[0] != left.shape[0]:
        raise ShapeError(f"lstsq needs a (m, n) and b (m,) or (m, k), got {left.shape} and {right.shape}")
    s = svdvals(left)
    kept = _counted(s, left.shape, rcond)
    columns = right[:, None] if right.ndim == 1 else right
    solution = matmul(pinv(left, rtol=rcond), columns)
    rank = reductions.sum(kept)
    if left.shape[0] > left.shape[1]:
        missed = elementwise.square(elementwise.abs(elementwise.subtract(columns, matmul(left, solution))))
        whole = elementwise.equal(rank, left.shape[1])
        residuals = elementwise.where(whole, reductions.sum(missed, 0), math.nan)
    else:
        residuals = creation.zeros((0,), dtype=s.type.dtype)
    return solution[:, 0] if right.ndim == 1 else solution, residuals, rank, s


# -- factors ----------------------------------------------------------------------------------------------


@checked
def cholesky(x: Operand, *, upper: bool = False) -> Array:
    """The lower triangle L with L @ L^H = x, or with `upper` its adjoint L^H, of positive definite matrices.

    x is taken to be Hermitian (real: symmetric); of others it is that of (x + x^H) / 2, so that derivatives are
    Hermitian too.  NaN where a matrix is not positive definite.
    """
    lower = apply("cholesky", _hermitian("cholesky", x))
    return _adjoint(lower) if upper else lower


@checked
def qr(x: Operand, *, mode: str = "reduced") -> QRResult:
    """Q and R with Q @ R = x (..., m, n): Q is (..., m, k) with k = min(m, n), or with "complete" (..., m, m)."""
    if mode not in ("reduced", "complete"):
        raise InputError(f"qr knows the modes 'reduced' and 'complete', got {mode!r}")
    return QRResult(*several("qr", inexact(x), full=int(mode == "complete")))


def eigh(x: Operand) -> EighResult:
    """Eigenvalues w and eigenvectors v of Hermitian (real: symmetric) matrices, x @ v = v * w; of others those of
    (x + x^H) / 2."""
    return EighResult(*several("eigh", [_hermitian("eigh", x)]))


def eigvalsh(x: Operand) -> Array:
    """The eigenvalues of Hermitian (real: symmetric) matrices, ascending."""
    return eigh(x).eigenvalues


@checked
def svd(x: Operand, *, full_matrices: bool = True) -> SVDResult:
    """U, S and Vh with (U * S) @ Vh = x (..., m, n), where U has min(m, n) columns and Vh as many rows, or with
    `full_matrices` m and n."""
    return SVDResult(*several("svd", inexact(x), full=int(full_matrices)))


def svdvals(x: Operand) -> Array:
    """The singular values, descending."""
    return svd(x, full_matrices=False).S


# -- determinants and ranks -------------------------------------------------------------------------------


def det(x: Operand) -> Array:
    """The determinants of square matrices."""

    def product(a: Array) -> Array:
        pivots, sign = _pivots(a)
        return elementwise.multiply(sign, reductions.prod(pivots, -1))

    (a,) = inexact(x)
    _check_square("det", a)
    return _with_derivative("det", product, a)


def slogdet(x: Operand) -> SlogdetResult:
    """The sign of the determinant (complex: its direction) and the logarithm of its magnitude: 0 and -inf of a singular
    matrix."""
    (a,) = inexact(x)
    _check_square("slogdet", a)
    pivots, sign = _pivots(a)
    signs = reductions.prod(elementwise.sign(pivots), -1)
    return SlogdetResult(
        elementwise.multiply(sign, signs), reductions.sum(elementwise.log(elementwise.abs(pivots)), -1)
    )


def _pivots(a: Array) -> tuple[Array, Array]:
    """U's diagonal of the matrices' LU, and the sign that its swaps of rows give the determinant."""
    factors, swapped, _ = several("lu", [a])
    moved = elementwise.not_equal(swapped, creation.arange(a.shape[-1]))
    odd = elementwise.remainder(reductions.sum(moved, -1), 2)
    return diagonal(factors), cast(elementwise.subtract(1, elementwise.multiply(odd, 2)), a.type.dtype)


def matrix_rank(x: Operand, *, rtol: Any = None) -> Array:
    """How many singular values are above `rtol` times the largest; by default max(m, n) times the dtype's epsilon."""
    (a,) = inexact(x)
    return reductions.sum(_counted(svdvals(a), a.shape, rtol), -1)


def cond(x: Operand, p: Any = None) -> Array:
    """The condition number: the norm `p` of matrices times that of their inverses; None and 2 by singular values."""
    (array,) = inexact(x)
    if p is not None and _order(p) not in (2, -2):
        number = elementwise.multiply(matrix_norm(array, ord=p), matrix_norm(inv(array), ord=p))
    else:
        s = svdvals(array)
        number = elementwise.divide(s[..., -1], s[..., 0]) if p == -2 else elementwise.divide(s[..., 0], s[..., -1])
    unknown = reductions.any(elementwise.isnan(array), (-2, -1))
    return elementwise.where(elementwise.isnan(number) & ~unknown, math.inf, number)  # of 0 / 0, or without inverse


# -- products ---------------------------------------------------------------------------------------------


def cross(x1: Operand, x2: Operand, *, axis: int = -1) -> Array:
    """The cross product of vectors of three along `axis`, the other axes broadcast."""
    left, right = (manipulation.moveaxis(array, axis, -1) for array in operands(x1, x2))
    for side in (left, right):
        if side.shape[-1] != 3:
            raise ShapeError(f"cross needs three elements along axis {axis}, got {side.shape[-1]}")
    next1, next2 = (manipulation.roll(side, -1, -1) for side in (left, right))
    turned = elementwise.subtract(elementwise.multiply(left, next2), elementwise.multiply(next1, right))
    return manipulation.moveaxis(manipulation.roll(turned, -1, -1), -1, axis)


@checked
def matrix_norm(x: Operand, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norm of matrices: "fro" (Frobenius), 1 or -1 (of columns), inf or -inf (of rows), 2 or -2 (the largest or
    smallest singular value), or "nuc" (their sum)."""
    (array,) = inexact(x)
    if array.ndim < 2:
        raise ShapeError(f"matrix_norm needs two dimensions or more, got shape {array.shape}")
    if _order(ord) == "fro":
        return vector_norm(array, axis=(-2, -1), keepdims=keepdims)
    if ord in (2, -2, "nuc"):
        reduce: dict[Any, Callable[..., Array]] = {2: _largest, -2: reductions.min, "nuc": reductions.sum}
        size = reduce[ord](svdvals(array), -1)
        return size[..., None, None] if keepdims else size
    if ord not in (1, -1, math.inf, -math.inf):
        raise InputError(
            f"the matrix norm {ord!r} is not known", next_step="Known: 'fro', 'nuc', 1, -1, 2, -2, inf, -inf"
        )
    along, extreme = (-2 if abs(ord) == 1 else -1), (_largest if ord > 0 else reductions.min)
    size = extreme(reductions.sum(elementwise.abs(array), along, keepdims=True), -3 - along, keepdims=True)
    return size if keepdims else manipulation.squeeze(size, (-2, -1))


@checked
def matrix_power(x: Operand, n: int) -> Array:
    """Square matrices multiplied with themselves n times, or their inverses -n times."""
    array = asarray(x)
    _check_square("matrix_power", array)
    if n < 0:
        array, n = inv(array), -n
    result = manipulation.broadcast_to(eye(array.shape[-1], dtype=array.type.dtype), array.shape)
    square, started = array, False
    while n:
        if n & 1:
            result, started = (matmul(result, square) if started else square), True
        n >>= 1
        square = matmul(square, square) if n else square
    return result


@checked
def multi_dot(arrays: Sequence[Operand]) -> Array:
    """The product of two matrices or more, in the order that takes the fewest multiplications; the first may be a row
    and the last a column."""
    given = operands(*arrays)
    if len(given) < 2:
        raise InputError(f"multi_dot needs two arrays or more, got {len(given)}")
    ranks = [array.ndim for array in given]
    if any(rank != 2 for rank in ranks[1:-1]) or not {ranks[0], ranks[-1]} <= {1, 2}:
        raise ShapeError(f"multi_dot needs matrices, got shapes {', '.join(str(array.shape) for array in given)}")
    dims = [1 if ranks[0] == 1 else given[0].shape[0], *[array.shape[0] for array in given[1:]], given[-1].shape[-1]]
    if ranks[-1] == 1:
        dims[-1] = 1
    return _chain(given, _splits(dims), 0, len(given) - 1)


def _splits(dims: Sequence[int]) -> dict[tuple[int, int], int]:
    """The matrix behind which each stretch of a chain is best divided, where matrix i is dims[i] by dims[i + 1].

    Cormen et al., Introduction to Algorithms, 3rd edition, 15.2.
    """
    count = len(dims) - 1
    cost = {(at, at): 0 for at in range(count)}
    best = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            costs = {
                at: cost[first, at] + cost[at + 1, last] + dims[first] * dims[at + 1] * dims[last + 1]
                for at in range(first, last)
            }
            best[first, last] = min(costs, key=lambda at: costs[at])
            cost[first, last] = costs[best[first, last]]
    return best


def _chain(arrays: Sequence[Array], splits: dict[tuple[int, int], int], first: int, last: int) -> Array:
    if first == last:
        return arrays[first]
    at = splits[first, last]
    return matmul(_chain(arrays, splits, first, at), _chain(arrays, splits, at + 1, last))


@checked
def norm(x: Operand, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """numpy's norm: of vectors along one axis, of matrices along two, and without axes of all elements as one vector,
    or with `ord` of a vector or a matrix."""
    (array,) = inexact(x)
    if axis is None and (ord is None or array.ndim == 1):
        return vector_norm(array, keepdims=keepdims, ord=2 if ord is None else ord)
    axes = normal_axes(axis, array.ndim)
    if len(axes) == 1:
        return vector_norm(array, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ShapeError(f"a norm is of one axis or two, got {len(axes)}")
    moved = manipulation.moveaxis(array, axes, (-2, -1))
    result = matrix_norm(moved, ord="fro" if ord is None else ord)
    return manipulation.expand_dims(result, tuple(sorted(axes))) if keepdims else result


def outer(x1: Operand, x2: Operand) -> Array:
    """The products of every element of one vector with every element of the other."""
    left, right = operands(x1, x2)
    if (left.ndim, right.ndim) != (1, 1):
        raise ShapeError(f"outer needs two vectors, got {left.shape} and {right.shape}")
    return _outer(left, right)


@checked
def trace(x: Operand, *, offset: int = 0, dtype: DTypeLike = None) -> Array:
    """The sum of diagonal `offset` of the last two axes, in `dtype` or as `sum` has it."""
    return reductions.sum(diagonal(asarray(x, dtype), offset), -1, dtype=dtype)


@checked
def vector_norm(x: Operand, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """(sum of |x|**ord) ** (1/ord) over the axes; inf and -inf are the largest and smallest |x|, 0 counts."""
    (array,) = inexact(x)
    axes, size = normal_axes(axis, array.ndim), elementwise.abs(array)
    wide = reductions.wide_dtype(size.type.dtype)
    if wide is not size.type.dtype and ord not in (0, math.inf, -math.inf):  # the square of 256 is above every float16
        norm = vector_norm(cast(size, wide), axis=axis, keepdims=keepdims, ord=ord)
        return cast(norm, size.type.dtype)
    if ord in (math.inf, -math.inf):
        return (_largest if ord > 0 else reductions.min)(size, axes, keepdims=keepdims)
    if ord == 0:
        counted = elementwise.where(elementwise.equal(size, 0), elementwise.multiply(size, 0), 1)
        return reductions.sum(counted, axes, keepdims=keepdims)
    if ord == 1:
        return reductions.sum(size, axes, keepdims=keepdims)
    if ord == 2:
        return elementwise.sqrt(reductions.sum(elementwise.square(size), axes, keepdims=keepdims))
    return elementwise.pow(reductions.sum(elementwise.pow(size, ord), axes, keepdims=keepdims), 1 / ord)


# -- helpers ----------------------------------------------------------------------------------------------


def _order(ord: Any) -> Any:
    """The norm of matrices that is meant; an unknown one is refused by the function that computes it."""
    if not isinstance(ord, str | numbers.Real):
        raise InputError(f"ord of a matrix norm is a text or a number, not {value_text(ord)}")
    return ord


def _check_square(name: str, array: Array) -> None:
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise ShapeError(f"{name} needs square matrices, got shape {array.shape}")


def _identity(like: Array, dtype: DTypeLike = None) -> Array:
    return eye(like.shape[-1], dtype=dtype or like.type.dtype)


def _largest(sizes: Array, axis: Axis, *, keepdims: bool = False) -> Array:
    """The largest of what is not negative, 0 of nothing."""
    axes = normal_axes(axis, sizes.ndim)
    empty = any(sizes.shape[place] == 0 for place in axes)
    return (reductions.sum if empty else reductions.max)(sizes, axes, keepdims=keepdims)


def _with_derivative(name: str, function: Callable[[Array], Array], a: Array) -> Array:
    from ..transforms.composite_rules import applied  # which is made of this namespace

    return applied(name, function, a)


def _adjoint(array: Array) -> Array:
    return matrix_transpose(conj(array))


def _hermitian(name: str, x: Operand) -> Array:
    (a,) = inexact(x)
    _check_square(name, a)
    return elementwise.multiply(elementwise.add(a, _adjoint(a)), 0.5)


def _one_batch(a: Array, b: Array) -> tuple[Array, Array]:
    """Two stacks of matrices, broadcast to the same axes ahead of the matrices."""
    if a.shape[:-2] == b.shape[:-2]:
        return a, b
    ahead = manipulation.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (
        manipulation.broadcast_to(a, (*ahead, *a.shape[-2:])),
        manipulation.broadcast_to(b, (*ahead, *b.shape[-2:])),
    )


def _counted(s: Array, shape: tuple[int, ...], rtol: Any) -> Array:
    """A mask of the singular values that count, of matrices of `shape`."""
    if s.shape[-1] == 0:
        return elementwise.greater(s, 0)
    least = max(shape[-2:]) * finfo(s.type.dtype.numpy).eps if rtol is None else rtol
    bound = elementwise.multiply(least, reductions.max(s, -1))
    return elementwise.greater(s, bound[..., None])
