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
    """max(x, 0), with the slope 0 at 0."""
    return mnp.where(mnp.less_equal(x, 0), 0, x)


def relu6(x: Operand) -> Array:
    """min(max(x, 0), 6)."""
    return _limited(x, 0, 6)


def leaky_relu(x: Operand, slope: Operand = 0.01) -> Array:
    """x where it is positive, else slope * x; with an array of slopes, PReLU."""
    (array,) = floats(x)
    return mnp.where(array > 0, array, mnp.multiply(array, slope))


@checked
@rounded_once
def elu(x: Operand, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha * (exp(x) - 1).  Clevert et al., 2015 (arXiv 1511.07289)."""
    (array,) = floats(x)
    return mnp.where(array > 0, array, alpha * mnp.expm1(_below(array)))


@checked
def celu(x: Operand, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""
    (array,) = floats(x)
    return mnp.where(array > 0, array, alpha * mnp.expm1(_below(array) / alpha))


def selu(x: Operand) -> Array:
    """A scaled elu that keeps mean 0 and variance 1.  Klambauer et al., 2017 (arXiv 1706.02515)."""
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@rounded_once
def sigmoid(x: Operand) -> Array:
    """1 / (1 + exp(-x))."""
    (array,) = floats(x)
    positive = array > 0
    small = mnp.exp(mnp.where(positive, -array, array))
    return mnp.where(positive, 1, small) / (1 + small)


@rounded_once
def log_sigmoid(x: Operand) -> Array:
    """log(sigmoid(x)), accurate where the sigmoid underflows."""
    (array,) = floats(x)
    return -softplus(-array)


@rounded_once
def softplus(x: Operand) -> Array:
    """log(1 + exp(x))."""
    (array,) = floats(x)
    positive = array > 0
    return mnp.where(positive, array, 0) + mnp.log1p(mnp.exp(mnp.where(positive, -array, array)))


@rounded_once
def softsign(x: Operand) -> Array:
    """x / (1 + |x|)."""
    (array,) = floats(x)
    return array / (1 + mnp.abs(array))


@rounded_once
def silu(x: Operand) -> Array:
    """x * sigmoid(x), also called swish."""
    (array,) = floats(x)
    return array * sigmoid(array)


@rounded_once
def mish(x: Operand) -> Array:
    """x * tanh(softplus(x)).  Misra, 2019 (arXiv 1908.08681)."""
    (array,) = floats(x)
    return array * mnp.tanh(softplus(array))


@checked
def hard_tanh(x: Operand, low: float = -1.0, high: float = 1.0) -> Array:
    """x clipped to [low, high]."""
    return _limited(x, low, high)


def hard_sigmoid(x: Operand) -> Array:
    """min(max(x / 6 + 1/2, 0), 1)."""
    (array,) = floats(x)
    return _limited(array / 6 + 0.5, 0, 1)


def hard_swish(x: Operand) -> Array:
    """x * hard_sigmoid(x).  Howard et al., 2019 (arXiv 1905.02244)."""
    (array,) = floats(x)
    return array * hard_sigmoid(array)


@checked
def gelu(x: Operand, *, approximate: bool = False) -> Array:
    """x times the normal distribution's cumulative function; `approximate` takes the tanh form.

    Hendrycks and Gimpel, 2016 (arXiv 1606.08415); BERT uses the exact form, GPT-2 the tanh form.
    """
    (array,) = floats(x)
    return composite("gelu_tanh" if approximate else "gelu", _gelu_tanh if approximate else _gelu, array)


@checked
def glu(x: Operand, axis: int = -1) -> Array:
    """The first half of x along `axis`, times the sigmoid of the second.  Dauphin et al., 2016 (arXiv 1612.08083)."""
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
