"""First values of weights, of explicit keys.

An initialiser is `fn(key, shape, dtype) -> Array`.  Weights lie as (out, in, *kernel): what one output sums over is the
product of all axes but the first (`fan_in`), what one input reaches that of all but the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from wire.errors import InputError, ShapeError

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy import random
from ..util.annotation_checks import checked

__all__ = [
    "fans", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "lecun_normal", "lecun_uniform", "normal",
    "ones", "orthogonal", "scaled", "truncated_normal", "uniform", "zeros",
]  # fmt: skip

Initialiser = Callable[..., Array]
_MODES, _DISTRIBUTIONS = ("fan_in", "fan_out", "fan_avg"), ("normal", "uniform")
_STEPS = 44  # each brings a small singular value 1.5 times nearer to 1: enough for one of 3e-8
_TRUNCATED = 0.87962566103423978  # the standard deviation of a standard normal distribution cut at 2


@checked
def zeros(key: Operand, shape: Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """All 0; the key is not used."""
    return mnp.zeros(shape, dtype=dtype)


@checked
def ones(key: Operand, shape: Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """All 1; the key is not used."""
    return mnp.ones(shape, dtype=dtype)


@checked
def normal(deviation: float = 0.02) -> Initialiser:
    """The normal distribution around 0, of this standard deviation."""
    return lambda key, shape, dtype=np.float32: random.normal(key, shape, dtype) * deviation


@checked
def truncated_normal(deviation: float = 0.02) -> Initialiser:
    """The normal distribution around 0, cut at two standard deviations; `deviation` is what it was before the cut."""
    return lambda key, shape, dtype=np.float32: random.truncated_normal(key, -2, 2, shape, dtype) * deviation


@checked
def uniform(bound: float) -> Initialiser:
    """The even distribution over [-bound, bound)."""
    return lambda key, shape, dtype=np.float32: random.uniform(key, shape, dtype, -bound, bound)


@checked
def scaled(scale: float, mode: str, distribution: str) -> Initialiser:
    """A distribution of variance `scale / fan`: normal (cut at two deviations) or uniform.

    `mode` says which fan: fan_in, fan_out or their mean fan_avg.  InputError if mode or distribution is not known.
    """
    for value, known in ((mode, _MODES), (distribution, _DISTRIBUTIONS)):
        if value not in known:
            raise InputError(f"{value!r} is not known", next_step=f"Choose one of {', '.join(known)}")

    def make(key: Operand, shape: Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        reached, summed = fans(shape)
        fan = {"fan_in": summed, "fan_out": reached, "fan_avg": (summed + reached) / 2}[mode]
        deviation = math.sqrt(scale / max(fan, 1))
        if distribution == "uniform":
            return uniform(math.sqrt(3) * deviation)(key, shape, dtype)
        return truncated_normal(deviation / _TRUNCATED)(key, shape, dtype)

    return make


@checked
def orthogonal(scale: float = 1.0) -> Initialiser:
    """Rows (or columns, whichever are fewer) that are orthonormal, times `scale`; later axes count as columns.

    The orthogonal factor of a normal matrix, by Newton and Schulz's iteration: Higham, "Functions of matrices", 8.3.
    Saxe et al., 2013 (arXiv 1312.6120).
    """

    def make(key: Operand, shape: Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        rows, columns = shape[0], math.prod(shape[1:])
        matrix = random.normal(key, (min(rows, columns), max(rows, columns)))
        matrix = matrix / mnp.sqrt(mnp.sum(matrix * matrix))
        for _ in range(_STEPS):
            matrix = 1.5 * matrix - 0.5 * ((matrix @ matrix.mT) @ matrix)
        return mnp.astype((matrix if rows <= columns else matrix.mT).reshape(tuple(shape)) * scale, dtype)

    return make


@checked
def fans(shape: Sequence[int]) -> tuple[int, int]:
    """The number of outputs that one input reaches, and of inputs that one output sums up."""
    if len(shape) < 2:
        raise ShapeError(f"a weight that is initialised by its fans has two axes or more, got {tuple(shape)}")
    kernel = math.prod(shape[2:])
    return shape[0] * kernel, shape[1] * kernel


lecun_normal = scaled(1.0, "fan_in", "normal")
lecun_uniform = scaled(1.0, "fan_in", "uniform")
glorot_normal = scaled(1.0, "fan_avg", "normal")
glorot_uniform = scaled(1.0, "fan_avg", "uniform")
he_normal = scaled(2.0, "fan_in", "normal")
he_uniform = scaled(2.0, "fan_in", "uniform")
