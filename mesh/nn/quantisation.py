"""Matrices of 8 or 4 bits per weight, with a scale for each block.

Engines compute `x @ dequantise(words, scales, bits)` in one kernel that reads the packed words: the matrix of floats is
never in memory as a whole.  The words are laid out as GPTQ's: consecutive rows of a column share a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import F32, U32

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import asarray, cast
from ..util.annotation_checks import checked
from ..util.argument_checks import integer
from .layers import STATIC, Linear

BITS = (8, 4)
WORD_BITS = 32
BLOCK = 32


@checked
def quantise(weight: Operand, bits: int = 8, *, block: int = BLOCK) -> tuple[Array, Array]:
    """Round a matrix to few bits per weight, with a scale for each block of a column.

    With 8 bits a block's largest magnitude is 127 steps; with 4 bits the weight of the largest magnitude is -8 steps,
    as in GGUF's Q4_0.

    Parameters
    ----------
    weight : array_like, (in, out)
        The matrix that rows are multiplied by.
    bits : int, optional
        8 or 4.
    block : int, optional
        How many weights of a column share a scale; it divides `in`, and is a multiple of 32 / bits.

    Returns
    -------
    words : Array of uint32, (in * bits / 32, out)
        The weights in steps, and 2^(bits - 1) more, 32 / bits of a column in each word; the first has the lowest bits.
    scales : Array of float32, (in / block, out)
        The size of a step.

    Raises
    ------
    DTypeError
        If the weights are no real numbers.
    ShapeError
        If the weight is no matrix, or has no rows.
    InputError
        If there is no such number of bits, the block does not fit, or a weight is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> words, scales = nn.quantise(np.linspace(-1.0, 1.0, 64).reshape(32, 2), 4)
    >>> words.shape, scales.shape
    ((4, 2), (1, 2))
    """
    per_word = _per_word(bits)
    given = asarray(weight)
    if given.type.dtype.kind not in "fiu":
        raise DTypeError(f"quantise needs real weights, got {given.type.dtype.name}")
    matrix = np.asarray(given)
    if matrix.ndim != 2:
        raise ShapeError(f"quantise needs a weight (in, out), got {matrix.shape}")
    inputs, outputs = matrix.shape
    if not inputs:
        raise ShapeError(f"quantise needs a weight with rows, got {matrix.shape}")
    if integer(block, "block", 1) % per_word or inputs % block:
        raise InputError(
            f"blocks of {block} do not divide the {inputs} rows of a weight {matrix.shape} into words of {per_word}",
            next_step=f"choose a block that divides {inputs} and is a multiple of {per_word}",
        )
    if not np.isfinite(matrix).all():
        raise InputError("quantise needs finite weights, and some are infinite or no number")
    blocks = matrix.astype(np.float64).reshape(inputs // block, block, outputs)
    if bits == 8:
        scales = np.abs(blocks).max(axis=1) / 127
    else:
        largest = np.abs(blocks).argmax(axis=1)
        scales = np.take_along_axis(blocks, largest[:, None], axis=1)[:, 0] / -8
    with np.errstate(over="ignore"):
        scales = scales.astype(np.float32)
    if not np.isfinite(scales).all():
        raise InputError("quantise needs weights that float32 can hold")
    steps = blocks / np.where(scales, scales, 1).astype(np.float64)[:, None]
    most = 1 << (bits - 1)
    levels = np.clip(np.rint(steps), -most, most - 1).astype(np.int64) + most
    parts = levels.astype(np.uint32).reshape(inputs // per_word, per_word, outputs)
    words = np.zeros((inputs // per_word, outputs), np.uint32)
    for place in range(per_word):
        words |= parts[:, place] << np.uint32(bits * place)
    return asarray(words), asarray(scales)


@checked
def dequantise(words: Operand, scales: Operand, bits: int = 8) -> Array:
    """The matrix that `quantise` rounded to.

    Parameters
    ----------
    words : array_like of uint32, (in * bits / 32, out)
        The weights in steps.
    scales : array_like of float, (in / block, out)
        The size of a step.
    bits : int, optional
        8 or 4.

    Returns
    -------
    Array of float32, (in, out)
        The matrix.

    Raises
    ------
    DTypeError
        If the words are not uint32.
    ShapeError
        If the shapes do not fit.
    InputError
        If there is no such number of bits.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> weight = np.arange(-64.0, 64.0).reshape(64, 2)
    >>> bool(abs(nn.dequantise(*nn.quantise(weight)) - weight).max() < 0.3)
    True
    """
    per_word = _per_word(bits)
    packed, sizes = asarray(words), cast(asarray(scales), F32)
    if packed.type.dtype != U32:
        raise DTypeError(f"dequantise needs words of uint32, got {packed.type.dtype.name}")
    fits = packed.ndim == sizes.ndim == 2 and packed.shape[1] == sizes.shape[1] and sizes.shape[0] > 0
    if not fits or (packed.shape[0] * per_word) % sizes.shape[0]:
        raise ShapeError(
            f"dequantise needs words (in * {bits} / 32, out) and scales (in / block, out), "
            f"got {packed.shape} and {sizes.shape}"
        )
    inputs, (blocks, outputs) = packed.shape[0] * per_word, sizes.shape
    places = bits * np.arange(per_word, dtype=np.uint32)
    masks = np.uint32((1 << bits) - 1) << places  # a part where it lies is a float exactly, and so is its value
    values = np.float32(0.5) ** places.astype(np.float32)
    parts = mnp.astype(packed[:, None, :] & masks[None, :, None], np.float32) * values[None, :, None]
    steps = mnp.reshape(parts - np.float32(1 << (bits - 1)), (blocks, inputs // blocks, outputs))
    return mnp.reshape(steps * sizes[:, None, :], (inputs, outputs))


def _per_word(bits: int) -> int:
    """How many weights share a word."""
    if bits not in BITS:
        raise InputError(f"weights have {' or '.join(map(str, BITS))} bits, not {bits!r}")
    return WORD_BITS // bits


@dataclass(frozen=True, slots=True)
class QuantisedLinear:
    """A linear map whose matrix has 8 or 4 bits per weight.

    Called with x (..., in), it gives (..., out) in x's dtype.  Products are made in float32 at least.

    Parameters
    ----------
    words : Array of uint32, (in * bits / 32, out)
        The weights, as `quantise` gives them.
    scales : Array of float32, (in / block, out)
        The sizes of their steps.
    bias : Array, (out,), optional
        What is added to every row.
    bits : int, optional
        8 or 4.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn, random
    >>> layer = nn.Linear.init(random.key(0), 64, 8)
    >>> small = nn.QuantisedLinear.of(layer, 8)
    >>> x = np.ones((1, 64), np.float32)
    >>> bool(abs(small(x) - layer(x)).max() < 0.02)
    True
    """

    words: Operand
    scales: Operand
    bias: Operand | None = None
    bits: int = field(default=8, metadata=STATIC)

    @classmethod
    @checked
    def of(cls, layer: Linear, bits: int = 8, *, block: int = BLOCK) -> QuantisedLinear:
        """Round the weights of a layer.

        Parameters
        ----------
        layer : Linear
            The layer, whose weights are known.
        bits : int, optional
            8 or 4.
        block : int, optional
            How many weights of an output share a scale.

        Returns
        -------
        QuantisedLinear
            The layer with rounded weights, and the same bias.

        Raises
        ------
        InputError
            If the block does not fit, or a weight is not finite.
        """
        words, scales = quantise(np.asarray(layer.weight).T, bits, block=block)
        return cls(words, scales, layer.bias, bits)

    def __call__(self, x: Operand) -> Array:
        rows = asarray(x)
        matrix = dequantise(self.words, self.scales, self.bits)
        if not rows.ndim or rows.shape[-1] != matrix.shape[0]:
            raise ShapeError(f"this layer needs x (..., {matrix.shape[0]}), got {rows.shape}")
        product = mnp.matmul(rows, matrix)
        product = product if self.bias is None else mnp.add(product, self.bias)
        return cast(product, rows.type.dtype) if rows.type.dtype.kind == "f" else product
