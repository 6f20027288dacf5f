"""Primitives of complex numbers, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

from ... import numpy as mnp
from ...core.array import Array, apply
from ...numpy.promotion import cast
from .rows import Equation, Row


def _conj(equation: Equation, x: Array) -> Array:
    """The conjugate; of real numbers too, as complex ones."""
    return mnp.conj(cast(x, equation.type.dtype))


def _fft(equation: Equation, x: Array) -> Array:
    """Along the last axes, as many as there are lengths."""
    lengths = equation.ints("fft_lengths")
    return _TRANSFORMS[equation["fft_type"].name](x, s=lengths, axes=tuple(range(-len(lengths), 0)))


_TRANSFORMS: dict[str, Callable[..., Array]] = {
    "FFT": mnp.fft.fftn,
    "IFFT": mnp.fft.ifftn,
    "RFFT": mnp.fft.rfftn,
    "IRFFT": mnp.fft.irfftn,
}


ROWS: dict[str, Row] = {
    "complex": lambda equation, x, y: apply("complex", x, y),
    "conj": _conj,
    "fft": _fft,
    "imag": lambda equation, x: apply("imag", x),
    "real": lambda equation, x: apply("real", x),
}
