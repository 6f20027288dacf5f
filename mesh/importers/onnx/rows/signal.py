"""Signals: Fourier transforms as products with the matrix of the transform, frames, and mel filters.

ONNX has a complex number as a last axis of two.  A transform of length n that splits into p * q is done in two steps
(Cooley and Tukey, 1965), so no matrix is larger than its factors need.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import F32, F64

from .... import numpy as mnp
from ....core.array import Array, apply, value_array
from ....numpy.promotion import cast
from ....numpy.reductions import normal_axis
from ..constant_folding import int_of, value_of
from ..evaluate import Call, Row
from .elementwise import dtype_numbered

MATRIX_MAX = 256  # a longer transform is split, if it can be
PRIME_MAX = 1024  # of a length that cannot be split, and whose matrix is of bearable size
Pair = tuple[Array, Array]  # real and imaginary parts


def _dft(call: Call, x: Array, length: Array | None = None, axis: Array | None = None) -> Array:
    asked = call.attr("axis", 1) if call.version < 20 else -2 if axis is None else int_of(axis)
    place = normal_axis(asked, x.ndim)
    inverse, onesided = bool(call.attr("inverse", 0)), bool(call.attr("onesided", 0))
    rows = mnp.moveaxis(x, place, -2)
    count = rows.shape[-2] if length is None else int_of(length)
    real, imaginary = _parts(rows)
    if inverse and onesided:
        if length is None:
            count = 2 * (rows.shape[-2] - 1)
        real, imaginary = _mirrored(real, count, 1.0), _mirrored(imaginary, count, -1.0)
    result = list(transformed((_fitted(real, count), _fitted(imaginary, count)), inverse))
    if onesided and not inverse:
        result = [part[..., : count // 2 + 1] for part in result]
    if onesided and inverse:
        result = result[:1]
    return mnp.moveaxis(mnp.stack(result, -1), -2, place)


def _parts(x: Array) -> Pair:
    real = x[..., 0]
    return real, mnp.zeros_like(real) if x.shape[-1] == 1 else x[..., 1]


def _fitted(x: Array, count: int) -> Array:
    """The last axis cut or filled with zeros to `count`."""
    cut = x[..., :count]
    return mnp.pad(cut, [*[(0, 0)] * (x.ndim - 1), (0, count - cut.shape[-1])])


def _mirrored(x: Array, count: int, sign: float) -> Array:
    """The whole of a transform whose second half mirrors its first."""
    half = _fitted(x, count // 2 + 1)
    rest = mnp.flip(half[..., 1 : (count + 1) // 2], -1)
    return mnp.concat([half, mnp.multiply(rest, sign)], -1)


def transformed(x: Pair, inverse: bool) -> Pair:
    """The discrete Fourier transform along the last axis."""
    count = x[0].shape[-1]
    parts = _split_transform(x, 1 if inverse else -1)
    return (mnp.divide(parts[0], float(count)), mnp.divide(parts[1], float(count))) if inverse else parts


def _split_transform(x: Pair, sign: int) -> Pair:
    """A transform of n = q * j + i to k = k1 + p * k2: one of p over j, a turn by i * k1, and one of q over i."""
    count = x[0].shape[-1]
    factor = next((f for f in range(math.isqrt(count), 1, -1) if count % f == 0), 1)
    if factor == 1 and count > PRIME_MAX:
        return _by_op(x, sign)
    if count <= MATRIX_MAX or factor == 1:
        return _turned_product(x, _angles(count, sign))
    p, q = count // factor, factor
    rows = tuple([mnp.swapaxes(mnp.reshape(part, (*part.shape[:-1], p, q)), -1, -2) for part in x])  # (..., q, p)
    inner = _split_transform((rows[0], rows[1]), sign)
    angles = sign * 2 * np.pi * np.outer(np.arange(q), np.arange(p)) / count
    turned = _times(inner, _constant(np.cos(angles), inner[0]), _constant(np.sin(angles), inner[0]))
    outer = _split_transform((mnp.swapaxes(turned[0], -1, -2), mnp.swapaxes(turned[1], -1, -2)), sign)  # (..., p, q)
    shape = (*x[0].shape[:-1], count)
    real, imaginary = (mnp.reshape(mnp.swapaxes(part, -1, -2), shape) for part in outer)
    return real, imaginary


def _by_op(x: Pair, sign: int) -> Pair:
    """A transform whose matrix is too large, on a cpu worker."""
    real, imaginary = (cast(part, F64 if part.type.dtype is F64 else F32) for part in x)
    whole = apply("complex", real, imaginary)
    turned = mnp.fft.fft(whole) if sign < 0 else mnp.fft.ifft(whole, norm="forward")
    return cast(mnp.real(turned), x[0].type.dtype), cast(mnp.imag(turned), x[1].type.dtype)


def _angles(count: int, sign: int) -> NDArray[np.float64]:
    return sign * 2 * np.pi * (np.outer(np.arange(count), np.arange(count)) % count) / count


def _turned_product(x: Pair, angles: NDArray[np.float64]) -> Pair:
    cosine, sine = _constant(np.cos(angles), x[0]), _constant(np.sin(angles), x[0])
    real = mnp.subtract(mnp.matmul(x[0], cosine), mnp.matmul(x[1], sine))
    return real, mnp.add(mnp.matmul(x[0], sine), mnp.matmul(x[1], cosine))


def _times(x: Pair, cosine: Array, sine: Array) -> Pair:
    real = mnp.subtract(mnp.multiply(x[0], cosine), mnp.multiply(x[1], sine))
    return real, mnp.add(mnp.multiply(x[0], sine), mnp.multiply(x[1], cosine))


def _constant(values: NDArray[np.float64], other: Array) -> Array:
    return value_array(values.astype(other.type.dtype.numpy))


def _stft(call: Call, signal: Array, step: Array, window: Array | None = None, length: Array | None = None) -> Array:
    size = int_of(length) if length is not None else window.shape[0] if window is not None else signal.shape[1]
    by = int_of(step)
    starts = np.arange((signal.shape[1] - size) // by + 1) * by
    places = (starts[:, None] + np.arange(size)).astype(np.int32)
    parts = [signal] if signal.ndim == 2 else [signal[..., place] for place in range(signal.shape[2])]
    frames = [mnp.take(part, places, axis=1) for part in parts]  # (batch, frames, size)
    if window is not None:
        frames = [mnp.multiply(frame, window) for frame in frames]
    whole = (frames[0], frames[1] if len(frames) == 2 else mnp.zeros_like(frames[0]))
    spectrum = mnp.stack(transformed(whole, False), -1)
    return spectrum[:, :, : size // 2 + 1] if call.attr("onesided", 1) else spectrum


def _mel_weight_matrix(call: Call, bins: Array, length: Array, rate: Array, low: Array, high: Array) -> Array:
    count, size, per_s = int_of(bins), int_of(length), int_of(rate)
    lowest, highest = (float(value_of(bound).reshape(())) for bound in (low, high))
    dtype = dtype_numbered(call, call.attr("output_datatype", 1))
    edges = np.linspace(_mel(lowest), _mel(highest), count + 2, endpoint=False)  # as the standard has it
    hertz = 700 * (10 ** (edges / 2595) - 1)
    places = ((size + 1) * hertz // per_s).astype(int)
    weights = np.zeros((size // 2 + 1, count))
    for band in range(count):
        first, middle, last = places[band : band + 3]
        if middle == first:
            weights[middle, band] = 1
        else:
            weights[first : middle + 1, band] = (np.arange(first, middle + 1) - first) / (middle - first)
        if last > middle:
            weights[middle:last, band] = (last - np.arange(middle, last)) / (last - middle)
    return cast(value_array(weights), dtype) if dtype is not F64 else value_array(weights)


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


ROWS: dict[str, Row] = {
    "DFT": _dft,
    "MelWeightMatrix": _mel_weight_matrix,
    "STFT": _stft,
}
