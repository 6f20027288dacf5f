"""Every differentiable op: both modes against central differences in f64, second derivatives, and through vmap.

Complex operands move in a complex direction, and what is compared is the real part of the product with complex weights,
unconjugated: that is what a cotangent of complex numbers means here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.cases.smooth_cases import SMOOTH, Smooth
from support.differences import Numbers, along, assert_close, inner, numbers

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array, apply
from mesh.numpy import asarray
from mesh.transforms.jvp_rules import JVPS, forward
from mesh.transforms.vjp_rules import VJPS, backward
from mesh.transforms.vmap_rules import batch
from wire.ir.ops import COLLECTIVES

FLAT = {
    "floor": "flat", "round": "flat", "sign": "flat", "bitcast": "bits", "not": "no floats", "is_nan": "a test",
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), "a test"),
    **dict.fromkeys(("and", "or", "xor", "shl", "shr", "random_bits"), "no floats"),
    **dict.fromkeys(("argmax", "argsort"), "positions"),
}  # fmt: skip
ELSEWHERE = {
    "composite": "test_transforms.py",
    **dict.fromkeys(("conv", "cond", "while", "scan"), "by their owners"),
    **dict.fromkeys(("spmd", *COLLECTIVES), "test_shard_derivatives.py"),
}
CASES = [pytest.param(op, case, id=f"{op}-{case}") for op, cases in SMOOTH.items() for case in cases]
BATCH = 3


class Point:
    """One case as a function of its float operands, with directions to move and to weigh in."""

    def __init__(self, op: str, case: Smooth) -> None:
        rng = np.random.default_rng(len(op))
        self.op, self.case = op, case
        self.floats = [place for place, operand in enumerate(case.operands) if operand.dtype.kind in "fc"]
        self.at = [case.operands[place] for place in self.floats]
        self.direction = [self._like(rng, x) for x in self.at]
        self.second = [self._like(rng, x) for x in self.at]
        (result,) = self(*map(asarray, self.at))
        self.weights = self._like(rng, result)
        rows = [np.broadcast_to(x, (BATCH, *x.shape)) for x in self.at]
        self.rows = [np.asarray(x + 1e-3 * self._like(rng, x)) for x in rows]
        self.row_directions = [self._like(rng, x) for x in self.rows]

    def __call__(self, *floats: Array) -> list[Array]:
        operands = [asarray(operand) for operand in self.case.operands]
        for place, value in zip(self.floats, floats, strict=True):
            operands[place] = value
        return [apply(self.op, *operands, **self.case.attrs)]

    def slope(self, *floats: Array) -> list[Array]:
        """The derivative of the weighted result along `direction`, by reverse mode."""
        found = backward(self, floats)[1]([asarray(self.weights)])
        return [_dot(found, self.direction)]

    def slopes_of_rows(self, *rows: Array) -> list[Array]:
        """The sum of `slope` over a batch."""
        found, batched = batch(self.slope, BATCH, rows, [True] * len(rows))
        return [asarray(found[0]).sum() if batched[0] else asarray(found[0]) * BATCH]

    @staticmethod
    def _like(rng: np.random.Generator, x: Numbers | Array) -> Numbers:
        found = rng.standard_normal(x.shape)
        return np.asarray(found + 1j * rng.standard_normal(x.shape) if x.dtype.kind == "c" else found)


def _dot(derivatives: Sequence[Array | None], direction: Sequence[Numbers]) -> Array:
    total = asarray(np.zeros(()))
    for derivative, towards in zip(derivatives, direction, strict=True):
        if derivative is not None:
            total = total + (derivative * asarray(towards)).sum().real
    return total


def test_every_op_with_a_derivative_has_cases() -> None:
    assert SMOOTH.keys() == VJPS.keys() - FLAT.keys() - ELSEWHERE.keys()
    assert SMOOTH.keys() <= JVPS.keys()


@pytest.mark.parametrize(("op", "case"), CASES)
def test_both_modes_are_the_central_difference(op: str, case: Smooth) -> None:
    point = Point(op, case)
    for place in range(len(point.at)):  # by each operand alone
        direction = [x if each == place else np.zeros_like(x) for each, x in enumerate(point.direction)]
        (wanted,) = along(point, point.at, direction)
        tangents = [asarray(x) if each == place else None for each, x in enumerate(direction)]
        _, (tangent,) = forward(point, list(map(asarray, point.at)), tangents)
        found = backward(point, list(map(asarray, point.at)))[1]([asarray(point.weights)])[place]
        values = numbers([each for each in (tangent, found) if each is not None])
        moved = values.pop(0) if tangent is not None else np.zeros_like(wanted)
        assert_close(moved, wanted, "forward")
        assert_close(
            inner(values or [None], [point.direction[place]]), inner([wanted], [point.weights]), "reverse", scale=10
        )


@pytest.mark.parametrize(("op", "case"), CASES)
def test_second_derivatives_by_both_modes_are_the_central_difference(op: str, case: Smooth) -> None:
    point = Point(op, case)
    (wanted,) = along(point.slope, point.at, point.second)
    at, towards = list(map(asarray, point.at)), list(map(asarray, point.second))
    _, (ahead,) = forward(point.slope, at, towards)
    back = _dot(backward(point.slope, at)[1]([asarray(np.ones(()))]), point.second)
    assert_close(0.0 if ahead is None else np.asarray(ahead), wanted, "forward over reverse", scale=100)
    assert_close(np.asarray(back), wanted, "reverse over reverse", scale=100)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_grad_of_vmap_of_grad_is_the_central_difference(op: str, case: Smooth) -> None:
    point = Point(op, case)
    (wanted,) = along(point.slopes_of_rows, point.rows, point.row_directions)
    found = backward(point.slopes_of_rows, list(map(asarray, point.rows)))[1]([asarray(np.ones(()))])
    assert_close(np.asarray(_dot(found, point.row_directions)), wanted, scale=100)


@pytest.mark.parametrize("op", [op for op, reason in FLAT.items() if reason == "flat"])
def test_flat_ops_have_no_derivative(op: str) -> None:
    x = asarray(np.array([0.3, -1.7]))
    fn: Callable[..., Any] = partial(lambda each: [apply(op, each)])
    assert backward(fn, [x])[1]([asarray(np.ones(2))]) == [None]
    assert forward(fn, [x], [asarray(np.ones(2))])[1] == [None]


def test_a_power_has_mixed_derivatives_where_the_exponent_is_0() -> None:
    """d/dy d/dx x^y at y = 0 was 0, and is 1 / x, as d/dx d/dy is."""
    x, y = np.array([0.5, 2.0, 3.0]), np.zeros(3)
    by_base = mesh.grad(lambda x, y: mnp.sum(mnp.pow(x, y)))
    by_exponent = mesh.grad(lambda x, y: mnp.sum(mnp.pow(x, y)), argnums=1)
    np.testing.assert_allclose(np.asarray(mesh.grad(lambda y: mnp.sum(by_base(x, y)))(y)), 1 / x)
    np.testing.assert_allclose(np.asarray(mesh.grad(lambda x: mnp.sum(by_exponent(x, y)))(x)), 1 / x)
    np.testing.assert_array_equal(np.asarray(by_base(np.zeros(1), np.zeros(1))), [0.0])
