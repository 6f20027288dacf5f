"""Random ops, and Dropout.

A graph has no hidden state, so a random op needs its `seed`: the same seed gives the same numbers, which ONNX leaves
open.  Dropout is the identity; in training it is out of scope.
"""

from __future__ import annotations

import numpy as np

from wire.ir.dtypes import BOOL, F32, DType

from .... import numpy as mnp
from ....core.array import Array
from ....numpy import random
from ....numpy.promotion import cast
from ..constant_folding import value_of
from ..evaluate import Call, Row
from .elementwise import dtype_numbered


def _key(call: Call) -> Array:
    seed = call.attr("seed")
    if seed is None:
        raise call.unsupported("random numbers without the attribute `seed`")
    return random.key(int(np.float32(seed).view(np.uint32)))


def _random(normal: bool, like_input: bool) -> Row:
    def row(call: Call, *inputs: Array) -> Array:
        number = call.attr("dtype")
        default = inputs[0].type.dtype if like_input else F32
        dtype = default if number is None else dtype_numbered(call, number)
        shape = inputs[0].shape if like_input else call.required("shape")
        if normal:
            drawn = random.normal(_key(call), shape, dtype)
            return mnp.add(mnp.multiply(drawn, call.attr("scale", 1.0)), call.attr("mean", 0.0))
        return random.uniform(_key(call), shape, dtype, call.attr("low", 0.0), call.attr("high", 1.0))

    return row


def _bernoulli(call: Call, x: Array) -> Array:
    number = call.attr("dtype")
    return cast(random.bernoulli(_key(call), x), x.type.dtype if number is None else dtype_numbered(call, number))


def _multinomial(call: Call, x: Array) -> Array:
    """Rows of `sample_size` draws from the classes of each row of unnormalised logarithms."""
    drawn = random.categorical(_key(call), x, -1, (call.attr("sample_size", 1), x.shape[0]))
    return cast(drawn.T, dtype_numbered(call, call.attr("dtype", 6)))


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
