"""Derivatives of functions of complex numbers: JAX's convention, by hand and by figures that JAX gave.

What every op's rule does is compared with central differences in test_derivatives.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.errors import InputError

Z = np.array([1 + 2j, -0.5 + 0.3j, 2 - 1j])
X = np.array([0.3, -0.7, 1.1])


def near(found: Any, wanted: Any) -> None:
    value = np.asarray(found)
    assert value.dtype == np.asarray(wanted).dtype
    np.testing.assert_allclose(value, wanted, 1e-8, 1e-12)


def test_the_gradient_of_a_real_function_is_the_conjugate_of_the_steepest_ascent() -> None:
    near(mesh.grad(lambda z: (mnp.abs(z) ** 2).sum())(Z), 2 * Z.conj())
    near(mesh.grad(lambda z: (z.real**2 + 3 * z.imag).sum())(Z), 2 * Z.real - 3j)
    step = 1e-3 * np.asarray(mesh.grad(lambda z: mnp.abs(mnp.sin(z)).sum())(Z)).conj()
    assert np.abs(np.sin(Z - step)).sum() < np.abs(np.sin(Z)).sum()


def test_a_holomorphic_function_has_its_derivative_in_both_modes_without_conjugation() -> None:
    value, pull = mesh.vjp(lambda z: mnp.sin(z) * z, Z)
    slope = np.cos(Z) * Z + np.sin(Z)
    near(value, np.sin(Z) * Z)
    near(pull(1j * Z)[0], 1j * Z * slope)
    near(mesh.jvp(lambda z: mnp.sin(z) * z, (Z,), (1j * Z,))[1], 1j * Z * slope)


JAX: dict[str, tuple[Callable[[Any], Any], list[complex]]] = {  # jax.grad of the same function at Z
    "abs": (lambda z: mnp.sum(mnp.abs(z)), [0.447213595 - 0.894427191j, -0.857492926 - 0.514495755j,
                                            0.894427191 + 0.447213595j]),
    "imag": (lambda z: mnp.sum(mnp.imag(mnp.exp(z) / z)), [1.062441587 - 0.231228998j, -2.526687819 + 1.030797378j,
                                                           -1.581256406 - 1.366557786j]),
    "conj": (lambda z: mnp.sum(mnp.real(mnp.conj(z) * z * z)), [7 - 4j, 0.84 + 0.3j, 13 + 4j]),
    "angle": (lambda z: mnp.sum(mnp.angle(z)), [-0.4 - 0.2j, -0.882352941 + 1.470588235j, 0.2 - 0.4j]),
    "prod": (lambda z: mnp.real(mnp.prod(z)), [-0.7 + 1.1j, 4 + 3j, -1.1 - 0.7j]),
    "vdot": (lambda z: mnp.real(mnp.vdot(z, mnp.sqrt(z))), [1.204874306 - 1.530804651j, -0.072868595 - 0.472820425j,
                                                            2.029374997 + 0.822631201j]),
    "pow": (lambda z: mnp.abs(mnp.sum(z**3 + z ** (0.5 + 1j))), [
        -5.659185472 - 14.067470815j, 0.529089919 + 0.990234759j, 4.91945981 + 12.908903384j]),
    "grad of grad": (lambda z: mnp.sum(mnp.abs(mesh.grad(lambda w: mnp.sum(mnp.abs(w) ** 3))(z))),
                     [6 - 12j, -3 - 1.8j, 12 + 6j]),
}  # fmt: skip


@pytest.mark.parametrize("name", JAX)
def test_gradients_are_those_of_jax(name: str) -> None:
    fn, wanted = JAX[name]
    np.testing.assert_allclose(np.asarray(mesh.grad(fn)(Z)), wanted, 1e-7)


def test_cotangents_and_tangents_of_what_has_no_complex_derivative_are_those_of_jax() -> None:
    _, pull = mesh.vjp(lambda z: z * z * mnp.conj(z), Z)
    near(pull(1j * Z)[0], np.array([-18 + 21j, -0.402 - 0.35j, 21 + 18j]))
    moved = mesh.jvp(lambda z: mnp.abs(z) * z, (Z,), (Z[::-1] * 1j,))[1]
    np.testing.assert_allclose(
        np.asarray(moved), [4.472135955 + 8.94427191j, -0.174928557 - 0.291547595j, -8.94427191 + 4.472135955j], 1e-7
    )


def test_a_real_argument_of_a_function_with_complex_numbers_inside_has_a_real_gradient() -> None:
    found = mesh.grad(lambda x: mnp.abs(mnp.sum(mnp.exp(1j * x) * Z)))(X)
    np.testing.assert_allclose(np.asarray(found), [-0.63137583, -0.410193909, 1.041569739], 1e-7)
    assert np.asarray(mesh.grad(lambda x: mnp.abs(x * (1 + 1j)))(np.float32(2))).dtype == np.float32


def test_the_sign_turns_with_its_number() -> None:
    """JAX gives 0 here."""
    _, tangent = mesh.jvp(mnp.sign, (Z,), (1j * Z,))
    near(tangent, 1j * Z / np.abs(Z))
    near(mesh.jvp(mnp.sign, (Z,), (2 * Z,))[1], np.zeros(3, np.complex128))


SLOPES: dict[str, Callable[[Any], Any]] = {
    "asin": lambda z: 1 / np.sqrt(1 - z) / np.sqrt(1 + z), "acos": lambda z: -1 / np.sqrt(1 - z) / np.sqrt(1 + z),
    "atan": lambda z: 1 / (1 + z * z), "acosh": lambda z: 1 / np.sqrt(z - 1) / np.sqrt(z + 1),
    "asinh": lambda z: 1 / np.sqrt(1 + z * z), "atanh": lambda z: 1 / (1 - z * z), "sinh": np.cosh, "cosh": np.sinh,
    "expm1": np.exp, "log1p": lambda z: 1 / (1 + z), "log2": lambda z: 1 / z / np.log(2), "exp2": lambda z: np.exp2(z)
    * np.log(2),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOPES)
def test_what_is_composed_of_parts_has_its_complex_derivative(name: str) -> None:
    at = np.concatenate([Z, [0.01 - 0.02j, -0.3j, 20 - 3j]])
    if name not in ("sinh", "cosh", "expm1", "exp2"):
        at = np.append(at, [3e10 - 2e9j, -1e5 + 1e3j])
    wanted = SLOPES[name](at)
    for direction in (1.0, 1j, 0.6 - 0.8j):
        moved = mesh.jvp(getattr(mnp, name), (at,), (np.full(at.shape, direction, np.complex128),))[1]
        np.testing.assert_allclose(np.asarray(moved), direction * wanted, 1e-9, 1e-25)
    (pulled,) = mesh.vjp(getattr(mnp, name), at)[1](np.full(at.shape, 1j))
    np.testing.assert_allclose(np.asarray(pulled), 1j * wanted, 1e-9, 1e-25)


def test_gradients_go_through_loops_and_batches() -> None:
    def turned(z: Any) -> Any:
        last, _ = mesh.scan(lambda carry, _: (carry * z, None), mnp.asarray(1 + 0j, "complex128"), None, length=4)
        return mnp.real(last)

    near(mesh.vmap(mesh.grad(turned))(Z), 4 * Z**3)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: mesh.grad(lambda z: (z * z).sum())(Z), "grad needs a function that gives one float, got c128"),
    (lambda: mesh.jacobian(lambda z: mnp.abs(z))(Z), "it has two derivatives"),
    (lambda: mesh.hessian(lambda z: mnp.abs(z).sum())(Z), "it has two derivatives"),
    (lambda: mesh.jacobian(lambda x: x * 1j)(X), "jacobian needs a function that gives floats, got c128"),
])  # fmt: skip
def test_what_would_be_half_a_derivative_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()
