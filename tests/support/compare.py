"""Whether two engines agree: the tolerance column of the op table, applied.

NaN must stand at the same places, infinities must be equal, integers and bool too.  Where a row is EXACT, floats must
be equal with the signs of zeros (but max and min of 0.0 and -0.0 are open), and no denormal may be flushed.  Elsewhere
|a - b| <= atol + rtol * scale, where the scale is |b|, or for summed ops the magnitude of what was summed if that is
larger: cancellation makes the order of a sum visible in |b| but not in the sum of absolute values.  Complex numbers are
compared part by part where they must be equal, and by the size of their difference elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import F32, F64, PARTS, DType
from wire.ir.ops import EXACT, Tolerance, tolerance_for
from worker.cpu import evaluate

from .cases.op_cases import PROGRAMS, Case

EITHER_ZERO = frozenset({"max", "min", "reduce_max", "reduce_min", "cummax", "cummin"})
SUMS = frozenset({"reduce_sum", "cumsum", "dot", "conv", "scatter"})  # magnitude: the op itself over absolute values


def assert_close(
    actual: NDArray[Any],
    expected: NDArray[Any],
    op: str,
    dtype: DType,
    magnitude: NDArray[Any] | float | None = None,
    tolerance: Tolerance | None = None,
) -> None:
    """AssertionError naming the op, the first index that differs and both values; `magnitude` as in `magnitude_of`.

    `tolerance` replaces the table's, for a comparison that should be closer.
    """
    assert actual.shape == expected.shape, f"{op}: shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype == expected.dtype, f"{op}: dtype {actual.dtype}, expected {expected.dtype}"
    allowed = tolerance_for(op, dtype) if tolerance is None else tolerance
    wrong = ~_agree(actual, expected, dtype, allowed, magnitude, op in EITHER_ZERO)
    if not wrong.any():
        return
    first = tuple(int(place) for place in np.argwhere(wrong)[0])
    raise AssertionError(
        f"{op} {dtype.name}: {np.count_nonzero(wrong)} of {wrong.size} differ, first at {list(first)}: "
        f"got {_shown(actual[first])}, expected {_shown(expected[first])} (rtol {allowed.rtol}, atol {allowed.atol})"
    )


def same_bits(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Whether two arrays are equal bit for bit, but for the payload of a NaN, which no op defines (simplify.py)."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    return _without_payloads(found).tobytes() == _without_payloads(wanted).tobytes()


def assert_as_promised(strategy: str, found: NDArray[Any], expected: NDArray[Any], products: int) -> None:
    """A float32 result is what a strategy promises: equal to the bit, or within rounding where `auto` may split rows.

    BLAS gives a row other bits by its place in the matrix.  `products` matrix products follow each other, whose outputs
    are about 1 and whose weights keep an error's size.
    """
    if strategy == "auto":
        np.testing.assert_allclose(found, expected, rtol=0, atol=products * tolerance_for("dot", F32).rtol)
    else:
        np.testing.assert_array_equal(found, expected)


def _without_payloads(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "fcV":
        return array
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return np.where(np.isnan(array), array.dtype.type(np.nan), array)


def magnitude_of(case: Case) -> list[NDArray[Any] | float | None]:
    """For each output of a case, what a summed op's tolerance is scaled by; None where it is |expected| alone.

    For sums the op over absolute values, for programs of several ops the largest value of the output.
    """
    if case.op in (*PROGRAMS, "fft"):
        return [_largest(array) for array in evaluate(case.graph, case.inputs)]
    if case.op not in SUMS or case.dtype.kind not in "fc":
        return [None] * len(case.graph.outputs)
    positive = {
        name: np.abs(a).astype(a.dtype) if a.dtype == case.dtype.numpy else a for name, a in case.inputs.items()
    }
    return [np.abs(array) for array in evaluate(case.graph, positive)]


def _agree(
    actual: NDArray[Any], expected: NDArray[Any], dtype: DType, allowed: Tolerance, magnitude: Any, either_zero: bool
) -> NDArray[np.bool_]:
    if dtype.kind == "c":
        return _agree_complex(actual, expected, dtype, allowed, magnitude)
    if dtype.kind != "f":
        return np.asarray(actual == expected)
    wide = np.longdouble if dtype is F64 else np.float64
    with np.errstate(invalid="ignore"):  # NaN that signals, infinity minus infinity
        a, b = actual.astype(wide), expected.astype(wide)
        both_nan = np.isnan(a) & np.isnan(b)
        if allowed == EXACT:
            return np.asarray(both_nan | ((a == b) & ((np.signbit(a) == np.signbit(b)) | either_zero)))
        scale = np.abs(b)
        if magnitude is not None:
            scale = np.fmax(scale, np.where(np.isfinite(np.asarray(magnitude, wide)), magnitude, 0).astype(wide))
        near = np.isfinite(b) & (np.abs(a - b) <= allowed.atol + allowed.rtol * scale)
    return np.asarray(both_nan | (a == b) | near)


def _agree_complex(
    actual: NDArray[Any], expected: NDArray[Any], dtype: DType, allowed: Tolerance, magnitude: Any
) -> NDArray[np.bool_]:
    part = PARTS[dtype]
    real, imaginary = (
        _agree(pair[0], pair[1], part, EXACT, None, allowed != EXACT)
        for pair in ((actual.real, expected.real), (actual.imag, expected.imag))
    )
    if allowed == EXACT:
        return real & imaginary
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = actual.astype(np.clongdouble), expected.astype(np.clongdouble)
        scale = np.abs(b)
        if magnitude is not None:
            scale = np.fmax(scale, np.where(np.isfinite(magnitude), magnitude, 0))
        near = np.isfinite(b) & (np.abs(a - b) <= allowed.atol + allowed.rtol * scale)
    return np.asarray((real & imaginary) | near)


def _largest(array: NDArray[Any]) -> float:
    if array.dtype.kind == "b":
        return 0.0
    sizes = np.abs(array[np.isfinite(array)])
    return float(sizes.astype(np.float64).max(initial=0.0))


def _shown(value: Any) -> str:
    """A value, and for floats the bits that a decimal number hides."""
    if value.dtype.kind in "biuc":
        return repr(value.item())
    return f"{float(value)!r} (0x{value.tobytes()[::-1].hex()})"
