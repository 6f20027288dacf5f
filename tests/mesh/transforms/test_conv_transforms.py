"""Derivatives and batches of conv, on whole numbers in float64: everything is exact, so everything must be equal."""

from typing import Any

import numpy as np
import pytest
from support.cases.op_cases import Case, cases

import mesh
import mesh.numpy as mnp
from mesh.core.array import apply
from wire.ir.dtypes import F64

CASES = [case for case in cases("conv") if case.dtype is F64 and case.id.rpartition("/")[2] != "special"]
RANDOM = np.random.default_rng(5)


def whole(*shape: int) -> Any:
    return RANDOM.integers(-4, 5, shape).astype(np.float64)


def convolution(case: Case) -> Any:
    attrs = case.graph.nodes[case.graph.outputs[0]].attrs
    return lambda x, w: apply("conv", mnp.asarray(x), mnp.asarray(w), **attrs)


def operands(case: Case) -> tuple[Any, Any]:
    x, w = (whole(*array.shape) for array in case.arguments)
    return x, w


def equal(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert np.array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_tangent_is_the_difference(case: Case) -> None:
    conv, (x, w) = convolution(case), operands(case)
    dx, dw = operands(case)
    value, tangent = mesh.jvp(conv, (x, w), (dx, dw))
    equal(value, conv(x, w))
    equal(tangent, np.asarray(conv(x + dx, w)) - np.asarray(conv(x, w)) + np.asarray(conv(x, dw)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_cotangent_is_the_transpose_of_the_tangent(case: Case) -> None:
    conv, (x, w) = convolution(case), operands(case)
    value, pull = mesh.vjp(conv, x, w)
    g = whole(*value.shape)
    of_x, of_w = (np.asarray(each) for each in pull(g))
    assert of_x.shape == x.shape and of_w.shape == w.shape
    for _ in range(3):
        dx, dw = operands(case)
        assert (of_x * dx).sum() == (g * np.asarray(conv(dx, w))).sum()
        assert (of_w * dw).sum() == (g * np.asarray(conv(x, dw))).sum()


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_batch_is_a_loop(case: Case, axes: Any) -> None:
    conv, pairs = convolution(case), [operands(case) for _ in range(3)]
    x, w = (
        np.stack([pair[place] for pair in pairs]) if axis == 0 else pairs[0][place] for place, axis in enumerate(axes)
    )
    expected = [
        np.asarray(conv(x[at] if axes[0] == 0 else x, w[at] if axes[1] == 0 else w)) for at in range(len(pairs))
    ]
    equal(mesh.vmap(conv, in_axes=axes)(x, w), np.stack(expected))


def test_a_batch_of_none() -> None:
    (case,) = (case for case in CASES if case.id.endswith("/groups"))
    x, w = operands(case)
    assert mesh.vmap(convolution(case))(np.zeros((0, *x.shape)), np.zeros((0, *w.shape))).shape == (0, 2, 9, 5, 5)


def test_second_derivatives_and_batches_of_them() -> None:
    (case,) = (case for case in CASES if case.id.endswith("/all-at-once"))
    conv, (x, w) = convolution(case), operands(case)

    def energy(x: Any, w: Any) -> Any:
        found = conv(x, w)
        return mnp.sum(found * found) / 2

    dx, dw = operands(case)
    _, turned = mesh.jvp(mesh.grad(energy, 0), (x, w), (dx, dw))
    _, pull = mesh.vjp(conv, x, w)
    _, pull_dw = mesh.vjp(conv, x, dw)
    moved = np.asarray(conv(dx, w)) + np.asarray(conv(x, dw))
    equal(turned, np.asarray(pull(moved)[0]) + np.asarray(pull_dw(conv(x, w))[0]))
    xs = np.stack([x, dx])
    found = mesh.vmap(mesh.grad(energy, 1), in_axes=(0, None))(xs, w)
    equal(found, np.stack([np.asarray(mesh.grad(energy, 1)(each, w)) for each in xs]))
