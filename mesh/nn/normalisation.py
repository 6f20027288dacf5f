"""Normalisation: layer, root mean square, group, instance, batch.

layer_norm is a composite: an engine may have a kernel for it.  Statistics of float16 and bfloat16 are made in float32.
"""

from __future__ import annotations

import math

from wire.errors import ShapeError
from wire.ir.dtypes import BF16, F16

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import asarray, cast, floats
from ..transforms.composite import composite
from ..util.annotation_checks import checked
from .precision import wide


@checked
def layer_norm(x: Operand, weight: Operand, bias: Operand, *, eps: float = 1e-5) -> Array:
    """Bring each row to mean 0 and variance 1, then scale and shift it.

    Parameters
    ----------
    x : array_like, (..., width)
        The rows.
    weight : array_like, (width,)
        The factors.
    bias : array_like, (width,)
        What is added.
    eps : float, optional
        Added to the variance; BERT's is 1e-12.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    Ba, Kiros and Hinton, 2016 (arXiv 1607.06450).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.layer_norm(np.array([[1.0, 3.0]]), np.ones(2), np.array([0.0, 5.0])), 3)
    array([[-1.,  6.]])
    """
    array, scale, shift = floats(x, weight, bias)
    if not array.ndim or scale.shape != array.shape[-1:] or shift.shape != array.shape[-1:]:
        raise ShapeError(
            f"layer_norm needs x (..., width), weight and bias (width,), "
            f"got {array.shape}, {scale.shape} and {shift.shape}"
        )
    return composite("layer_norm", _layer_norm, array, scale, shift, axis=array.ndim - 1, eps=float(eps))


@checked
def rms_norm(x: Operand, weight: Operand, *, eps: float = 1e-6) -> Array:
    """Divide each row by the root of its mean square, then scale it.

    Parameters
    ----------
    x : array_like, (..., width)
        The rows.
    weight : array_like, (width,)
        The factors.
    eps : float, optional
        Added to the mean square.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    Zhang and Sennrich, 2019 (arXiv 1910.07467).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.rms_norm(np.array([[3.0, 4.0]]), np.ones(2)), 3)
    array([[0.849, 1.131]])
    """
    array, scale = floats(x, weight)
    if not array.ndim or scale.shape != array.shape[-1:]:
        raise ShapeError(f"rms_norm needs x (..., width) and weight (width,), got {array.shape} and {scale.shape}")
    high = wide(array)
    mean = mnp.mean(high * high, -1, keepdims=True)
    return cast(high / mnp.sqrt(mean + eps), array.type.dtype) * scale


@checked
def group_norm(
    x: Operand, groups: int, weight: Operand | None = None, bias: Operand | None = None, *, eps: float = 1e-5
) -> Array:
    """Bring each group of channels of a sample to mean 0 and variance 1, then scale and shift.

    Parameters
    ----------
    x : array_like, (n, channels, *dims)
        The values.
    groups : int
        The number of groups, which divides the channels.
    weight : array_like, (channels,), optional
        The factor of each channel.
    bias : array_like, (channels,), optional
        What is added to each channel.
    eps : float, optional
        Added to the variance, so that nothing is divided by 0.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    ShapeError
        If the groups do not divide the channels.

    Notes
    -----
    Wu and He, 2018 (arXiv 1803.08494).  As many groups as channels are an instance norm.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2), 3)
    array([[-1.,  1., -1.,  1.]])
    """
    (array,) = floats(x)
    if array.ndim < 2 or groups < 1 or array.shape[1] % groups:
        raise ShapeError(f"group_norm of {array.shape} in {groups} groups")
    share = math.prod(array.shape[1:]) // groups
    rows = wide(array).reshape(array.shape[0], groups, share)
    centred = rows - mnp.mean(rows, -1, keepdims=True)
    variance = mnp.mean(centred * centred, -1, keepdims=True)
    normalised = cast((centred / mnp.sqrt(variance + eps)).reshape(array.shape), array.type.dtype)
    return _by_channel(normalised, weight, bias)


@checked
def instance_norm(
    x: Operand, weight: Operand | None = None, bias: Operand | None = None, *, eps: float = 1e-5
) -> Array:
    """Bring each channel of a sample to mean 0 and variance 1, then scale and shift.

    Parameters
    ----------
    x : array_like, (n, channels, *dims)
        The values.
    weight : array_like, (channels,), optional
        The factor of each channel.
    bias : array_like, (channels,), optional
        What is added to each channel.
    eps : float, optional
        Added to the variance, so that nothing is divided by 0.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    ShapeError
        If x has no channels.

    Notes
    -----
    Ulyanov et al., 2016 (arXiv 1607.08022).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.instance_norm(np.array([[[1.0, 3.0], [10.0, 30.0]]])), 3)
    array([[[-1.,  1.],
            [-1.,  1.]]])
    """
    array = asarray(x)
    return group_norm(array, array.shape[1] if array.ndim > 1 else 0, weight, bias, eps=eps)


@checked
def batch_norm(
    x: Operand,
    mean: Operand,
    variance: Operand,
    weight: Operand | None = None,
    bias: Operand | None = None,
    *,
    eps: float = 1e-5,
) -> Array:
    """Bring each channel to mean 0 and variance 1 by statistics that are given, then scale and shift.

    Parameters
    ----------
    x : array_like, (n, channels, *dims)
        The values.
    mean : array_like, (channels,)
        The mean of each channel.
    variance : array_like, (channels,)
        The variance of each channel.
    weight : array_like, (channels,), optional
        The factor of each channel.
    bias : array_like, (channels,), optional
        What is added to each channel.
    eps : float, optional
        Added to the variance, so that nothing is divided by 0.

    Returns
    -------
    Array
        The results, of the shape of x; of its dtype, too, if that is float16 or bfloat16.

    Raises
    ------
    ShapeError
        If x has no channels.

    Notes
    -----
    Ioffe and Szegedy, 2015 (arXiv 1502.03167).  `batch_statistics` gives the statistics of x itself.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.batch_norm(np.array([[1.0], [3.0]]), np.array([2.0]), np.array([4.0])), 3)
    array([[-0.5],
           [ 0.5]])
    """
    (array,) = floats(x)
    if array.ndim < 2:
        raise ShapeError(f"batch_norm needs x (n, channels, *dims), got {array.shape}")
    high, centre, spread = floats(wide(array), mean, variance)
    scale = 1 / mnp.sqrt(spread + eps)
    normalised = _by_channel(
        _by_channel(high, None, -centre), scale if weight is None else mnp.multiply(scale, weight), bias
    )
    return cast(normalised, array.type.dtype) if array.type.dtype in (F16, BF16) else normalised


def batch_statistics(x: Operand) -> tuple[Array, Array]:
    """Mean and variance of each channel, over everything else.

    Parameters
    ----------
    x : array_like, (n, channels, *dims)
        The values.

    Returns
    -------
    tuple of Array
        Mean and variance, (channels,) each.

    Raises
    ------
    ShapeError
        If x has no channels.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.batch_statistics(np.array([[1.0], [3.0]]))
    (Array([2.], dtype=float64), Array([1.], dtype=float64))
    """
    (array,) = floats(x)
    if array.ndim < 2:
        raise ShapeError(f"batch_statistics needs x (n, channels, *dims), got {array.shape}")
    axes = (0, *range(2, array.ndim))
    high = wide(array)
    mean = mnp.mean(high, axes, keepdims=True)
    centred = high - mean
    return mean.reshape(-1), mnp.mean(centred * centred, axes)


def _layer_norm(x: Array, weight: Array, bias: Array, axis: int, eps: float) -> Array:
    high = wide(x)
    centred = high - high.mean(axis, keepdims=True)
    variance = (centred * centred).mean(axis, keepdims=True)
    return cast(centred / mnp.sqrt(variance + eps) * wide(weight) + wide(bias), x.type.dtype)


def _by_channel(x: Array, weight: Operand | None, bias: Operand | None) -> Array:
    """x (n, channels, *dims) times weight plus bias, both (channels,)."""
    shape = (-1, *[1] * (x.ndim - 2))
    if weight is not None:
        x = x * asarray(weight).reshape(shape)
    return x if bias is None else x + asarray(bias).reshape(shape)
