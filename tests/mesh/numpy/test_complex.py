"""Complex numbers in mesh.numpy: parts, scalars, promotion, refusals, and what leaves to numpy and comes from it.

What the standard defines is compared with numpy, call by call, in test_array_api.py.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.errors import DTypeError, InputError

Z = np.array([[1 + 2j, -3.5j], [0.25, -1 - 1j]], np.complex64)


def same(found: Any, expected: Any) -> None:
    value = np.asarray(found)
    assert value.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(value, expected, 1e-6)


def test_a_python_number_takes_the_width_of_what_it_meets() -> None:
    same(mnp.asarray(Z) * 2j, Z * np.complex64(2j))
    same(1j + mnp.asarray(np.float64(2)), np.complex128(2 + 1j))
    same(1j + mnp.asarray(np.float32(2)), np.complex64(2 + 1j))
    same(mnp.asarray(np.int8(2)) - 1j, np.complex64(2 - 1j))
    same(mnp.asarray(1j), np.complex64(1j))
    same(mnp.asarray([1, 2j]), np.array([1, 2j], np.complex64))
    assert mnp.result_type(np.float64, np.complex64) == np.complex128
    assert mnp.result_type(np.int64, np.complex64) == mnp.result_type(mnp.bfloat16, 1j) == np.complex64


def test_parts_conjugates_and_angles() -> None:
    z = mnp.asarray(Z)
    same(z.real, Z.real)
    same(z.imag, Z.imag)
    same(z.conj(), Z.conj())
    same(mnp.angle(z), np.angle(Z))
    same(mnp.angle(z, deg=True), np.angle(Z, deg=True).astype(np.float32))
    same(mnp.angle(np.array([2.0, -1.0])), [0.0, math.pi])
    same(mnp.vdot(z, z * 1j), np.vdot(Z, Z * np.complex64(1j)))
    same(mnp.iscomplex(z), np.iscomplex(Z))
    same(mnp.isreal(z), np.isreal(Z))
    assert mnp.iscomplexobj(z) and mnp.isrealobj(z.real)
    x = mnp.asarray([1.0, -2.0])
    for same_again in (mnp.real(x), mnp.conj(x), x.real):
        same(same_again, np.array([1, -2], np.float32))
    same(x.imag, np.zeros(2, np.float32))
    same(mnp.nan_to_num(np.array([complex(math.nan, 1), 2j])), np.array([1j, 2j]))


def test_norms_and_spreads_are_real() -> None:
    z = mnp.asarray(Z)
    same(mnp.linalg.vector_norm(z), np.linalg.norm(Z))
    same(mnp.linalg.matrix_norm(z, ord=1), np.linalg.norm(Z, 1))
    same(mnp.var(z), np.var(Z))
    same(mnp.std(z, 0), np.std(Z, 0))
    assert mnp.isclose(z, z + 1e-9).all() and not mnp.isclose(z, z * 1j).any()


def test_sets_and_statistics_of_numpy() -> None:
    same(mnp.isin(Z, np.array([0.25, 3], np.complex64)), np.isin(Z, [0.25, 3]))
    same(mnp.intersect1d(Z, Z[0]), np.intersect1d(Z, Z[0]))
    same(mnp.cov(Z), np.cov(Z).astype(np.complex64))
    wide = np.concatenate([Z, Z[::-1] * 2j], axis=1)
    np.testing.assert_allclose(np.asarray(mnp.corrcoef(wide)), np.corrcoef(wide), rtol=1e-5, atol=1e-6)
    same(mnp.gradient(Z, axis=-1), np.gradient(Z, axis=-1))
    holed = np.where(Z == 0.25, np.complex64(np.nan), Z)
    same(mnp.nanvar(holed), np.nanvar(holed))
    same(mnp.nanmean(holed), np.nanmean(holed))


def test_values_leave_to_python_numpy_and_dlpack() -> None:
    z = mnp.asarray(Z)
    assert complex(z[0, 0]) == z[0, 0].item() == 1 + 2j
    assert z.tolist() == Z.tolist() and "1.  +2.j" in repr(z)
    with pytest.raises(TypeError, match="needs a real number"):
        float(z[0, 0])
    same(np.from_dlpack(z), Z)
    same(mnp.from_dlpack(Z), Z)
    same(np.asarray(z, np.complex128), Z.astype(np.complex128))


@pytest.mark.parametrize("call", [
    lambda z: mnp.astype(z, "float32"), lambda z: z < z, lambda z: mnp.sort(z), lambda z: z % 2, lambda z: z // 2,
    lambda z: mnp.floor(z), lambda z: mnp.clip(z, 0, 1), lambda z: mnp.hypot(z, z), lambda z: mnp.erf(z),
    lambda z: mnp.median(z), lambda z: z.max(), lambda z: z & z, lambda z: mnp.zeros(3).at[:1].set(z),
])  # fmt: skip
def test_what_is_of_real_numbers_says_so_where_it_is_written(call: Any) -> None:
    with pytest.raises(DTypeError, match=r"real|drop the imaginary part|bool or an integer"):
        call(mnp.asarray([1 + 1j]))


def test_a_complex_number_does_not_fit_a_real_array() -> None:
    x = mnp.zeros(3)
    with pytest.raises(InputError, match="does not fit f32"):
        x[0] = 1j
    with pytest.raises(DTypeError, match="in place"):
        x += 1j


CUTS = [complex(x, y) for x in (-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0) for y in (0.0, -0.0)]
CUTS += [complex(y, x) for x in (-3.0, -0.5, 0.5, 3.0) for y in (0.0, -0.0)]


@pytest.mark.parametrize("name", ["sqrt", "log", "acos", "asin", "atan", "acosh", "asinh", "atanh", "sinh", "cosh"])
def test_branch_cuts_and_the_signs_of_zeros_are_those_of_c(name: str) -> None:
    for z in CUTS:
        try:
            wanted = getattr(cmath, name)(z)
        except ValueError:  # at a pole
            continue
        found = complex(getattr(mnp, name)(np.complex128(z)))
        assert cmath.isclose(found, wanted, rel_tol=1e-14, abs_tol=1e-15), (name, z, found, wanted)
        for mine, theirs in ((found.real, wanted.real), (found.imag, wanted.imag)):
            assert abs(theirs) < 1e-15 or math.copysign(1, mine) == math.copysign(1, theirs), (name, z, found, wanted)


PARTS = (0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan)
EXTREME = np.array([complex(x, y) for x in PARTS for y in PARTS])
NUMPYS = {"acos": "arccos", "asin": "arcsin", "atan": "arctan", "acosh": "arccosh", "asinh": "arcsinh",
          "atanh": "arctanh"}  # fmt: skip


@pytest.mark.parametrize("name", [*NUMPYS, "sqrt", "exp", "log", "sinh", "cosh", "tanh", "log1p"])
def test_infinities_and_nan_give_what_they_give_in_c(name: str) -> None:
    with np.errstate(all="ignore"):
        wanted = getattr(np, NUMPYS.get(name, name))(EXTREME)
    found = np.asarray(getattr(mnp, name)(EXTREME))
    for mine, theirs in ((found.real, wanted.real), (found.imag, wanted.imag)):
        np.testing.assert_allclose(mine, theirs, 1e-14, 0)


@pytest.mark.parametrize("name", ["acos", "asin", "atan", "acosh", "asinh", "atanh", "expm1", "log1p"])
def test_compositions_are_accurate_near_and_far(name: str) -> None:
    rng = np.random.default_rng(3)
    sizes = 10.0 ** rng.uniform(-12, 12, 400)
    z = (sizes * np.exp(1j * rng.uniform(-math.pi, math.pi, 400))).astype(np.complex128)
    if name == "expm1":
        z = z[sizes < 10]
    found = np.asarray(getattr(mnp, name)(z))
    exact = z.astype(np.clongdouble)
    wanted = getattr(np, NUMPYS.get(name, name))(exact)
    if name == "log1p":  # numpy's loses every digit near 0
        x, y = exact.real, exact.imag
        wanted = np.log1p(x * (2 + x) + y * y) / 2 + 1j * np.arctan2(y, 1 + x)
    assert (np.abs(found - wanted) <= 8e-16 * np.abs(wanted)).all()


def test_a_traced_function_of_complex_numbers() -> None:
    def fn(z: Any, x: Any) -> Any:
        return {"power": mnp.abs(z) ** 2, "turned": z * mnp.exp(1j * x), "sum": (z @ z).sum()}

    found = mesh.evaluate(fn, Z, np.float32(0.5))
    same(found["power"], np.abs(Z) ** 2)
    same(found["turned"], Z * np.exp(np.complex64(0.5j)))
    same(found["sum"], (Z @ Z).sum())
