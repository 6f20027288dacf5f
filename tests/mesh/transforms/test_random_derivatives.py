"""Random programs of smooth steps: derivatives of all kinds against central differences, batches against loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.differences import along, assert_close, numbers

import mesh
import mesh.numpy as mnp
from mesh import nn
from mesh.core.array import Array

Step = Callable[[Array, np.random.Generator], Array]
ELEMENTS_MAX = 60


def _matrix(x: Array) -> Array:
    return mnp.reshape(x, (x.shape[0], -1)) if x.ndim > 1 else mnp.reshape(x, (1, -1))


def _rows(x: Array, fn: Callable[..., Any]) -> Array:
    return _matrix(x) if _matrix(x).shape[0] == 0 else mesh.vmap(fn)(_matrix(x))


def _scanned(x: Array, rng: np.random.Generator) -> Array:
    rows = _matrix(x)
    return mesh.scan(lambda c, row: (mnp.tanh(c + row), c * row), mnp.zeros(rows.shape[1], dtype="float64"), rows)[1]


def _gathered(x: Array, rng: np.random.Generator) -> Array:
    return mnp.take(x, rng.integers(0, x.shape[0], rng.integers(1, 5)).astype(np.int32), axis=0)


def _updated(x: Array, rng: np.random.Generator) -> Array:
    row = x[rng.integers(x.shape[0])] * 0.5
    place = np.array(rng.integers(0, x.shape[0], 2))
    return getattr(x.at[place], rng.choice(["add", "set"]))(mnp.stack([row, row + 1]))


def _stepped(x: Array, rng: np.random.Generator) -> Array:
    y = x * 1.0
    y[0] = mnp.cos(x[-1])
    y[:, None] += 0.5
    return y


SINE = mesh.custom_jvp(mnp.sin, lambda at, by: (mnp.sin(at[0]), mnp.cos(at[0]) * by[0]))
STEPS: dict[str, Step] = {
    "sin": lambda x, rng: mnp.sin(x),
    "tanh": lambda x, rng: mnp.tanh(x) * 2,
    "exp": lambda x, rng: mnp.exp(x * 0.3),
    "affine": lambda x, rng: x * float(rng.uniform(-2, 2)) + 0.3,
    "product": lambda x, rng: x * mnp.flip(x),
    "quotient": lambda x, rng: x / (1 + x * x),
    "power": lambda x, rng: (x * x + 0.5) ** float(rng.uniform(-1, 2)),
    "log": lambda x, rng: mnp.log1p(x * x),
    "matmul": lambda x, rng: _matrix(x) @ mnp.asarray(rng.standard_normal((_matrix(x).shape[1], 3))),
    "gram": lambda x, rng: mnp.matmul(_matrix(x), _matrix(x).T) / x.size,
    "einsum": lambda x, rng: mnp.einsum("ij,kj->ki", _matrix(x), mnp.cos(_matrix(x))) / x.size,
    "softmax": lambda x, rng: nn.softmax(x) * 3,
    "gelu": lambda x, rng: nn.gelu(x),
    "norm": lambda x, rng: x / mnp.sqrt(mnp.mean(x * x, -1, keepdims=True) + 0.1),
    "sum": lambda x, rng: mnp.sum(x, axis=int(rng.integers(x.ndim)), keepdims=True) + x * 0.5,
    "prod": lambda x, rng: mnp.prod(0.9 + 0.3 * mnp.sin(x), axis=int(rng.integers(x.ndim)), keepdims=True) + x,
    "cumsum": lambda x, rng: mnp.cumulative_sum(x, axis=int(rng.integers(x.ndim))) * 0.3,
    "select": lambda x, rng: mnp.where(mnp.asarray(rng.random(x.shape) < 0.5), x, mnp.sin(x) * x),
    "slice": lambda x, rng: x[::-2] + x[0],
    "gather": _gathered,
    "update": _updated,
    "stepped": _stepped,
    "concat": lambda x, rng: mnp.concat([x, mnp.cos(x[:1])]),
    "pad": lambda x, rng: mnp.pad(x, [(1, 0)] + [(0, 0)] * (x.ndim - 1), constant_values=0.5),
    "roll": lambda x, rng: mnp.roll(x, 1, 0) - x,
    "transpose": lambda x, rng: mnp.matrix_transpose(_matrix(x)),
    "reshape": lambda x, rng: mnp.reshape(x, -1),
    "scan": _scanned,
    "loop": lambda x, rng: mesh.fori_loop(0, 3, lambda i, c: mnp.sin(c) + x * 0.1, x),
    "cond": lambda x, rng: mesh.cond(bool(rng.integers(2)), lambda c: mnp.cos(c) * x, lambda c: c * 0.7, x),
    "vmap": lambda x, rng: _rows(x, lambda row: mnp.sum(row) * row + 0.1),
    "inner grad": lambda x, rng: mesh.grad(lambda y: mnp.sum(mnp.sin(y) * x))(x),
    "remat": lambda x, rng: mesh.remat(lambda y: mnp.sin(mnp.cos(y)) * x)(x),
    "custom": lambda x, rng: SINE(x),
}  # fmt: skip


def program(seed: int) -> tuple[Callable[[Array], Array], np.ndarray[Any, Any], list[str]]:
    """A function of one array to one number, an argument for it, and the names of its steps."""
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.choice(list(STEPS), rng.integers(3, 8))]

    def fn(x: Array) -> Array:
        made = np.random.default_rng(seed + 1)
        kept = [x]
        for name in names:
            found = STEPS[name](kept[-1], made)
            kept.append(found if found.size <= ELEMENTS_MAX else mnp.reshape(found, -1)[:ELEMENTS_MAX])
        return mnp.sum(mnp.sin(kept[-1])) + sum(mnp.sum(each) * 0.01 for each in kept)

    shape = [(5,), (3, 4), (2, 3, 2), (1, 6)][rng.integers(4)]
    return fn, rng.uniform(-1, 1, shape), names


def check(seed: int) -> None:
    fn, x, names = program(seed)
    rng = np.random.default_rng(seed + 2)
    first, second = rng.standard_normal((2, *x.shape))
    what = " > ".join(names)

    def slope(each: Array) -> Array:
        return mnp.sum(mesh.grad(fn)(each) * mnp.asarray(first))

    (wanted,), (curvature,) = along(lambda y: [fn(y)], [x], [first]), along(lambda y: [slope(y)], [x], [second])
    scale = 1 + abs(float(wanted)) + abs(float(curvature))
    rows = np.stack([x, x + 0.1 * first])
    found = numbers([
        slope(mnp.asarray(x)),
        mesh.jvp(fn, (x,), (first,))[1],
        mesh.jvp(slope, (x,), (second,))[1],
        mnp.sum(mesh.grad(slope)(x) * second),
        mnp.sum(mesh.grad(lambda each: mnp.sum(mesh.vmap(slope)(each)))(rows)[0] * second),
        *mesh.vmap(mesh.grad(fn))(rows),
        *[mesh.grad(fn)(row) for row in rows],
        mesh.evaluate(mesh.grad(mesh.remat(fn)), rows[0]),
    ])  # fmt: skip
    for place, right in enumerate((wanted, wanted, curvature, curvature, curvature)):
        assert_close(found[place], right, f"{what}: {place}", 200 * scale)
    for batched, alone in zip(found[5:7], found[7:9], strict=True):
        np.testing.assert_allclose(batched, alone, 1e-9, 1e-9 * scale, err_msg=what)
    np.testing.assert_allclose(found[9], found[7], 1e-9, 1e-9 * scale, err_msg=what)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_program_has_the_derivatives_of_differences(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 600))
def test_more_random_programs_have_the_derivatives_of_differences(seed: int) -> None:
    check(seed)
