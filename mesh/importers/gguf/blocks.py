"""The blocks in which GGUF holds weights, a row each, and what they are as parts of a packed matrix (`nn/packed.py`).

Nothing is rounded: the parts give the very weights that the block gives.  To add a type: a row of BLOCKS, with a
function from the bytes of blocks (n, size_bytes) to its levels (n, weights) and what belongs to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BF16

from ...nn.packed import packed_bytes, packed_levels

Bytes = NDArray[np.uint8]
Parts = dict[str, NDArray[Any]]
SUPER = 256  # weights of a super-block
ROWS = 512  # that are taken apart at once, so that levels of a byte each take little memory


@dataclass(frozen=True, slots=True)
class Block:
    """`weights` of them in `size_bytes`; `bits` of a level, or the dtype of weights that are not packed."""

    name: str
    weights: int
    size_bytes: int
    bits: int = 0
    apart: Callable[[Bytes], tuple[Bytes, Parts]] | None = None
    dtype: Any = None


def packed(block: Block, shape: tuple[int, ...], data: Bytes) -> Parts:
    """The parts of a matrix (out, in) of such blocks."""
    assert block.apart is not None
    outputs, inputs = shape
    pieces: list[Parts] = []
    for first in range(0, outputs, ROWS):
        rows = min(ROWS, outputs - first)
        row_bytes = inputs // block.weights * block.size_bytes
        levels, parts = block.apart(data[first * row_bytes : (first + rows) * row_bytes].reshape(-1, block.size_bytes))
        columns: Parts = {name: _column(part.reshape(rows, -1)) for name, part in parts.items()}
        pieces.append({**packed_levels(levels.reshape(rows, inputs), block.bits), **columns})
    made = {name: np.concatenate([piece[name] for piece in pieces], axis=1) for name in pieces[0]}
    for part in made.values():
        part.flags.writeable = False
    return made


def _column(part: NDArray[Any]) -> NDArray[Any]:
    """What blocks (out, blocks) have, outputs last; bytes are put in words, signed ones around 128."""
    if part.itemsize > 1:
        return np.ascontiguousarray(part.T)
    return packed_bytes(part.view(np.uint8) ^ np.uint8(128 if part.dtype == np.int8 else 0))


def plain(block: Block, shape: tuple[int, ...], data: Bytes) -> NDArray[Any]:
    """Weights that are not packed, mapped."""
    tensor: NDArray[Any] = np.asarray(data).view(block.dtype).reshape(shape)
    tensor.flags.writeable = False
    return tensor


def _halves(data: Bytes) -> NDArray[np.float16]:
    return np.ascontiguousarray(data).view("<f2")


def _nibbles(data: Bytes, run: int) -> Bytes:
    """Levels of 4 bits: of each `run` bytes first the lower halves, then the upper."""
    rows = data.reshape(len(data), -1, 1, run)
    return np.asarray(rows >> np.array([0, 4], np.uint8)[None, None, :, None] & 15, np.uint8).reshape(len(data), -1)


def _slices(data: Bytes, run: int, bits: int) -> Bytes:
    """Levels of so many bits: of each `run` bytes first the lowest bits, and so on."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[None, None, :, None]
    rows = data.reshape(len(data), -1, 1, run)
    return np.asarray(rows >> shifts & ((1 << bits) - 1), np.uint8).reshape(len(data), -1)


def _bits(data: Bytes) -> Bytes:
    """The bits of 32-bit words, the lowest first."""
    return np.unpackbits(np.ascontiguousarray(data), axis=1, bitorder="little")


def _joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """Levels whose lower bits and whose others lie apart."""
    return np.asarray(low | high << bits, np.uint8)


def _q4_0(data: Bytes) -> tuple[Bytes, Parts]:
    return _nibbles(data[:, 2:], 16), {"scales": _halves(data[:, :2])}


def _q4_1(data: Bytes) -> tuple[Bytes, Parts]:
    return _nibbles(data[:, 4:], 16), {"scales": _halves(data[:, :2]), "lows": -_halves(data[:, 2:4])}


def _q5_0(data: Bytes) -> tuple[Bytes, Parts]:
    return _joined(_nibbles(data[:, 6:], 16), _bits(data[:, 2:6]), 4), {"scales": _halves(data[:, :2])}


def _q5_1(data: Bytes) -> tuple[Bytes, Parts]:
    levels = _joined(_nibbles(data[:, 8:], 16), _bits(data[:, 4:8]), 4)
    return levels, {"scales": _halves(data[:, :2]), "lows": -_halves(data[:, 2:4])}


def _q8_0(data: Bytes) -> tuple[Bytes, Parts]:
    return data[:, 2:] ^ np.uint8(128), {"scales": _halves(data[:, :2])}  # two's complement, and 128 more


def _of_k(data: Bytes) -> Parts:
    """Scales and lows of 6 bits each in 12 bytes, behind those of the super-block."""
    first, second, upper = (data[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, (upper & 15) | ((first >> 2) & 48)], axis=1)
    lows = np.concatenate([second & 63, (upper >> 4) | ((second >> 2) & 48)], axis=1)
    above = {"super_scales": _halves(data[:, :2]), "super_lows": _halves(data[:, 2:4])}
    return {"scales": scales, "lows": lows, **above}


def _q2_k(data: Bytes) -> tuple[Bytes, Parts]:
    above = {"super_scales": _halves(data[:, 80:82]), "super_lows": _halves(data[:, 82:84])}
    return _slices(data[:, 16:80], 32, 2), {"scales": data[:, :16] & 15, "lows": data[:, :16] >> 4, **above}


def _q3_k(data: Bytes) -> tuple[Bytes, Parts]:
    low, high = _slices(data[:, 96:104], 8, 4), _slices(data[:, 104:108], 4, 2)
    scales = np.asarray((low | high << 4).astype(np.int16) - 32, np.int8)
    levels = _joined(_slices(data[:, 32:96], 32, 2), _slices(data[:, :32], 32, 1), 2)
    return levels, {"scales": scales, "super_scales": _halves(data[:, 108:110])}


def _q4_k(data: Bytes) -> tuple[Bytes, Parts]:
    return _nibbles(data[:, 16:], 32), _of_k(data)


def _q5_k(data: Bytes) -> tuple[Bytes, Parts]:
    return _joined(_nibbles(data[:, 48:], 32), _slices(data[:, 16:48], 32, 1), 4), _of_k(data)


def _q6_k(data: Bytes) -> tuple[Bytes, Parts]:
    levels = _joined(_nibbles(data[:, :128], 64), _slices(data[:, 128:192], 32, 2), 4)
    return levels, {"scales": data[:, 192:208].view(np.int8), "super_scales": _halves(data[:, 208:210])}


BLOCKS: dict[int, Block] = {  # by the number of the type in ggml
    0: Block("F32", 1, 4, dtype="<f4"),
    1: Block("F16", 1, 2, dtype="<f2"),
    2: Block("Q4_0", 32, 18, 4, _q4_0),
    3: Block("Q4_1", 32, 20, 4, _q4_1),
    6: Block("Q5_0", 32, 22, 5, _q5_0),
    7: Block("Q5_1", 32, 24, 5, _q5_1),
    8: Block("Q8_0", 32, 34, 8, _q8_0),
    10: Block("Q2_K", SUPER, 84, 2, _q2_k),
    11: Block("Q3_K", SUPER, 110, 3, _q3_k),
    12: Block("Q4_K", SUPER, 144, 4, _q4_k),
    13: Block("Q5_K", SUPER, 176, 5, _q5_k),
    14: Block("Q6_K", SUPER, 210, 6, _q6_k),
    30: Block("BF16", 1, 2, dtype=BF16.numpy),
}
UNKNOWN = {  # types that there are, and that are refused by name
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
