"""Layers: frozen dataclasses of weights that can be called.

A layer is a pytree: `mesh.put(layer)` gives the same layer with handles, and a traced function takes it as an argument.
Numbers that shape the computation (eps, heads, strides) are static fields.  `Layer.init(key, ...)` makes one with first
values; what is random while training (dropout) takes a key, and what has state (batch norm) takes it and gives it back.
Layers of transformers are in `transformer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wire.errors import InputError

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy import random
from ..numpy.promotion import floats
from ..util.annotation_checks import checked
from ..util.argument_checks import check_function, integer
from . import activations, convolution, functions, initialisers, normalisation
from .initialisers import Initialiser

STATIC = {"static": True}
Ints = int | Sequence[int]


def check_parts(layer: Any, *names: str) -> None:
    """InputError naming the first of these parts of a layer that is no layer or function itself."""
    for name in names:
        check_function(getattr(layer, name), f"{name} of {type(layer).__name__}")


def grouped(channels: int, groups: int, what: str) -> int:
    """How many of the channels each group has."""
    return channels // integer(groups, what, 1)


def _bias(wanted: bool, size: int, dtype: Any) -> Array | None:
    return mnp.zeros((size,), dtype=dtype) if wanted else None


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight^T + bias; weight (out, in), bias (out,) or None."""

    weight: Operand
    bias: Operand | None = None

    @classmethod
    @checked
    def init(
        cls, key: Operand, inputs: int, outputs: int, *, bias: bool = True,
        initialiser: Initialiser = initialisers.lecun_normal, dtype: Any = np.float32,
    ) -> Linear:  # fmt: skip
        """From `inputs` to `outputs` features."""
        return cls(initialiser(key, (outputs, inputs), dtype), _bias(bias, outputs, dtype))

    def __call__(self, x: Operand) -> Array:
        return functions.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Conv:
    """`conv` by weight (out, in / groups, *kernel), plus bias (out,); as many axes as the kernel has."""

    weight: Operand
    bias: Operand | None = None
    stride: Ints = field(default=1, metadata=STATIC)
    padding: Any = field(default=0, metadata=STATIC)
    dilation: Ints = field(default=1, metadata=STATIC)
    groups: int = field(default=1, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, inputs: int, outputs: int, kernel: Sequence[int], *, stride: Ints = 1, padding: Any = 0,
        dilation: Ints = 1, groups: int = 1, bias: bool = True, initialiser: Initialiser = initialisers.lecun_normal,
        dtype: Any = np.float32,
    ) -> Conv:  # fmt: skip
        """From `inputs` to `outputs` channels by a kernel of these sizes."""
        weight = initialiser(key, (outputs, grouped(inputs, groups, "groups of Conv.init"), *kernel), dtype)
        return cls(weight, _bias(bias, outputs, dtype), stride, padding, dilation, groups)

    def __call__(self, x: Operand) -> Array:
        options: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return convolution.conv(x, self.weight, self.bias, **options, groups=self.groups)


@dataclass(frozen=True, slots=True)
class ConvTranspose:
    """`conv_transpose` by weight (in, out / groups, *kernel), plus bias (out,)."""

    weight: Operand
    bias: Operand | None = None
    stride: Ints = field(default=1, metadata=STATIC)
    padding: Any = field(default=0, metadata=STATIC)
    output_padding: Ints = field(default=0, metadata=STATIC)
    dilation: Ints = field(default=1, metadata=STATIC)
    groups: int = field(default=1, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, inputs: int, outputs: int, kernel: Sequence[int], *, stride: Ints = 1, padding: Any = 0,
        output_padding: Ints = 0, dilation: Ints = 1, groups: int = 1, bias: bool = True,
        initialiser: Initialiser = initialisers.lecun_normal, dtype: Any = np.float32,
    ) -> ConvTranspose:  # fmt: skip
        """From `inputs` to `outputs` channels by a kernel of these sizes."""
        weight = initialiser(key, (inputs, grouped(outputs, groups, "groups of ConvTranspose.init"), *kernel), dtype)
        return cls(weight, _bias(bias, outputs, dtype), stride, padding, output_padding, dilation, groups)

    def __call__(self, x: Operand) -> Array:
        options: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        more: dict[str, Any] = {"output_padding": self.output_padding, "groups": self.groups}
        return convolution.conv_transpose(x, self.weight, self.bias, **options, **more)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of a table (n, width)."""

    table: Operand

    @classmethod
    @checked
    def init(
        cls, key: Operand, count: int, width: int, *, initialiser: Initialiser | None = None, dtype: Any = np.float32
    ) -> Embedding:
        """`count` rows, normally distributed with variance 1 / width by default."""
        integer(width, "width of Embedding.init", 1)
        return cls((initialiser or initialisers.normal(width**-0.5))(key, (count, width), dtype))

    def __call__(self, indices: Operand) -> Array:
        return functions.embedding(indices, self.table)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalisation along the last axis; weight and bias (width,)."""

    weight: Operand
    bias: Operand
    eps: float = field(default=1e-5, metadata=STATIC)

    @classmethod
    @checked
    def init(cls, width: int, *, eps: float = 1e-5, dtype: Any = np.float32) -> LayerNorm:
        """Weight 1, bias 0."""
        return cls(mnp.ones((width,), dtype=dtype), mnp.zeros((width,), dtype=dtype), eps)

    def __call__(self, x: Operand) -> Array:
        return normalisation.layer_norm(x, self.weight, self.bias, eps=self.eps)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Division by the root of the mean square along the last axis; weight (width,)."""

    weight: Operand
    eps: float = field(default=1e-6, metadata=STATIC)

    @classmethod
    @checked
    def init(cls, width: int, *, eps: float = 1e-6, dtype: Any = np.float32) -> RMSNorm:
        """Weight 1."""
        return cls(mnp.ones((width,), dtype=dtype), eps)

    def __call__(self, x: Operand) -> Array:
        return normalisation.rms_norm(x, self.weight, eps=self.eps)


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """Normalisation of (n, channels, *dims) over groups of channels; weight and bias (channels,)."""

    weight: Operand
    bias: Operand
    groups: int = field(metadata=STATIC)
    eps: float = field(default=1e-5, metadata=STATIC)

    @classmethod
    @checked
    def init(cls, channels: int, groups: int, *, eps: float = 1e-5, dtype: Any = np.float32) -> GroupNorm:
        """Weight 1, bias 0."""
        return cls(mnp.ones((channels,), dtype=dtype), mnp.zeros((channels,), dtype=dtype), groups, eps)

    def __call__(self, x: Operand) -> Array:
        return normalisation.group_norm(x, self.groups, self.weight, self.bias, eps=self.eps)


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The running mean and variance of each channel, what a BatchNorm knows of its past; not for an optimiser."""

    mean: Operand
    variance: Operand

    @classmethod
    @checked
    def init(cls, channels: int, *, dtype: Any = np.float32) -> BatchStatistics:
        """Mean 0, variance 1."""
        return cls(mnp.zeros((channels,), dtype=dtype), mnp.ones((channels,), dtype=dtype))


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """Normalisation of each channel of (n, channels, *dims) over the batch; weight and bias (channels,)."""

    weight: Operand
    bias: Operand
    eps: float = field(default=1e-5, metadata=STATIC)
    momentum: float = field(default=0.1, metadata=STATIC)

    @classmethod
    @checked
    def init(cls, channels: int, *, eps: float = 1e-5, momentum: float = 0.1, dtype: Any = np.float32) -> BatchNorm:
        """Weight 1, bias 0; `BatchStatistics.init(channels)` goes with it."""
        return cls(mnp.ones((channels,), dtype=dtype), mnp.zeros((channels,), dtype=dtype), eps, momentum)

    @checked
    def __call__(self, x: Operand, state: BatchStatistics) -> Array:
        """By the running statistics, as after training."""
        return normalisation.batch_norm(x, state.mean, state.variance, self.weight, self.bias, eps=self.eps)

    @checked
    def train(self, x: Operand, state: BatchStatistics) -> tuple[Array, BatchStatistics]:
        """By the batch's own statistics, and the running ones moved towards them by `momentum`."""
        (array,) = floats(x)
        mean, variance = normalisation.batch_statistics(array)
        found = normalisation.batch_norm(array, mean, variance, self.weight, self.bias, eps=self.eps)
        samples = array.size // array.shape[1]
        unbiased = variance * (samples / max(samples - 1, 1))
        moved = [
            (1 - self.momentum) * mnp.asarray(old) + self.momentum * new
            for old, new in ((state.mean, mean), (state.variance, unbiased))
        ]
        return found, BatchStatistics(*moved)


@dataclass(frozen=True, slots=True)
class Dropout:
    """Zeros in random places while training, which is when a key is given."""

    rate: float = field(metadata=STATIC)

    def __call__(self, x: Operand, key: Operand | None = None) -> Array:
        return dropout(x, self.rate, key)


@checked
def dropout(x: Operand, rate: float, key: Operand | None) -> Array:
    """x with each element 0 with probability `rate`, the others divided by 1 - rate; x itself without a key.

    Srivastava et al., 2014.
    """
    (array,) = floats(x)
    if not 0 <= rate <= 1:
        raise InputError(f"a dropout rate lies in [0, 1], got {rate}")
    if key is None or rate == 0:
        return array
    if rate == 1:
        return mnp.zeros_like(array)
    kept = random.bernoulli(key, 1 - rate, array.shape)
    return mnp.where(kept, array / (1 - rate), 0)


@dataclass(frozen=True, slots=True)
class MLP:
    """down(activation(up(x)))."""

    up: Linear
    down: Linear
    activation: Callable[[Any], Array] = field(default=activations.gelu, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, width: int, hidden: int, *, activation: Callable[[Any], Array] = activations.gelu,
        bias: bool = True, dtype: Any = np.float32,
    ) -> MLP:  # fmt: skip
        """From `width` to `hidden` features and back."""
        keys = random.split(key)
        up = Linear.init(keys[0], width, hidden, bias=bias, dtype=dtype)
        return cls(up, Linear.init(keys[1], hidden, width, bias=bias, dtype=dtype), activation)

    def __call__(self, x: Operand) -> Array:
        check_parts(self, "up", "down", "activation")
        return self.down(self.activation(self.up(x)))


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate(x)) * up(x)); with silu the SwiGLU of Shazeer, 2020 (arXiv 2002.05202)."""

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[Any], Array] = field(default=activations.silu, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, width: int, hidden: int, *, activation: Callable[[Any], Array] = activations.silu,
        bias: bool = False, dtype: Any = np.float32,
    ) -> GatedMLP:  # fmt: skip
        """From `width` to `hidden` features and back."""
        keys = random.split(key, 3)
        gate, up = (Linear.init(keys[at], width, hidden, bias=bias, dtype=dtype) for at in (0, 1))
        return cls(gate, up, Linear.init(keys[2], hidden, width, bias=bias, dtype=dtype), activation)

    def __call__(self, x: Operand) -> Array:
        check_parts(self, "gate", "up", "down", "activation")
        return self.down(mnp.multiply(self.activation(self.gate(x)), self.up(x)))
