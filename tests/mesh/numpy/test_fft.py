"""mesh.numpy.fft against numpy's, over lengths, axes, norms and refusals, traced too, and its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.errors import MeshError

RNG = np.random.default_rng(5)
REAL = RNG.standard_normal((4, 5, 6))
COMPLEX = REAL + 1j * RNG.standard_normal((4, 5, 6))
ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")


def given(name: str, dtype: type) -> Any:
    real = name in ("rfft", "ihfft", "rfftn", "rfft2")
    return REAL.astype(dtype) if real else COMPLEX.astype(np.result_type(dtype, np.complex64))


def near(found: Any, wanted: Any, dtype: type) -> None:
    value = np.asarray(found)
    assert value.shape == wanted.shape and value.dtype == wanted.dtype
    scale = np.abs(wanted).max(initial=1e-9)
    assert np.abs(value - wanted).max(initial=0) <= {np.float32: 1e-6, np.float64: 2e-15}[dtype] * scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ONE_AXIS)
def test_a_transform_along_one_axis_is_numpys(name: str, dtype: type) -> None:
    x = given(name, dtype)
    theirs, mine = getattr(np.fft, name), getattr(mnp.fft, name)
    for axis in (-1, 0, 1):
        for n in (None, 1, 2, 3, 4, 5, 8, 9):
            for norm in ("backward", "ortho", "forward", None):
                near(mine(x, n=n, axis=axis, norm=norm), theirs(x, n=n, axis=axis, norm=norm), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SEVERAL)
def test_a_transform_along_several_axes_is_numpys(name: str, dtype: type) -> None:
    x = given(name, dtype)
    theirs, mine = getattr(np.fft, name), getattr(mnp.fft, name)
    for s, axes in ((None, (0, 2)), ((3, 8), (1, 0)), ((7,), (1,)), ((4, 4), (-2, -1))):
        for norm in ("backward", "ortho", "forward"):
            near(mine(x, s=s, axes=axes, norm=norm), theirs(x, s=s, axes=axes, norm=norm), dtype)
    near(mine(x), theirs(x), dtype)


def test_real_and_whole_numbers_become_complex() -> None:
    x = np.arange(6)
    for dtype, wanted in ((np.int32, np.complex64), (np.float16, np.complex64), (np.float64, np.complex128)):
        found = np.asarray(mnp.fft.fft(mnp.asarray(x, dtype)))
        assert found.dtype == wanted
        np.testing.assert_allclose(found, np.fft.fft(x), 1e-5, 1e-5)
    assert mnp.fft.irfft(mnp.asarray(x, mnp.float32)).dtype == np.float32


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts_are_numpys(n: int) -> None:
    np.testing.assert_allclose(np.asarray(mnp.fft.fftfreq(n, 0.5, dtype="float64")), np.fft.fftfreq(n, 0.5))
    np.testing.assert_allclose(np.asarray(mnp.fft.rfftfreq(n, d=0.25)), np.fft.rfftfreq(n, 0.25), 1e-6)
    assert mnp.fft.fftfreq(n).dtype == np.float32
    x = RNG.standard_normal((n, 3, 4))
    for axes in (None, 0, (0, 2), (-1,)):
        for name in ("fftshift", "ifftshift"):
            found = np.asarray(getattr(mnp.fft, name)(x, axes))
            np.testing.assert_array_equal(found, getattr(np.fft, name)(x, axes))


@pytest.mark.parametrize("call", [
    lambda: mnp.fft.fft(COMPLEX, n=0), lambda: mnp.fft.fft(COMPLEX, axis=3), lambda: mnp.fft.fft(COMPLEX, norm="most"),
    lambda: mnp.fft.rfft(COMPLEX), lambda: mnp.fft.ihfft(COMPLEX), lambda: mnp.fft.fft(REAL[:0], axis=0),
    lambda: mnp.fft.fftn(COMPLEX, s=(2, 2), axes=(0,)), lambda: mnp.fft.rfftn(np.float32(1)),
    lambda: mnp.fft.irfft(COMPLEX[..., :1]), lambda: mnp.fft.fftfreq(0), lambda: mnp.fft.hfft(COMPLEX, norm="x"),
])  # fmt: skip
def test_what_has_no_transform_is_refused(call: Any) -> None:
    with pytest.raises(MeshError):
        call()


def test_a_traced_convolution_by_transforms() -> None:
    x, w = REAL[0, 0].astype(np.float32), np.array([1, -2, 0.5], np.float32)

    def convolved(x: Any, w: Any) -> Any:
        return mnp.fft.irfft(mnp.fft.rfft(x, n=8) * mnp.fft.rfft(w, n=8), n=8)

    np.testing.assert_allclose(mesh.evaluate(convolved, x, w), np.convolve(x, w), 1e-5, 1e-6)
    ones = np.ones(8, np.float32)
    of_w = mesh.grad(lambda w: (convolved(x, w) * ones).sum())(w)
    np.testing.assert_allclose(np.asarray(of_w), [x.sum()] * 3, 1e-5)


@pytest.mark.parametrize("name", [*ONE_AXIS, "fftn", "irfftn"])
def test_derivatives_are_central_differences(name: str) -> None:
    x, function = given(name, np.float64)[0], getattr(mnp.fft, name)
    rng = np.random.default_rng(1)
    towards = rng.standard_normal(x.shape) * (1 if np.isrealobj(x) else 1 + 0.3j)
    shape, complex_result = mesh.evaluate(function, x).shape, name not in ("irfft", "hfft", "irfftn")
    weights = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if complex_result else 0)

    def weighed(x: Any) -> Any:
        return mnp.real(mnp.sum(function(x) * weights))

    wanted = (float(weighed(x + 1e-6 * towards)) - float(weighed(x - 1e-6 * towards))) / 2e-6
    assert np.isclose(float(mesh.jvp(weighed, (x,), (towards,))[1]), wanted, 1e-7)
    assert np.isclose((np.asarray(mesh.grad(weighed)(x)) * towards).sum().real, wanted, 1e-7)
    rows = mesh.vmap(function)(given(name, np.float64))
    np.testing.assert_allclose(np.asarray(rows)[1], np.asarray(function(given(name, np.float64)[1])), 1e-12)
