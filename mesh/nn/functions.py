"""Linear maps, tables and softmax.

softmax and log_softmax are composites: an engine may have a kernel for them, every other evaluates the body given here.
"""

from __future__ import annotations

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import I32, I64, U32, U64

from .. import numpy as mnp
from ..core.array import Array, Operand, apply
from ..numpy.contraction import Labelled, contract
from ..numpy.promotion import asarray, cast, floats, operands
from ..numpy.reductions import normal_axis
from ..transforms.composite import composite
from ..transforms.custom_rules import stop_gradient
from ..util.annotation_checks import checked
from .precision import wide


def embedding(indices: Operand, table: Operand) -> Array:
    """Rows of a table by their indices.

    Parameters
    ----------
    indices : array_like of int, (...)
        Row numbers from 0 to n - 1.
    table : array_like, (n, width)
        The rows.

    Returns
    -------
    Array
        The rows, (..., width).

    Raises
    ------
    DTypeError
        If the indices are no integers.
    ShapeError
        If the table does not have two dimensions.
    InputError
        If an index whose value is known is outside of the table; computed ones are clamped.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.embedding(np.array([2, 0]), np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    Array([[4., 5.],
           [0., 1.]], dtype=float64)
    """
    rows, index = asarray(table), asarray(indices)
    if index.type.dtype.kind not in "iu":
        raise DTypeError(f"embedding needs integer indices, got {index.type.dtype.name}")
    if rows.ndim != 2:
        raise ShapeError(f"an embedding table has shape (n, width), got {rows.shape}")
    check_known(index, rows.shape[0], "an index")
    narrow = cast(index, I32) if index.type.dtype in (I64, U32, U64) and rows.shape[0] < 1 << 31 else index
    return apply("gather", rows, narrow, axis=0, batch_dims=0)


def linear(x: Operand, weight: Operand, bias: Operand | None = None) -> Array:
    """A linear map, `x @ weight.T + bias`.

    Parameters
    ----------
    x : array_like, (..., in)
        The inputs.
    weight : array_like, (out, in)
        The matrix, as torch lays it out.
    bias : array_like, (out,), optional
        What is added to every row.

    Returns
    -------
    Array
        The outputs, (..., out).

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.linear(np.array([1.0, 2.0]), np.array([[1.0, 1.0], [0.0, 3.0]]), np.array([0.5, 0.0]))
    Array([3.5, 6. ], dtype=float64)
    """
    rows, matrix = operands(x, weight)
    if matrix.ndim != 2 or rows.ndim < 1 or rows.shape[-1] != matrix.shape[1]:
        raise ShapeError(f"linear needs x (..., in) and weight (out, in), got {rows.shape} and {matrix.shape}")
    free = tuple(range(rows.ndim - 1))
    product = contract(Labelled(rows, (*free, "in")), Labelled(matrix, ("out", "in")), (*free, "out"))
    return product if bias is None else mnp.add(product, bias)


@checked
def softmax(x: Operand, axis: int = -1) -> Array:
    """The exponentials of x, scaled to sum 1 along an axis.

    Parameters
    ----------
    x : array_like
        Scores of any shape.
    axis : int, optional
        The axis along which the results sum to 1.

    Returns
    -------
    Array
        Probabilities, of the shape of x.

    Raises
    ------
    InputError
        If the axis does not exist.

    Notes
    -----
    The maximum is subtracted first, so that nothing overflows.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.softmax(np.array([1.0, 2.0, 3.0])), 3)
    array([0.09 , 0.245, 0.665])
    """
    (array,) = floats(x)
    return composite("softmax", softmax_body, array, axis=normal_axis(axis, array.ndim))


@checked
def log_softmax(x: Operand, axis: int = -1) -> Array:
    """The logarithm of `softmax`, accurate where softmax underflows.

    Parameters
    ----------
    x : array_like
        Scores of any shape.
    axis : int, optional
        The axis along which the probabilities sum to 1.

    Returns
    -------
    Array
        Logarithms of probabilities, of the shape of x.

    Raises
    ------
    InputError
        If the axis does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.log_softmax(np.array([0.0, 1000.0])), 3)
    array([-1000.,     0.])
    """
    (array,) = floats(x)
    return composite("log_softmax", _log_softmax, array, axis=normal_axis(axis, array.ndim))


# -- bodies -----------------------------------------------------------------------------------------------


def softmax_body(x: Array, axis: int = -1) -> Array:
    """The expansion of softmax.  The maximum cancels out, so it needs no derivative."""
    high = wide(x)
    grown = mnp.exp(high - stop_gradient(high.max(axis, keepdims=True)))
    return cast(grown / grown.sum(axis, keepdims=True), x.type.dtype)


def _log_softmax(x: Array, axis: int) -> Array:
    high = wide(x)
    peak: Array = stop_gradient(high.max(axis, keepdims=True))
    shifted = high - peak
    return cast(shifted - mnp.log(mnp.exp(shifted).sum(axis, keepdims=True)), x.type.dtype)


def check_known(index: Array, count: int, what: str, but: int | None = None) -> None:
    """Raise InputError if a known index is outside [0, count) and not `but`; computed ones cannot be checked."""
    if index.value is not None:
        outside = (index.value < 0) | (index.value >= count)
        if but is not None:
            outside &= index.value != but
        if outside.any():
            raise InputError(f"{what} is {index.value[outside].flat[0]}, and there are {count}")
