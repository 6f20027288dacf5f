"""Packed matrices: weights of 2 to 8 bits in blocks, as the formats of others have them, kept as small in memory.

A weight is (level - zero) * scale - low.  Its parts are tensors beside each other, each with the outputs as last axis,
so that one output's share of all of them is a column:

    words, high     u32 (in * bits / 32, out): levels, those of consecutive inputs in one word, the lowest bits first.
                    Of 3, 5 and 6 bits the lower 2 or 4 are in `words` and the rest in `high`
    scales          float (in / block, out), or u32 (in / block / 4, out): a byte for each, around 128 without `lows`
    super_scales    float (in / super-block, out), times which the scales are meant
    zeros           float (in / block, out); without them and `lows` the zero is half of the levels
    lows            as scales, and `super_lows` as above
    order           i32 (in,): input i of the matrix is input order[i] of x

So the parts say by their names and shapes what they are.  A product is one composite, and engines read the packed words
in the product's kernel: the matrix of floats is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import F32, U32

from .. import numpy as mnp
from ..core.array import Array
from ..numpy.promotion import cast
from ..transforms.composite import composite

WORDS = "words"
PARTS = (WORDS, "high", "scales", "super_scales", "zeros", "lows", "super_lows", "order")
WORD_BITS = 32
PLANES: dict[int, tuple[int, ...]] = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""The bits of a level that lie in `words` and in `high`."""

Parts = Mapping[str, Array]
Form = tuple[int, tuple[str, ...]]


def parts_of(params: Mapping[str, Array], name: str) -> dict[str, Array] | None:
    """The parts of the weight of this name, None where it is not packed."""
    words = params.get(f"{name}.{WORDS}")
    if words is None:
        return None
    others = {part: params.get(f"{name}.{part}") for part in PARTS[1:]}
    return {WORDS: words, **{part: array for part, array in others.items() if array is not None}}


def packed_product(x: Array, parts: Parts) -> Array:
    """x (..., in) @ matrix (in, out), in x's dtype; products are made in float32 at least.

    Raises
    ------
    ShapeError
        If the parts do not fit each other, or x.
    """
    inputs = x.shape[-1]
    form = _form(parts, inputs)
    if "order" in parts:
        x = mnp.take(x, parts["order"], axis=-1)
    arrays = [parts[part] for part in form[1]]
    return cast(composite("packed_product", _product(form), cast_up(x), *arrays), x.type.dtype)


def packed_rows(parts: Parts, ids: Array, inputs: int) -> Array:
    """f32 (*ids, in): the columns of the matrix, which are the rows of a table (out, in)."""
    if "order" in parts:
        raise InputError("a table whose inputs have an order of their own is not known")
    form = _form(parts, inputs)
    flat = mnp.reshape(ids, (-1,))
    chosen = [mnp.take(parts[part], flat, axis=1) for part in form[1]]
    return mnp.reshape(_matrix(form, inputs, chosen).T, (*ids.shape, inputs))


def unpacked(parts: Parts, inputs: int) -> Array:
    """f32 (in, out): the matrix as floats."""
    form = _form(parts, inputs)
    matrix = _matrix(form, inputs, [parts[part] for part in form[1]])
    if "order" not in parts:
        return matrix
    return mnp.take(matrix, mnp.argsort(parts["order"]), axis=0)


def cast_up(x: Array) -> Array:
    """x in float32 at least."""
    return cast(x, F32) if x.type.dtype.itemsize < 4 else x


def packed_levels(levels: NDArray[np.uint8], bits: int) -> dict[str, NDArray[np.uint32]]:
    """`words`, and `high` where there are such, of levels (out, in).

    Raises
    ------
    InputError
        If the inputs do not fill whole words.
    """
    planes, low = dict(zip((WORDS, "high"), PLANES[bits], strict=False)), 0
    made = {}
    for part, width in planes.items():
        if levels.shape[1] * width % WORD_BITS:
            raise InputError(f"{levels.shape[1]} weights of {bits} bits do not fill whole words of {WORD_BITS} bits")
        made[part] = _words(np.asarray((levels >> low) & ((1 << width) - 1), np.uint8), width)
        low += width
    return made


def packed_bytes(values: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Scales or lows of a byte each, (out, blocks), as words (blocks / 4, out)."""
    return _words(values, 8)


def _words(levels: NDArray[np.uint8], width: int) -> NDArray[np.uint32]:
    """(in * width / 32, out) of levels (out, in) of `width` bits."""
    shares = 8 // width
    lanes = levels.reshape(levels.shape[0], -1, shares)
    filled = lanes[..., 0].copy()
    for place in range(1, shares):
        filled |= lanes[..., place] << np.uint8(width * place)
    return np.ascontiguousarray(filled.view("<u4").T.astype(np.uint32, copy=False))


def _form(parts: Parts, inputs: int) -> Form:
    """The bits of a level, and the parts that make the matrix, in order."""
    named = tuple([part for part in PARTS if part in parts and part != "order"])
    bits = 0
    for part in (WORDS, "high"):
        if part in parts:
            words = parts[part]
            width, rest = divmod(words.shape[0] * WORD_BITS, inputs) if words.ndim == 2 and inputs else (0, 1)
            if rest or words.type.dtype is not U32:
                raise ShapeError(f"{part} of {inputs} inputs is uint32 (in * bits / 32, out), got {words.shape}")
            bits += width
    outputs = parts[WORDS].shape[1]
    fits = all(
        parts[part].ndim == 2 and parts[part].shape[1] == outputs and inputs % max(_count(parts[part]), 1) == 0
        for part in named
        if part not in (WORDS, "high")
    )
    if bits not in PLANES or "scales" not in parts or not fits or len(PLANES[bits]) != 1 + ("high" in parts):
        shapes = ", ".join(f"{part} {list(parts[part].shape)}" for part in named)
        raise ShapeError(f"the parts of a packed matrix with {inputs} inputs do not fit: {shapes}")
    return bits, named


@lru_cache(maxsize=256)
def _product(form: Form) -> Callable[..., Array]:
    """The body of a product: one object for each form, as composites ask for."""

    def product(x: Array, *arrays: Array) -> Array:
        return x @ _matrix(form, x.shape[-1], arrays)

    return product


def _matrix(form: Form, inputs: int, arrays: tuple[Array, ...] | list[Array]) -> Array:
    """f32 (in, out).  A part of a word is taken where it lies, where it is a float exactly; its value is one, too."""
    bits, named = form
    parts = dict(zip(named, arrays, strict=True))
    levels, low = None, 0
    for part, width in zip((WORDS, "high"), PLANES[bits], strict=False):
        plane = _plane(parts[part], width, float(1 << low))
        levels = plane if levels is None else levels + plane
        low += width
    assert levels is not None
    scales = _of_blocks(parts, "scales")
    blocks, outputs = scales.shape
    steps = mnp.reshape(levels, (blocks, inputs // blocks, outputs))
    if "zeros" in parts:
        steps = steps - cast(parts["zeros"], F32)[:, None, :]
    elif "lows" not in parts:
        steps = steps - np.float32(1 << (bits - 1))
    steps = steps * scales[:, None, :]
    if "lows" in parts:
        steps = steps - _of_blocks(parts, "lows")[:, None, :]
    return mnp.reshape(steps, (inputs, outputs))


def _plane(words: Array, width: int, value: float) -> Array:
    """f32 (in, out): the levels in these words, times `value`."""
    shares = WORD_BITS // width
    places = width * np.arange(shares, dtype=np.uint32)
    masks = np.uint32((1 << width) - 1) << places
    values = np.float32(value) * np.float32(0.5) ** places.astype(np.float32)
    levels = mnp.astype(words[:, None, :] & masks[None, :, None], np.float32) * values[None, :, None]
    return mnp.reshape(levels, (words.shape[0] * shares, words.shape[1]))


def _count(part: Array) -> int:
    """How many blocks have a number of this part."""
    return part.shape[0] * (WORD_BITS // 8 if part.type.dtype is U32 else 1)


def _numbers(parts: Parts, part: str) -> Array:
    """f32 (blocks, out), of floats or of bytes in words."""
    own = parts[part]
    if own.type.dtype is not U32:
        return cast(own, F32)
    values = _plane(own, 8, 1.0)
    return values if "lows" in parts else values - np.float32(128)


def _of_blocks(parts: Parts, part: str) -> Array:
    """f32 (in / block, out), times those of the super-blocks where there are such."""
    own, above = _numbers(parts, part), parts.get(f"super_{part}")
    if above is None:
        return own
    supers, outputs = above.shape
    fine = mnp.reshape(own, (supers, own.shape[0] // supers, outputs)) * cast(above, F32)[:, None, :]
    return mnp.reshape(fine, own.shape)
