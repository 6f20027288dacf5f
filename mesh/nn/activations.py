"""Activations: elementwise functions of floats; integers become float32.

Formulas are the usual ones, written so that neither value nor derivative overflows; where they have branches, each is
right at the border too, since max, min and abs have other slopes there.  gelu is a composite: an engine
may have a kernel for it.  To add one: a function here and its name in `mesh/nn/__init__.py`.
"""

from __future__ import annotations

import math

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import cast, floats
from ..transforms.composite import composite
from ..util.annotation_checks import checked
from .precision import rounded_once, wide


def relu(x: Operand) -> Array:
    """The larger of x and 0, with the slope 0 at 0.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.relu(np.array([-1.0, 0.0, 2.0]))
    Array([0., 0., 2.], dtype=float64)
    """
    return mnp.where(mnp.less_equal(x, 0), 0, x)


def relu6(x: Operand) -> Array:
    """The larger of x and 0, but 6 at most.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.relu6(np.array([-1.0, 2.0, 9.0]))
    Array([0., 2., 6.], dtype=float64)
    """
    return _limited(x, 0, 6)


def leaky_relu(x: Operand, slope: Operand = 0.01) -> Array:
    """The value x where it is positive, else slope * x.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.
    slope : float or array_like, optional
        The slope below 0; an array of slopes, which broadcasts to x, makes a PReLU.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.leaky_relu(np.array([-1.0, 2.0]))
    Array([-0.01,  2.  ], dtype=float64)
    """
    (array,) = floats(x)
    return mnp.where(array > 0, array, mnp.multiply(array, slope))


@checked
@rounded_once
def elu(x: Operand, alpha: float = 1.0) -> Array:
    """The value x where it is positive, else `alpha * (exp(x) - 1)`.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.
    alpha : float, optional
        Minus the limit for small x.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    InputError
        If alpha is no number.

    Notes
    -----
    Clevert et al., 2015 (arXiv 1511.07289).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.elu(np.array([-1.0, 2.0])), 3)
    array([-0.632,  2.   ])
    """
    (array,) = floats(x)
    return mnp.where(array > 0, array, alpha * mnp.expm1(_below(array)))


@checked
def celu(x: Operand, alpha: float = 1.0) -> Array:
    """The value x where it is positive, else `alpha * (exp(x / alpha) - 1)`.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.
    alpha : float, optional
        Minus the limit for small x.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    InputError
        If alpha is no number.

    Notes
    -----
    Barron, 2017 (arXiv 1704.07483).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.celu(np.array([-1.0, 2.0]), alpha=2.0), 3)
    array([-0.787,  2.   ])
    """
    (array,) = floats(x)
    return mnp.where(array > 0, array, alpha * mnp.expm1(_below(array) / alpha))


def selu(x: Operand) -> Array:
    """A scaled `elu` that keeps mean 0 and variance 1.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Notes
    -----
    Klambauer et al., 2017 (arXiv 1706.02515).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.selu(np.array([-1.0, 1.0])), 3)
    array([-1.111,  1.051])
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@rounded_once
def sigmoid(x: Operand) -> Array:
    """The logistic function, `1 / (1 + exp(-x))`.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.sigmoid(np.array([-2.0, 0.0, 2.0])), 3)
    array([0.119, 0.5  , 0.881])
    """
    (array,) = floats(x)
    positive = array > 0
    small = mnp.exp(mnp.where(positive, -array, array))
    return mnp.where(positive, 1, small) / (1 + small)


@rounded_once
def log_sigmoid(x: Operand) -> Array:
    """The logarithm of the sigmoid, accurate where the sigmoid underflows.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.log_sigmoid(np.array([-100.0, 0.0])), 3)
    array([-100.   ,   -0.693])
    """
    (array,) = floats(x)
    return -softplus(-array)


@rounded_once
def softplus(x: Operand) -> Array:
    """A smooth `relu`, `log(1 + exp(x))`, which never overflows.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.softplus(np.array([-2.0, 0.0, 100.0])), 3)
    array([  0.127,   0.693, 100.   ])
    """
    (array,) = floats(x)
    positive = array > 0
    return mnp.where(positive, array, 0) + mnp.log1p(mnp.exp(mnp.where(positive, -array, array)))


@rounded_once
def softsign(x: Operand) -> Array:
    """The value `x / (1 + |x|)`, between -1 and 1.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.softsign(np.array([-1.0, 3.0]))
    Array([-0.5 ,  0.75], dtype=float64)
    """
    (array,) = floats(x)
    return array / (1 + mnp.abs(array))


@rounded_once
def silu(x: Operand) -> Array:
    """The value `x * sigmoid(x)`, also called swish.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Notes
    -----
    Elfwing et al., 2017 (arXiv 1702.03118).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.silu(np.array([-1.0, 1.0])), 3)
    array([-0.269,  0.731])
    """
    (array,) = floats(x)
    return array * sigmoid(array)


@rounded_once
def mish(x: Operand) -> Array:
    """The value `x * tanh(softplus(x))`.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Notes
    -----
    Misra, 2019 (arXiv 1908.08681).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.mish(np.array([-1.0, 1.0])), 3)
    array([-0.303,  0.865])
    """
    (array,) = floats(x)
    return array * mnp.tanh(softplus(array))


@checked
def hard_tanh(x: Operand, low: float = -1.0, high: float = 1.0) -> Array:
    """The value x, clipped to [low, high].

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.
    low : float, optional
        The lower limit.
    high : float, optional
        The upper limit.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    InputError
        If a limit is no number.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.hard_tanh(np.array([-3.0, 0.5, 3.0]))
    Array([-1. ,  0.5,  1. ], dtype=float64)
    """
    return _limited(x, low, high)


def hard_sigmoid(x: Operand) -> Array:
    """A sigmoid of straight lines, `x / 6 + 1 / 2` clipped to [0, 1].

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.hard_sigmoid(np.array([-3.0, 0.0, 1.5]))
    Array([0.  , 0.5 , 0.75], dtype=float64)
    """
    (array,) = floats(x)
    return _limited(array / 6 + 0.5, 0, 1)


def hard_swish(x: Operand) -> Array:
    """The value `x * hard_sigmoid(x)`.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.

    Returns
    -------
    Array
        The results, of the shape of x.

    Notes
    -----
    Howard et al., 2019 (arXiv 1905.02244).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.hard_swish(np.array([1.0, 3.0])), 3)
    array([0.667, 3.   ])
    """
    (array,) = floats(x)
    return array * hard_sigmoid(array)


@checked
def gelu(x: Operand, *, approximate: bool = False) -> Array:
    """The value x times the cumulative distribution function of the normal distribution.

    Parameters
    ----------
    x : array_like
        Values of any shape; integers become float32.
    approximate : bool, optional
        Whether to take the tanh form, as GPT-2 does; BERT takes the exact one.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    InputError
        If `approximate` is neither True nor False.

    Notes
    -----
    Hendrycks and Gimpel, 2016 (arXiv 1606.08415).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.gelu(np.array([-1.0, 1.0])), 3)
    array([-0.159,  0.841])
    """
    (array,) = floats(x)
    return composite("gelu_tanh" if approximate else "gelu", _gelu_tanh if approximate else _gelu, array)


@checked
def glu(x: Operand, axis: int = -1) -> Array:
    """A gated linear unit: the first half of x times the sigmoid of the second.

    Parameters
    ----------
    x : array_like, (..., 2 * n, ...)
        Values whose length along `axis` is even.
    axis : int, optional
        The axis that is halved.

    Returns
    -------
    Array
        The results, half as long along `axis`.

    Raises
    ------
    InputError
        If the axis does not exist.
    ShapeError
        If its length is odd.

    Notes
    -----
    Dauphin et al., 2016 (arXiv 1612.08083).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.glu(np.array([1.0, 2.0, 0.0, 4.0])), 3)
    array([0.5  , 1.964])
    """
    (array,) = floats(x)
    value, gate = mnp.split(array, 2, axis)
    return value * sigmoid(gate)


def _below(x: Array) -> Array:
    """min(x, 0) with the slope 1 at 0."""
    return mnp.where(x > 0, 0, x)


def _limited(x: Operand, low: float, high: float) -> Array:
    """x clipped to [low, high], with the slope 0 at both ends."""
    return mnp.where(mnp.less_equal(x, low), low, mnp.where(mnp.greater_equal(x, high), high, x))


def _gelu(x: Array) -> Array:
    high = wide(x)
    return cast(high * 0.5 * (1 + mnp.erf(high * math.sqrt(0.5))), x.type.dtype)


def _gelu_tanh(x: Array) -> Array:
    y = wide(x)
    return cast(y * 0.5 * (1 + mnp.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y))), x.type.dtype)
