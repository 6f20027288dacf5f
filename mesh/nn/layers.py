"""Layers: frozen dataclasses of weights that can be called.

A layer is a pytree: `mesh.put(layer)` gives the same layer with handles, and a traced function takes it as an argument.
Numbers that shape the computation (eps, heads, strides) are static fields.  `Layer.init(key, ...)` makes one with first
values; what is random while training (dropout) takes a key, and what has state (batch norm) takes it and gives it back.
Layers of transformers are in `transformer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from wire.errors import InputError

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy import random
from ..numpy.promotion import floats
from ..util.annotation_checks import checked
from ..util.argument_checks import check_function, integer
from ..util.did_you_mean import names_checked
from . import activations, convolution, functions, initialisers, normalisation
from .initialisers import Initialiser

STATIC = {"static": True}
Ints = int | Sequence[int]
L = TypeVar("L")


def layer(cls: type[L]) -> type[L]:
    """A class of layers that says how `init` makes one, where it is given sizes as layers of other programs are.

    Arguments that do not fit are an InputError.  A tree of layers may have any leaves, ints too, so an int in place of
    the first weights is one only when the layer is called.
    """
    own = cast(Any, cls)
    first = fields(own)[0].name
    what = "an array" if fields(own)[0].type == "Operand" else "a function"
    wanted = signature(own.init).parameters.values()
    sizes = ", ".join(each.name for each in wanted if each.default is each.empty)
    step = f"A layer with first weights is {cls.__name__}.init({sizes})"
    made, called = names_checked(cls.__init__), own.__call__

    @wraps(cls.__init__)
    def init(self: L, *args: Any, **named: Any) -> None:
        try:
            made(self, *args, **named)
        except InputError as error:
            error.next_step = f"{step}. {error.next_step}"
            raise

    @wraps(called)
    def call(self: L, *args: Any, **named: Any) -> Any:
        given = getattr(self, first)
        if isinstance(given, int):
            raise InputError(f"{first} of {cls.__name__} is {what}, not {given}", next_step=step)
        return called(self, *args, **named)

    own.__init__, own.__call__ = init, call
    return cls


def check_parts(layer: Any, *names: str) -> None:
    """Raise InputError if one of these parts of a layer is neither a layer nor a function."""
    for name in names:
        check_function(getattr(layer, name), f"{name} of {type(layer).__name__}")


def grouped(channels: int, groups: int, what: str) -> int:
    """How many of the channels each group has."""
    return channels // integer(groups, what, 1)


def _bias(wanted: bool, size: int, dtype: Any) -> Array | None:
    return mnp.zeros((size,), dtype=dtype) if wanted else None


@layer
@dataclass(frozen=True, slots=True)
class Linear:
    """A linear map, `x @ weight.T + bias`.

    Called with x (..., in), it gives (..., out).

    Parameters
    ----------
    weight : Array, (out, in)
        The matrix.
    bias : Array, (out,), optional
        What is added to every row.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.Linear.init(random.key(0), 3, 2)
    >>> layer(np.ones((5, 3), np.float32)).shape
    (5, 2)
    >>> nn.Linear(np.array([[1.0, 2.0]]), np.array([0.5]))(np.array([1.0, 1.0]))
    Array([3.5], dtype=float64)
    """

    weight: Operand
    bias: Operand | None = None

    @classmethod
    @checked
    def init(
        cls, key: Operand, inputs: int, outputs: int, *, bias: bool = True,
        initialiser: Initialiser = initialisers.lecun_normal, dtype: DTypeLike = np.float32,
    ) -> Linear:  # fmt: skip
        """Make a layer with first weights and a bias of 0.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        inputs : int
            The number of features of x.
        outputs : int
            The number of features that come out.
        bias : bool, optional
            Whether there is a bias.
        initialiser : callable, optional
            A function (key, shape, dtype) of the first weight, as in `mesh.nn.initialisers`.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        Linear
            The layer.

        Raises
        ------
        InputError
            If a size is no int.
        """
        return cls(initialiser(key, (outputs, inputs), dtype), _bias(bias, outputs, dtype))

    def __call__(self, x: Operand) -> Array:
        return functions.linear(x, self.weight, self.bias)


@layer
@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution over as many axes as its kernel has.

    Called with x (..., in, *dims), it gives (..., out, *windows).

    Parameters
    ----------
    weight : Array, (out, in / groups, *kernel)
        The kernels.
    bias : Array, (out,), optional
        What is added to each channel.
    stride : int or sequence of int, optional
        The distance of neighbouring windows.
    padding : int, sequence or {"same", "same_lower", "valid"}, optional
        Zeros around x, as for `conv`.
    dilation : int or sequence of int, optional
        The distance of a kernel's neighbouring elements.
    groups : int, optional
        In how many groups channels are.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.Conv.init(random.key(0), 3, 16, (5, 5), padding=2)
    >>> layer(np.ones((8, 3, 32, 32), np.float32)).shape
    (8, 16, 32, 32)
    """

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
        dtype: DTypeLike = np.float32,
    ) -> Conv:  # fmt: skip
        """Make a layer with first weights and a bias of 0.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        inputs : int
            The number of channels of x.
        outputs : int
            The number of channels that come out.
        kernel : sequence of int
            The kernel's length along each axis.
        stride : int or sequence of int, optional
            The distance of neighbouring windows.
        padding : int, sequence or {"same", "same_lower", "valid"}, optional
            Zeros around x, as for `conv`.
        dilation : int or sequence of int, optional
            The distance of a kernel's neighbouring elements.
        groups : int, optional
            In how many groups channels are.
        bias : bool, optional
            Whether there is a bias.
        initialiser : callable, optional
            A function (key, shape, dtype) of the first weight, as in `mesh.nn.initialisers`.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        Conv
            The layer.

        Raises
        ------
        InputError
            If a size is no int, or there is less than one group.
        """
        weight = initialiser(key, (outputs, grouped(inputs, groups, "groups of Conv.init"), *kernel), dtype)
        return cls(weight, _bias(bias, outputs, dtype), stride, padding, dilation, groups)

    def __call__(self, x: Operand) -> Array:
        options: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return convolution.conv(x, self.weight, self.bias, **options, groups=self.groups)


@layer
@dataclass(frozen=True, slots=True)
class ConvTranspose:
    """A transposed convolution over as many axes as its kernel has.

    Called with x (..., in, *dims), it gives (..., out, *lengths); see `conv_transpose`.

    Parameters
    ----------
    weight : Array, (in, out / groups, *kernel)
        The kernels.
    bias : Array, (out,), optional
        What is added to each channel.
    stride : int or sequence of int, optional
        The stride of the convolution that is transposed.
    padding : int, sequence or {"same", "same_lower", "valid"}, optional
        The padding of the convolution that is transposed.
    output_padding : int or sequence of int, optional
        How much longer the outputs are at their ends.
    dilation : int or sequence of int, optional
        The distance of a kernel's neighbouring elements.
    groups : int, optional
        In how many groups channels are.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.ConvTranspose.init(random.key(0), 16, 3, (2, 2), stride=2)
    >>> layer(np.ones((8, 16, 8, 8), np.float32)).shape
    (8, 3, 16, 16)
    """

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
        initialiser: Initialiser = initialisers.lecun_normal, dtype: DTypeLike = np.float32,
    ) -> ConvTranspose:  # fmt: skip
        """Make a layer with first weights and a bias of 0.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        inputs : int
            The number of channels of x.
        outputs : int
            The number of channels that come out.
        kernel : sequence of int
            The kernel's length along each axis.
        stride : int or sequence of int, optional
            The stride of the convolution that is transposed.
        padding : int, sequence or {"same", "same_lower", "valid"}, optional
            The padding of the convolution that is transposed.
        output_padding : int or sequence of int, optional
            How much longer the outputs are at their ends.
        dilation : int or sequence of int, optional
            The distance of a kernel's neighbouring elements.
        groups : int, optional
            In how many groups channels are.
        bias : bool, optional
            Whether there is a bias.
        initialiser : callable, optional
            A function (key, shape, dtype) of the first weight, as in `mesh.nn.initialisers`.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        ConvTranspose
            The layer.

        Raises
        ------
        InputError
            If a size is no int, or there is less than one group.
        """
        weight = initialiser(key, (inputs, grouped(outputs, groups, "groups of ConvTranspose.init"), *kernel), dtype)
        return cls(weight, _bias(bias, outputs, dtype), stride, padding, output_padding, dilation, groups)

    def __call__(self, x: Operand) -> Array:
        options: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        more: dict[str, Any] = {"output_padding": self.output_padding, "groups": self.groups}
        return convolution.conv_transpose(x, self.weight, self.bias, **options, **more)


@layer
@dataclass(frozen=True, slots=True)
class Embedding:
    """A table of rows that are looked up by their numbers.

    Called with integers (...), it gives (..., width).

    Parameters
    ----------
    table : Array, (n, width)
        The rows.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.Embedding.init(random.key(0), 1000, 16)
    >>> layer(np.array([[3, 1, 4]])).shape
    (1, 3, 16)
    """

    table: Operand

    @classmethod
    @checked
    def init(
        cls,
        key: Operand,
        count: int,
        width: int,
        *,
        initialiser: Initialiser | None = None,
        dtype: DTypeLike = np.float32,
    ) -> Embedding:
        """Make a table with first values.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        count : int
            The number of rows.
        width : int
            The number of features of a row.
        initialiser : callable, optional
            A function (key, shape, dtype); by default normal with variance 1 / width.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        Embedding
            The layer.

        Raises
        ------
        InputError
            If a size is no int, or the width is less than 1.
        """
        integer(width, "width of Embedding.init", 1)
        return cls((initialiser or initialisers.normal(width**-0.5))(key, (count, width), dtype))

    def __call__(self, indices: Operand) -> Array:
        return functions.embedding(indices, self.table)


@layer
@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalisation of rows to mean 0 and variance 1, with a factor and a shift.

    Called with x (..., width), it gives the same shape.

    Parameters
    ----------
    weight : Array, (width,)
        The factors.
    bias : Array, (width,)
        What is added.
    eps : float, optional
        Added to the variance.

    Notes
    -----
    Ba, Kiros and Hinton, 2016 (arXiv 1607.06450).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.LayerNorm.init(2)(np.array([[1.0, 3.0]])), 3)
    array([[-1.,  1.]])
    """

    weight: Operand
    bias: Operand
    eps: float = field(default=1e-5, metadata=STATIC)

    @classmethod
    @checked
    def init(cls, width: int, *, eps: float = 1e-5, dtype: DTypeLike = np.float32) -> LayerNorm:
        """Make a layer with weight 1 and bias 0.

        Parameters
        ----------
        width : int
            The number of features of a row.
        eps : float, optional
            Added to the variance.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        LayerNorm
            The layer.

        Raises
        ------
        InputError
            If a size is no int.
        """
        return cls(mnp.ones((width,), dtype=dtype), mnp.zeros((width,), dtype=dtype), eps)

    def __call__(self, x: Operand) -> Array:
        return normalisation.layer_norm(x, self.weight, self.bias, eps=self.eps)


@layer
@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Division of rows by the root of their mean square, with a factor.

    Called with x (..., width), it gives the same shape.

    Parameters
    ----------
    weight : Array, (width,)
        The factors.
    eps : float, optional
        Added to the mean square.

    Notes
    -----
    Zhang and Sennrich, 2019 (arXiv 1910.07467).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.RMSNorm.init(2)(np.array([[3.0, 4.0]])), 3)
    array([[0.849, 1.131]])
    """

    weight: Operand
    eps: float = field(default=1e-6, metadata=STATIC)

    @classmethod
    @checked
    def init(cls, width: int, *, eps: float = 1e-6, dtype: DTypeLike = np.float32) -> RMSNorm:
        """Make a layer with weight 1.

        Parameters
        ----------
        width : int
            The number of features of a row.
        eps : float, optional
            Added to the mean square.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        RMSNorm
            The layer.

        Raises
        ------
        InputError
            If a size is no int.
        """
        return cls(mnp.ones((width,), dtype=dtype), eps)

    def __call__(self, x: Operand) -> Array:
        return normalisation.rms_norm(x, self.weight, eps=self.eps)


@layer
@dataclass(frozen=True, slots=True)
class GroupNorm:
    """Normalisation of groups of channels of each sample, with a factor and a shift.

    Called with x (n, channels, *dims), it gives the same shape.

    Parameters
    ----------
    weight : Array, (channels,)
        The factors.
    bias : Array, (channels,)
        What is added.
    groups : int
        The number of groups, which divides the channels.
    eps : float, optional
        Added to the variance.

    Notes
    -----
    Wu and He, 2018 (arXiv 1803.08494).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.GroupNorm.init(4, 2)(np.array([[1.0, 3.0, 10.0, 30.0]])), 3)
    array([[-1.,  1., -1.,  1.]])
    """

    weight: Operand
    bias: Operand
    groups: int = field(metadata=STATIC)
    eps: float = field(default=1e-5, metadata=STATIC)

    @classmethod
    @checked
    def init(cls, channels: int, groups: int, *, eps: float = 1e-5, dtype: DTypeLike = np.float32) -> GroupNorm:
        """Make a layer with weight 1 and bias 0.

        Parameters
        ----------
        channels : int
            The number of channels.
        groups : int
            The number of groups.
        eps : float, optional
            Added to the variance.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        GroupNorm
            The layer.

        Raises
        ------
        InputError
            If a size is no int.
        """
        return cls(mnp.ones((channels,), dtype=dtype), mnp.zeros((channels,), dtype=dtype), groups, eps)

    def __call__(self, x: Operand) -> Array:
        return normalisation.group_norm(x, self.groups, self.weight, self.bias, eps=self.eps)


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The running mean and variance of each channel: the state of a `BatchNorm`.

    It is no param: an optimiser must not change it.

    Parameters
    ----------
    mean : Array, (channels,)
        The means.
    variance : Array, (channels,)
        The variances.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> print(nn.BatchStatistics.init(2).variance)
    Array([1., 1.], dtype=float32)
    """

    mean: Operand
    variance: Operand

    @classmethod
    @checked
    def init(cls, channels: int, *, dtype: DTypeLike = np.float32) -> BatchStatistics:
        """Make statistics of mean 0 and variance 1.

        Parameters
        ----------
        channels : int
            The number of channels.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        BatchStatistics
            The statistics.

        Raises
        ------
        InputError
            If a size is no int.
        """
        return cls(mnp.zeros((channels,), dtype=dtype), mnp.ones((channels,), dtype=dtype))


@layer
@dataclass(frozen=True, slots=True)
class BatchNorm:
    """Normalisation of each channel over the batch, with a factor and a shift.

    Called with x (n, channels, *dims) and a `BatchStatistics`, it normalises by these, as after training.

    Parameters
    ----------
    weight : Array, (channels,)
        The factors.
    bias : Array, (channels,)
        What is added.
    eps : float, optional
        Added to the variance.
    momentum : float, optional
        How far the running statistics move towards a batch's in a step.

    Raises
    ------
    InputError
        If it is called with a state that is no `BatchStatistics`.

    Notes
    -----
    Ioffe and Szegedy, 2015 (arXiv 1502.03167).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> layer, state = nn.BatchNorm.init(1), nn.BatchStatistics.init(1)
    >>> y, state = layer.train(np.array([[1.0], [3.0]]), state)
    >>> np.round(y, 3)
    array([[-1.],
           [ 1.]])
    >>> np.round(layer(np.array([[1.0]]), state), 3)
    array([[0.763]])
    """

    weight: Operand
    bias: Operand
    eps: float = field(default=1e-5, metadata=STATIC)
    momentum: float = field(default=0.1, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, channels: int, *, eps: float = 1e-5, momentum: float = 0.1, dtype: DTypeLike = np.float32
    ) -> BatchNorm:
        """Make a layer with weight 1 and bias 0; `BatchStatistics.init(channels)` goes with it.

        Parameters
        ----------
        channels : int
            The number of channels.
        eps : float, optional
            Added to the variance.
        momentum : float, optional
            How far the running statistics move towards a batch's in a step.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        BatchNorm
            The layer.

        Raises
        ------
        InputError
            If a size is no int.
        """
        return cls(mnp.ones((channels,), dtype=dtype), mnp.zeros((channels,), dtype=dtype), eps, momentum)

    @checked
    def __call__(self, x: Operand, state: BatchStatistics) -> Array:
        """Normalise by the running statistics, as after training."""
        return normalisation.batch_norm(x, state.mean, state.variance, self.weight, self.bias, eps=self.eps)

    @checked
    def train(self, x: Operand, state: BatchStatistics) -> tuple[Array, BatchStatistics]:
        """Normalise by the batch's own statistics, and move the running ones towards them.

        Parameters
        ----------
        x : array_like, (n, channels, *dims)
            The batch.
        state : BatchStatistics
            The running statistics.

        Returns
        -------
        tuple of Array and BatchStatistics
            The normalised batch, and the next state.

        Raises
        ------
        ShapeError
            If x has no channels.
        InputError
            If the state is no `BatchStatistics`.
        """
        (array,) = floats(x)
        mean, variance = normalisation.batch_statistics(array)
        normalised = normalisation.batch_norm(array, mean, variance, self.weight, self.bias, eps=self.eps)
        samples = array.size // array.shape[1]
        unbiased = variance * (samples / max(samples - 1, 1))
        moved = [
            mnp.astype((1 - self.momentum) * mnp.asarray(old) + self.momentum * new, mnp.asarray(old).dtype)
            for old, new in ((state.mean, mean), (state.variance, unbiased))
        ]
        return normalised, BatchStatistics(*moved)


@dataclass(frozen=True, slots=True)
class Dropout:
    """Zeros in random places while training, which is when a key is given.

    Called with x and perhaps a key of `mesh.random`, it gives the shape of x.

    Parameters
    ----------
    rate : float
        The probability of a zero.

    Raises
    ------
    InputError
        If the rate is outside of [0, 1].

    Notes
    -----
    Srivastava et al., 2014, "Dropout: a simple way to prevent neural networks from overfitting".

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.Dropout(0.5)
    >>> layer(np.ones(4))
    Array([1., 1., 1., 1.], dtype=float64)
    >>> sorted(set(np.asarray(layer(np.ones(100), random.key(0))).tolist()))
    [0.0, 2.0]
    """

    rate: float = field(metadata=STATIC)

    def __call__(self, x: Operand, key: Operand | None = None) -> Array:
        return dropout(x, self.rate, key)


@checked
def dropout(x: Operand, rate: float, key: Operand | None) -> Array:
    """Set each element to 0 with some probability, and divide the others by 1 minus that.

    Parameters
    ----------
    x : array_like
        The values.
    rate : float
        The probability of a zero.
    key : array_like, uint32 (2,), or None
        A key of `mesh.random`; None leaves x as it is.

    Returns
    -------
    Array
        The results, of the shape of x.

    Raises
    ------
    InputError
        If the rate is outside of [0, 1].

    Notes
    -----
    Srivastava et al., 2014, "Dropout: a simple way to prevent neural networks from overfitting".

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> nn.dropout(np.ones(3), 0.5, None)
    Array([1., 1., 1.], dtype=float64)
    >>> float(nn.dropout(np.ones(1000), 0.5, random.key(0)).max())
    2.0
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


@layer
@dataclass(frozen=True, slots=True)
class MLP:
    """Two linear layers with an activation between, `down(activation(up(x)))`.

    Called with x (..., width), it gives the same shape.

    Parameters
    ----------
    up : Linear
        From width to hidden features.
    down : Linear
        From hidden to width features.
    activation : callable, optional
        A function of an array.

    Raises
    ------
    InputError
        If a part is neither a layer nor a function.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.MLP.init(random.key(0), 8, 32)
    >>> layer(np.ones((2, 8), np.float32)).shape
    (2, 8)
    """

    up: Linear
    down: Linear
    activation: Callable[[Any], Array] = field(default=activations.gelu, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, width: int, hidden: int, *, activation: Callable[[Any], Array] = activations.gelu,
        bias: bool = True, dtype: DTypeLike = np.float32,
    ) -> MLP:  # fmt: skip
        """Make a layer with first weights.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        width : int
            The number of features that go in and come out.
        hidden : int
            The number of features between.
        activation : callable, optional
            A function of an array.
        bias : bool, optional
            Whether there is a bias.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        MLP
            The layer.

        Raises
        ------
        InputError
            If a size is no int.
        """
        keys = random.split(key)
        up = Linear.init(keys[0], width, hidden, bias=bias, dtype=dtype)
        return cls(up, Linear.init(keys[1], hidden, width, bias=bias, dtype=dtype), activation)

    def __call__(self, x: Operand) -> Array:
        check_parts(self, "up", "down", "activation")
        return self.down(self.activation(self.up(x)))


@layer
@dataclass(frozen=True, slots=True)
class GatedMLP:
    """Linear layers with a gate, `down(activation(gate(x)) * up(x))`.

    Called with x (..., width), it gives the same shape.

    Parameters
    ----------
    gate : Linear
        From width to hidden features.
    up : Linear
        From width to hidden features.
    down : Linear
        From hidden to width features.
    activation : callable, optional
        A function of an array; silu makes it SwiGLU.

    Raises
    ------
    InputError
        If a part is neither a layer nor a function.

    Notes
    -----
    Shazeer, 2020 (arXiv 2002.05202).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.GatedMLP.init(random.key(0), 8, 32)
    >>> layer(np.ones((2, 8), np.float32)).shape
    (2, 8)
    """

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[Any], Array] = field(default=activations.silu, metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, width: int, hidden: int, *, activation: Callable[[Any], Array] = activations.silu,
        bias: bool = False, dtype: DTypeLike = np.float32,
    ) -> GatedMLP:  # fmt: skip
        """Make a layer with first weights.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        width : int
            The number of features that go in and come out.
        hidden : int
            The number of features between.
        activation : callable, optional
            A function of an array.
        bias : bool, optional
            Whether there is a bias.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        GatedMLP
            The layer.

        Raises
        ------
        InputError
            If a size is no int.
        """
        keys = random.split(key, 3)
        gate, up = (Linear.init(keys[at], width, hidden, bias=bias, dtype=dtype) for at in (0, 1))
        return cls(gate, up, Linear.init(keys[2], hidden, width, bias=bias, dtype=dtype), activation)

    def __call__(self, x: Operand) -> Array:
        check_parts(self, "gate", "up", "down", "activation")
        return self.down(mnp.multiply(self.activation(self.gate(x)), self.up(x)))
