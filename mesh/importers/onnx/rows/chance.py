"""Random ops, and Dropout.

A graph has no hidden state, so a random op needs its `seed`: the same seed gives the same numbers, which ONNX leaves
open.  Dropout is the identity; in training it is out of scope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wire.dtypes import BF16, BOOL, F16, F32, DType

from .... import nn
from .... import numpy as mnp
from ....array import Array, apply, value_array
from ....numpy.promotion import cast
from ..evaluate import Call, Row
from ..known import value_of
from .elementwise import dtype_numbered


def _bits(call: Call, shape: Sequence[int], stream: int = 0) -> Array:
    seed = call.attr("seed")
    if seed is None:
        raise call.unsupported("random numbers without the attribute `seed`")
    key = np.asarray([np.asarray(seed, np.float32).view(np.uint32), stream], np.uint32)
    return apply("random_bits", value_array(key), shape=tuple(shape))


def _uniform(call: Call, shape: Sequence[int], stream: int = 0) -> Array:
    """float32 in [0, 1)."""
    bits = mnp.bitwise_right_shift(_bits(call, shape, stream), value_array(np.asarray(8, np.uint32)))
    return mnp.multiply(cast(bits, F32), 2.0**-24)


def _normal(call: Call, shape: Sequence[int]) -> Array:
    """float32 of the standard normal distribution (Box and Muller, 1958)."""
    radius = mnp.sqrt(mnp.multiply(mnp.log(mnp.subtract(1.0, _uniform(call, shape))), -2.0))
    return mnp.multiply(radius, mnp.cos(mnp.multiply(_uniform(call, shape, 1), 2 * math.pi)))


def _random(normal: bool, like_input: bool) -> Row:
    def row(call: Call, *inputs: Array) -> Array:
        number = call.attr("dtype")
        default = inputs[0].type.dtype if like_input else F32
        dtype = default if number is None else dtype_numbered(call, number)
        shape = inputs[0].shape if like_input else call.required("shape")
        if normal:
            found = mnp.add(mnp.multiply(_normal(call, shape), call.attr("scale", 1.0)), call.attr("mean", 0.0))
        else:
            low, high = call.attr("low", 0.0), call.attr("high", 1.0)
            found = mnp.add(mnp.multiply(_uniform(call, shape), high - low), low)
        return cast(found, dtype)

    return row


def _bernoulli(call: Call, x: Array) -> Array:
    number = call.attr("dtype")
    wide = cast(x, F32) if x.type.dtype in (F16, BF16) else x
    hit = mnp.less(cast(_uniform(call, x.shape), wide.type.dtype), wide)
    return cast(hit, x.type.dtype if number is None else dtype_numbered(call, number))


def _multinomial(call: Call, x: Array) -> Array:
    bounds = apply("cumsum", nn.softmax(x, 1), axis=1)  # (batch, classes) of unnormalised logarithms
    drawn = cast(_uniform(call, (x.shape[0], call.attr("sample_size", 1))), x.type.dtype)
    below = mnp.less_equal(bounds[:, None, :-1], drawn[:, :, None])
    return cast(mnp.sum(below, 2), dtype_numbered(call, call.attr("dtype", 6)))


def _dropout(call: Call, x: Array, ratio: Array | None = None, training: Array | None = None) -> tuple[Array, Array]:
    if training is not None and bool(value_of(training).reshape(())):
        share = 0.5 if ratio is None else float(value_of(ratio).reshape(()))
        if share:
            raise call.unsupported("dropout in training")
    mask: DType = BOOL if call.version >= 10 else x.type.dtype
    return x, mnp.ones(x.shape, dtype=mask)


ROWS: dict[str, Row] = {
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "Multinomial": _multinomial,
    "RandomNormal": _random(True, False),
    "RandomNormalLike": _random(True, True),
    "RandomUniform": _random(False, False),
    "RandomUniformLike": _random(False, True),
}
