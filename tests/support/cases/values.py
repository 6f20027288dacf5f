"""Values that catch mistakes: for every dtype the special ones, ordinary ones, and pairs of both.

A value is in a dtype's list if some formula goes wrong there: NaN, infinities, both zeros, denormals, the largest, the
first integers that a narrower dtype cannot hold, shift counts around the width.  To add one: a number in a list.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import PARTS, DType

Values = NDArray[Any]

COMMON = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 2.0, 3.0, -3.0, 7.0, 0.1, -0.3, 1e-3, 10.0, -10.0, 100.0,
    math.pi, -math.pi / 2, 3.5, 4.0, -7.0, 11.25, -88.0, 0.99, 1.01, math.inf, -math.inf, math.nan,
)  # fmt: skip
WIDE = (  # beyond f16: where exp overflows or vanishes, integers that f32 or i32 cannot hold, large angles
    88.7, 88.8, -87.4, -103.0, -104.0, 127.9, 128.0, -126.5, -149.5, 1e5, -12345.678, 8388607.5, 8388609.0, 16777217.0,
    2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0, 4294967040.0, 4294967296.0, 9.223372036854775e18,
    1.8446744073709552e19, -1e20, 1e-7, 1e-20, 1e30, -1e30, 255.5, 256.0, -128.6, 32767.6, 65535.9,
)  # fmt: skip
PART = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, math.inf, -math.inf, math.nan)  # of complex numbers, crossed


def special(dtype: DType) -> Values:
    """Every special value of a dtype, in one dimension."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "c":
        return np.array([complex(real, imaginary) for real in PART for imaginary in PART], dtype.numpy)
    if dtype.kind == "f":
        limits = ml_dtypes.finfo(dtype.numpy)
        edges = [limits.smallest_subnormal, limits.smallest_normal, limits.max, limits.eps]
        below = np.float64(limits.smallest_normal) - np.float64(limits.smallest_subnormal)
        edges += [below, 3 * np.float64(limits.smallest_subnormal), 1 + np.float64(limits.eps)]
        signed = [float(sign * np.float64(edge)) for edge in edges for sign in (1, -1)]
        wide = WIDE if float(limits.max) > 1e30 else ()
        with np.errstate(over="ignore"):
            return np.array([*COMMON, *wide, *signed]).astype(dtype.numpy)
    width, limits = 8 * dtype.itemsize, np.iinfo(dtype.numpy)
    small = (0, 1, 2, 3, 5, 7, 10, width - 1, width, width + 1, 100)
    every = {*small, *(-value for value in small), limits.min, limits.min + 1, limits.max, limits.max - 1}
    return np.array(sorted(value for value in every if limits.min <= value <= limits.max), dtype.numpy)


def ordinary(dtype: DType, *shape: int, seed: int = 0) -> Values:
    """Values of about 1 (floats), of a few units (integers), or coin tosses; the same for the same arguments."""
    rng = np.random.default_rng(zlib.crc32(repr((dtype.name, shape, seed)).encode()))
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)
    if dtype.kind == "c":
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    return np.asarray(rng.integers(0 if dtype.kind == "u" else -9, 10, shape)).astype(dtype.numpy)


def any_bits(dtype: DType, *shape: int, seed: int = 0) -> Values:
    """Values over the whole range of an integer dtype; for floats every magnitude, for complex numbers those whose
    products are finite; bool as `ordinary`."""
    if dtype.kind == "b":
        return ordinary(dtype, *shape, seed=seed)
    if dtype.kind == "c":
        real, imaginary = (_magnitudes(PARTS[dtype], 0.25, *shape, seed=2 * seed + part) for part in (0, 1))
        return np.asarray(real + 1j * imaginary).astype(dtype.numpy)
    if dtype.kind == "f":
        return _magnitudes(dtype, 1.0, *shape, seed=seed)
    rng = np.random.default_rng(zlib.crc32(repr((dtype.name, shape, seed, "bits")).encode()))
    limits = np.iinfo(dtype.numpy)
    return rng.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)


def _magnitudes(dtype: DType, share: float, *shape: int, seed: int) -> Values:
    """Floats over this share of their exponents."""
    rng = np.random.default_rng(zlib.crc32(repr((dtype.name, shape, seed, "bits")).encode()))
    top = share * (min(math.log2(float(ml_dtypes.finfo(dtype.numpy).max)), 1000) - 1)
    return np.asarray(rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.uniform(-top, top, shape)).astype(dtype.numpy)


def all_values(dtype: DType) -> Values:
    """Special values, then ordinary ones, then ones of any magnitude: a length that is no multiple of 4."""
    parts = [special(dtype), ordinary(dtype, 150), any_bits(dtype, 150)]
    flat = np.concatenate(parts)
    return flat[: flat.size - (flat.size % 4 == 0)]


def all_tuples(*dtypes: DType) -> tuple[Values, ...]:
    """Every tuple of special values, then ordinary tuples: arrays of one length."""
    crossed = np.meshgrid(*(special(dtype) for dtype in dtypes), indexing="ij")
    return tuple(
        np.concatenate([grid.reshape(-1), ordinary(dtype, 201, seed=place), any_bits(dtype, 200, seed=place)])
        for place, (grid, dtype) in enumerate(zip(crossed, dtypes, strict=True))
    )
