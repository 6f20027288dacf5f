"""Special values: NaN, infinities, zeros of both signs and subnormals, in every elementwise function of the standard.

numpy is the judge, as it follows the standard's tables of special cases, with the signs of zeros.  Where it departs
from them, or leaves the standard's precision, `JUDGES` and `STANDARD_CASES` say what holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mesh.numpy as mnp

UNARY = """
abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log10 log1p log2
negative positive reciprocal round sign signbit sin sinh sqrt square tan tanh trunc
"""
BINARY = """
add atan2 copysign divide equal floor_divide fmax fmin fmod greater greater_equal heaviside hypot less less_equal
logaddexp maximum minimum multiply nextafter not_equal pow remainder subtract
"""
COMPLEX = """
abs acos acosh asin asinh atan atanh conj cos cosh exp expm1 imag isfinite isinf isnan log log10 log1p log2
negative positive real reciprocal round sign sin sinh sqrt square tan tanh
"""
COMPLEX_BINARY = ("add", "divide", "equal", "multiply", "not_equal", "pow", "subtract")
PLAIN = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 0.1, -0.1, 2.5, -2.5,
         1e-5, 1e5, -1e5, 16777217.0, 1e17, 1e-300, 1e300, -1e300]  # fmt: skip
PARTS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 0.1, 1e5, 16777217.0]
SCALARS = [math.nan, math.inf, -math.inf, -0.0, 0.1, -3.0, 5e-324, 1e300]
RTOL = {"float32": 5e-6, "float64": 1e-14, "complex64": 2e-5, "complex128": 1e-13}
REALS, COMPLEXES = ("float32", "float64"), ("complex64", "complex128")

nan, inf = math.nan, math.inf
STANDARD_CASES: dict[str, list[tuple[complex, complex]]] = {  # where numpy has something else
    "expm1": [(complex(inf, inf), complex(inf, nan)), (complex(inf, nan), complex(inf, nan)),
              (complex(-inf, inf), complex(-1, 0)), (complex(-inf, nan), complex(-1, 0)),
              (complex(0.0, nan), complex(nan, nan)), (complex(nan, 0.0), complex(nan, 0.0)),
              (complex(inf, 0.0), complex(inf, 0.0)), (complex(-inf, 3.0), complex(-1, 0)),
              (complex(nan, 2.0), complex(nan, nan)), (complex(1e5, 0.0), complex(inf, 0.0))],
    "sign": [(complex(inf, nan), complex(nan, nan)), (complex(nan, -inf), complex(nan, nan)),
             (complex(nan, 0.0), complex(nan, nan)), (complex(-inf, 3.0), complex(-1, 0)),
             (complex(0, -inf), complex(0, -1))],
    "log1p": [(complex(1e-5, 0.0), complex(9.999950000333332e-06, 0.0)),
              (complex(0.0, 1e-5), complex(4.999999999750001e-11, 9.999999999666668e-06))],
}  # fmt: skip
JUDGES: dict[str, Callable[[Any], Any]] = {"reciprocal": lambda z: 1 / z}


def values(dtype: str) -> NDArray[Any]:
    """Special ones and plain ones, each once; zeros of both signs are two."""
    limits = np.finfo(dtype)
    ends = [limits.max, limits.tiny, limits.smallest_subnormal, 1 + limits.eps, 1 - limits.epsneg]
    with np.errstate(over="ignore"):
        every = np.array([*PLAIN, *ends, *[-end for end in ends]]).astype(dtype)
    bits = {4: np.uint32, 8: np.uint64}[every.dtype.itemsize]
    return np.unique(every.view(bits)).view(dtype)


def grid(side: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    first, second = np.meshgrid(side, side)
    return first.ravel(), second.ravel()


def complexes(dtype: str) -> NDArray[Any]:
    found = np.empty(len(PARTS) ** 2, dtype)
    found.real, found.imag = grid(np.array(PARTS))
    return found


def judged(name: str, *arrays: Any) -> Any:
    with np.errstate(all="ignore"):
        judge = JUDGES.get(name, getattr(np, name)) if arrays[0].dtype.kind == "c" else getattr(np, name)
        return judge(*arrays)


def given(array: NDArray[Any]) -> Any:
    """As Python's numbers, which have no NaN but one and all zeros."""
    return mnp.asarray(array.tolist(), dtype=array.dtype.name)


def agree(found: Any, wanted: Any, rtol: float = 0) -> NDArray[Any]:
    """Where both are the same special value, zeros of one sign, or numbers as close."""
    assert found.dtype == wanted.dtype
    if wanted.dtype.kind == "c":
        rtol = RTOL[wanted.dtype.name]
        close = np.abs(found - wanted) <= rtol * np.abs(wanted)  # a part may be small beside the other
        return (agree(found.real, wanted.real, rtol) & agree(found.imag, wanted.imag, rtol)) | close
    if wanted.dtype.kind != "f":
        return np.asarray(found == wanted)
    rtol = rtol or RTOL[wanted.dtype.name]
    close = np.abs(found - wanted) <= rtol * np.abs(wanted) + 4 * np.finfo(wanted.dtype).smallest_subnormal
    signs = ((found != 0) | (wanted != 0)) | (np.signbit(found) == np.signbit(wanted))
    return np.asarray(((found == wanted) | (np.isnan(found) & np.isnan(wanted)) | close) & signs)


def check(name: str, found: Any, wanted: Any, *args: Any) -> None:
    value = np.asarray(found)
    with np.errstate(all="ignore"):
        wrong = ~agree(value, np.asarray(wanted))
    shown = [
        (*[np.broadcast_to(arg, wrong.shape)[at] for arg in args], value[at], wanted[at])
        for at in np.argwhere(wrong).ravel()
    ]
    assert not shown, f"{name}: (arguments, found, wanted) {shown[:5]}"


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("name", UNARY.split())
def test_a_function_of_special_real_numbers(name: str, dtype: str) -> None:
    x = values(dtype)
    check(name, getattr(mnp, name)(given(x)), judged(name, x), x)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("name", BINARY.split())
def test_a_function_of_two_special_real_numbers(name: str, dtype: str) -> None:
    x = values(dtype)
    first, second = grid(x)
    check(name, getattr(mnp, name)(given(first), given(second)), judged(name, first, second), first, second)
    for number in SCALARS:
        with np.errstate(over="ignore"):
            scalar = np.array(number).astype(dtype)
        check(name, getattr(mnp, name)(given(x), number), judged(name, x, scalar), x, scalar)
        check(name, getattr(mnp, name)(number, given(x)), judged(name, np.full(x.shape, scalar), x), scalar, x)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("name", ["floor_divide", "fmod", "remainder"])
def test_quotients_of_the_smallest_and_the_largest_integers(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    first, second = grid(np.unique([limits.min, limits.min // 2, limits.max, limits.max - 1, 0, 1, 2, 7]).astype(dtype))
    check(name, getattr(mnp, name)(mnp.asarray(first), mnp.asarray(second)), judged(name, first, second), first, second)


def test_linspace_has_the_zeros_that_numpy_has() -> None:
    for start, stop in ((-0.0, -1.0), (-0.0, 1.0), (0.0, -1.0), (-1.0, -0.0), (-0.0, -0.0)):
        for num in (1, 3):
            wanted = np.linspace(start, stop, num)
            check("linspace", mnp.linspace(start, stop, num, dtype="float64"), wanted, start, stop)


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize("name", COMPLEX.split())
def test_a_function_of_special_complex_numbers(name: str, dtype: str) -> None:
    z = complexes(dtype)
    if name in STANDARD_CASES:
        z = z[np.isfinite(z) & (np.abs(z.real) < 50)]
    check(name, getattr(mnp, name)(given(z)), judged(name, z), z)


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize("name", COMPLEX_BINARY)
def test_a_function_of_two_special_complex_numbers(name: str, dtype: str) -> None:
    first, second = grid(complexes(dtype)[::3])
    if name == "pow":  # of which the standard and numpy leave most infinities open
        first, second = (each[np.isfinite(first) & np.isfinite(second)] for each in (first, second))
    check(name, getattr(mnp, name)(given(first), given(second)), judged(name, first, second), first, second)


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize("name", STANDARD_CASES)
def test_special_cases_that_numpy_has_otherwise(name: str, dtype: str) -> None:
    given, wanted = (np.array(side, dtype) for side in zip(*STANDARD_CASES[name], strict=True))
    check(name, getattr(mnp, name)(mnp.asarray(given)), wanted, given)


# -- the standard's own tables ----------------------------------------------------------------------------

pi = math.pi
ZEROS, FINITE, NONZERO, POSITIVE = (0.0, -0.0), (0.0, -0.0, 2.5, -2.5), (2.5, -2.5, 1e5), (2.5, 0.1)
INFINITE, EVERY = (inf, -inf), (0.0, -0.0, 2.5, -2.5, inf, -inf, nan)
Side = tuple[float, ...] | float
LOGARITHM: list[tuple[Side, Side, float, float]] = [
    (FINITE, inf, inf, pi / 2), (FINITE, nan, nan, nan), (-inf, POSITIVE, inf, pi), (inf, POSITIVE, inf, 0.0),
    (-inf, inf, inf, 3 * pi / 4), (inf, inf, inf, pi / 4), (INFINITE, nan, inf, nan), (nan, FINITE, nan, nan),
    (nan, inf, inf, nan), (nan, nan, nan, nan),
]  # fmt: skip
TABLES: dict[str, list[tuple[Side, Side, float, float]]] = {  # real and imaginary parts of arguments, and of results
    "abs": [(INFINITE, EVERY, inf, 0.0), (EVERY, INFINITE, inf, 0.0), (nan, FINITE, nan, 0.0), (FINITE, nan, nan, 0.0)],
    "acos": [(ZEROS, 0.0, pi / 2, -0.0), (ZEROS, nan, pi / 2, nan), (FINITE, inf, pi / 2, -inf),
             (NONZERO, nan, nan, nan), (-inf, POSITIVE, pi, -inf), (inf, POSITIVE, 0.0, -inf),
             (-inf, inf, 3 * pi / 4, -inf), (inf, inf, pi / 4, -inf), (INFINITE, nan, nan, inf),
             (nan, FINITE, nan, nan), (nan, inf, nan, -inf), (nan, nan, nan, nan)],
    "acosh": [(ZEROS, 0.0, 0.0, pi / 2), (FINITE, inf, inf, pi / 2), (NONZERO, nan, nan, nan), (0.0, nan, nan, pi / 2),
              (-inf, POSITIVE, inf, pi), (inf, POSITIVE, inf, 0.0), (-inf, inf, inf, 3 * pi / 4),
              (inf, inf, inf, pi / 4), (INFINITE, nan, inf, nan), (nan, FINITE, nan, nan), (nan, inf, inf, nan),
              (nan, nan, nan, nan)],
    "asinh": [(0.0, 0.0, 0.0, 0.0), (POSITIVE, inf, inf, pi / 2), (FINITE, nan, nan, nan), (inf, POSITIVE, inf, 0.0),
              (inf, inf, inf, pi / 4), (nan, 0.0, nan, 0.0), (nan, NONZERO, nan, nan), (nan, inf, inf, nan),
              (nan, nan, nan, nan)],
    "atanh": [(0.0, 0.0, 0.0, 0.0), (0.0, nan, 0.0, nan), (1.0, 0.0, inf, 0.0), (POSITIVE, inf, 0.0, pi / 2),
              (NONZERO, nan, nan, nan), (inf, POSITIVE, 0.0, pi / 2), (inf, inf, 0.0, pi / 2), (inf, nan, 0.0, nan),
              (nan, FINITE, nan, nan), (nan, inf, 0.0, pi / 2), (nan, nan, nan, nan)],
    "cosh": [(0.0, 0.0, 1.0, 0.0), (0.0, inf, nan, 0.0), (0.0, nan, nan, 0.0), (NONZERO, inf, nan, nan),
             (NONZERO, nan, nan, nan), (inf, 0.0, inf, 0.0), (inf, inf, inf, nan), (inf, nan, inf, nan),
             (nan, ZEROS, nan, 0.0), (nan, NONZERO, nan, nan), (nan, nan, nan, nan)],
    "exp": [(ZEROS, 0.0, 1.0, 0.0), (FINITE, inf, nan, nan), (FINITE, nan, nan, nan), (inf, 0.0, inf, 0.0),
            (-inf, inf, 0.0, 0.0), (inf, inf, inf, nan), (-inf, nan, 0.0, 0.0), (inf, nan, inf, nan),
            (nan, 0.0, nan, 0.0), (nan, NONZERO, nan, nan), (nan, nan, nan, nan)],
    "expm1": [(ZEROS, 0.0, 0.0, 0.0), (FINITE, inf, nan, nan), (FINITE, nan, nan, nan), (inf, 0.0, inf, 0.0),
              (-inf, inf, -1.0, 0.0), (inf, inf, inf, nan), (-inf, nan, -1.0, 0.0), (inf, nan, inf, nan),
              (nan, 0.0, nan, 0.0), (nan, NONZERO, nan, nan), (nan, nan, nan, nan)],
    "log": [(-0.0, 0.0, -inf, pi), (0.0, 0.0, -inf, 0.0), *LOGARITHM],
    "log1p": [(-1.0, 0.0, -inf, 0.0), *LOGARITHM],
    "sinh": [(0.0, 0.0, 0.0, 0.0), (0.0, inf, 0.0, nan), (0.0, nan, 0.0, nan), (POSITIVE, inf, nan, nan),
             (POSITIVE, nan, nan, nan), (inf, 0.0, inf, 0.0), (inf, inf, inf, nan), (inf, nan, inf, nan),
             (nan, 0.0, nan, 0.0), (nan, NONZERO, nan, nan), (nan, nan, nan, nan)],
    "sqrt": [(ZEROS, 0.0, 0.0, 0.0), (EVERY, inf, inf, inf), (FINITE, nan, nan, nan), (-inf, POSITIVE, 0.0, inf),
             (inf, POSITIVE, inf, 0.0), (-inf, nan, nan, inf), (inf, nan, inf, nan), (nan, FINITE, nan, nan),
             (nan, nan, nan, nan)],
    "tanh": [(0.0, 0.0, 0.0, 0.0), (NONZERO, inf, nan, nan), (NONZERO, nan, nan, nan), (inf, POSITIVE, 1.0, 0.0),
             (inf, inf, 1.0, 0.0), (inf, nan, 1.0, 0.0), (nan, 0.0, nan, 0.0), (nan, NONZERO, nan, nan),
             (nan, nan, nan, nan)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize("name", TABLES)
def test_complex_special_cases_are_those_of_the_standards_tables(name: str, dtype: str) -> None:
    """Signs of zeros and infinities are those of the comparison with numpy above, as the tables leave some open."""
    for real_side, imag_side, real, imag in TABLES[name]:
        a, b = np.broadcast_arrays(np.array(real_side, ndmin=1)[:, None], np.array(imag_side))
        z = np.empty(a.size, dtype)
        z.real, z.imag = a.ravel(), b.ravel()
        for given, sign in ((z, 1), (np.conj(z), -1)):
            found = np.asarray(getattr(mnp, name)(mnp.asarray(given)))
            for part, wanted in ((found.real, real), (found.imag, sign * imag)):
                if not wanted or not np.isfinite(wanted) or np.isnan(z.imag).any():
                    part, wanted = np.abs(part), abs(wanted)
                np.testing.assert_allclose(part, np.full(z.shape, wanted), 1e-6, err_msg=f"{name} of {given}")
