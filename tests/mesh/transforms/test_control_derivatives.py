"""Derivatives and batches of branches and loops: against central differences in float64, and against Python's loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.differences import along, assert_close, inner, numbers

import mesh
import mesh.numpy as mnp
from mesh import tree
from wire.errors import UnknownOp

RNG = np.random.default_rng(7)
W, X, ROWS = RNG.standard_normal((3, 3)) * 0.5, RNG.standard_normal(3), RNG.standard_normal((5, 3))
ASKED = {"then": 1.0, "otherwise": -1.0}


def _cond(x: Any, w: Any) -> Any:
    return mesh.cond(x.sum() > 100, lambda x: (mnp.sin(x) @ w, x[0]), lambda x: (mnp.exp(x * w.sum()), x[1] * x[2]), x)


def _cond_taken(x: Any, w: Any) -> Any:
    return mesh.cond(w.sum() < 100, lambda: (x * x @ w, 1.0), lambda: (x, x[0]))[0]


def _recurrent(x: Any, w: Any, rows: Any) -> Any:
    def turn(carry: Any, row: Any) -> Any:
        hidden, count = carry
        hidden = mnp.tanh(hidden @ w + row) * x
        return (hidden, count + 1), (hidden * row, hidden.sum(), count)

    (hidden, count), (products, sums, counts) = mesh.scan(turn, (x, 0), rows)
    return hidden, products, sums * mnp.astype(counts, "float64"), mnp.astype(count, "float64") * hidden


def _backwards(x: Any, w: Any, rows: Any) -> Any:
    return mesh.scan(lambda c, row: (c * row + w[0], mnp.exp(c * 0.1)), x, rows, reverse=True)


def _of_constants(x: Any, w: Any) -> Any:
    """The carry gets its tangent in the second turn only, by way of another carry."""
    return mesh.scan(lambda c, _: ((c[1], c[2], c[2] * x), c[0]), (x * 0, x * 0, mnp.ones(3, dtype="float64")), None, 4)


def _mapped(x: Any, rows: Any) -> Any:
    return mesh.map(lambda row: mnp.sin(row * x) + row.sum(), rows)


def _fori(x: Any, w: Any) -> Any:
    return mesh.fori_loop(1, 4, lambda i, c: mnp.sin(c @ w) * i + x, x)


def _nested(x: Any, w: Any, rows: Any) -> Any:
    def turn(carry: Any, row: Any) -> Any:
        inside = mesh.fori_loop(0, 2, lambda i, c: mnp.tanh(c * row + x) * w.sum(), carry)
        return mesh.cond(row[0] > 0, lambda: inside * row, lambda: mnp.cos(inside) @ w), inside.sum()

    return mesh.scan(turn, x, rows)


def _of_no_turn(x: Any, w: Any) -> Any:
    return mesh.scan(lambda c, _: (c * 2, c), x @ w, None, length=0)


def _large_inside(x: Any, w: Any) -> Any:
    table = np.linspace(0, 0.01, 300).reshape(100, 3)
    return mesh.scan(lambda c, row: (c + (table * row).sum() * c, ()), x, w)[0]


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (_cond, (X, W)), (_cond_taken, (X, W)), (_recurrent, (X, W, ROWS)), (_backwards, (X, W, ROWS)),
    (_of_constants, (X, W)), (_mapped, (X, ROWS)), (_fori, (X, W)), (_nested, (X, W, ROWS)), (_of_no_turn, (X, W)),
    (_large_inside, (X, W)),
]  # fmt: skip
IDS = [fn.__name__.strip("_") for fn, _ in PROGRAMS]


def flat(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The float results."""
    return lambda *arrays: [each for each in tree.leaves(fn(*arrays)) if each.type.dtype.kind == "f"]


@pytest.mark.parametrize(("fn", "point"), PROGRAMS, ids=IDS)
def test_jvp_and_vjp_are_what_differences_are(fn: Any, point: Any) -> None:
    function, rng = flat(fn), np.random.default_rng(1)
    directions = [rng.standard_normal(array.shape) for array in point]
    wanted = along(function, point, directions)
    results, tangents = mesh.jvp(function, point, directions)
    for found, right in zip(numbers(tangents), wanted, strict=True):
        assert_close(found, right, "jvp")
    values, pull = mesh.vjp(function, *point)
    for found, again in zip(numbers(results), numbers(values), strict=True):
        np.testing.assert_array_equal(found, again)
    cotangents = [rng.standard_normal(array.shape) for array in wanted]
    back = pull(cotangents)
    assert_close(inner(numbers(back), directions), inner(cotangents, wanted), "vjp", 10)


@pytest.mark.parametrize(("fn", "point"), PROGRAMS, ids=IDS)
def test_second_derivatives_are_what_differences_of_the_first_are(fn: Any, point: Any) -> None:
    function, rng = flat(fn), np.random.default_rng(2)
    cotangents = [rng.standard_normal(array.shape) for array in numbers(function(*map(mnp.asarray, point)))]

    def gradient(*arrays: Any) -> Any:
        return list(mesh.vjp(function, *arrays)[1](cotangents))

    directions = [rng.standard_normal(array.shape) for array in point]
    wanted = along(gradient, point, directions)
    for found, right in zip(numbers(mesh.jvp(gradient, point, directions)[1]), wanted, strict=True):
        assert_close(found, right, "forward over reverse", 10)
    weights = [rng.standard_normal(array.shape) for array in point]
    back = numbers(mesh.vjp(gradient, *point)[1](weights))
    assert_close(inner(back, directions), inner(weights, wanted), "reverse over reverse", 30)


@pytest.mark.parametrize(("fn", "point"), PROGRAMS, ids=IDS)
def test_vmap_is_a_loop_over_elements(fn: Any, point: Any) -> None:
    function, rng = flat(fn), np.random.default_rng(3)
    for batched in ([True] * len(point), [place == 0 for place in range(len(point))],
                    [place == len(point) - 1 for place in range(len(point))]):  # fmt: skip
        args = [rng.standard_normal((4, *array.shape)) if each else array
                for array, each in zip(point, batched, strict=True)]  # fmt: skip
        axes = tuple(0 if each else None for each in batched)
        found = numbers(mesh.vmap(function, in_axes=axes)(*args))
        alone = []
        for at in range(4):
            chosen = [array[at] if each else array for array, each in zip(args, batched, strict=True)]
            alone.append(numbers(function(*map(mnp.asarray, chosen))))
        for place, array in enumerate(found):
            assert_close(array, np.stack([each[place] for each in alone]), f"vmap {batched}")


@pytest.mark.parametrize(("fn", "point"), PROGRAMS, ids=IDS)
def test_grad_of_vmap_of_grad(fn: Any, point: Any) -> None:
    function, rng = flat(fn), np.random.default_rng(4)

    def gradient(x: Any, *others: Any) -> Any:
        return mesh.grad(lambda x: sum((each * each).sum() for each in function(x, *others)))(x)

    def total(xs: Any) -> Any:
        return mnp.sin(mesh.vmap(lambda x: gradient(x, *point[1:]))(xs)).sum()

    xs = rng.standard_normal((3, *point[0].shape)) * 0.3
    direction = rng.standard_normal(xs.shape)
    (wanted,) = along(lambda xs: [total(xs)], [xs], [direction])
    assert_close(inner(numbers([mesh.grad(total)(xs)]), [direction]), wanted, "grad of vmap of grad", 100)


# -- while ------------------------------------------------------------------------------------------------


def _grown(x: Any, step: Any) -> Any:
    return mesh.while_loop(lambda c: c[0].sum() < 10, lambda c: (c[0] * step + 1, c[1] + c[0].sum()), (x, x[0]))


def test_jvp_of_a_while_is_a_while() -> None:
    point, directions = (np.abs(X), np.float64(1.3)), (np.ones(3), np.float64(0.7))
    wanted = along(flat(_grown), point, directions)
    for found, right in zip(numbers(mesh.jvp(flat(_grown), point, directions)[1]), wanted, strict=True):
        assert_close(found, right, "jvp", 10)
    graph = mesh.trace(lambda x, y: mesh.jvp(flat(_grown), (x, y), directions)[1], *point)
    assert "while" in [node.op for node in graph]


def test_vjp_of_a_while_says_what_to_use_instead() -> None:
    with pytest.raises(UnknownOp, match=r"mesh\.scan, or mesh\.fori_loop between Python ints"):
        mesh.grad(lambda x: _grown(x, 2.0)[0].sum())(X)
    found = mesh.grad(lambda x: (mesh.stop_gradient(_grown(mnp.abs(x), 2.0)[0]) * x).sum())(X)
    assert np.asarray(found).shape == (3,)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_a_batch_turns_until_all_are_done(axes: Any) -> None:
    xs = np.abs(RNG.standard_normal((6, 3))) * 3 if axes[0] == 0 else np.abs(X)
    steps = np.linspace(1.0, 4.0, 6) if axes[1] == 0 else np.float64(1.5)
    found = numbers(mesh.vmap(flat(_grown), in_axes=axes)(xs, steps))
    for at in range(6):
        x, step = xs[at] if axes[0] == 0 else xs, steps[at] if axes[1] == 0 else steps
        total = x[0]
        while x.sum() < 10:
            x, total = x * step + 1, total + x.sum()
        assert_close(found[0][at], x)
        assert_close(found[1][at], total)


def test_a_batch_whose_elements_all_turn_alike_asks_once() -> None:
    def powers(x: Any) -> Any:
        return mesh.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * x), (0, 1.0))[1]

    graph = mesh.trace(lambda xs: mesh.vmap(powers)(xs), np.ones(4, np.float32))
    (node,) = [node for node in graph if node.op == "while"]
    assert "reduce_max" not in [each.op for each in node.attrs["test"]]
    np.testing.assert_allclose(np.asarray(mesh.vmap(powers)(np.arange(4, dtype=np.float32))), np.arange(4.0) ** 5)


def test_a_scan_keeps_only_what_its_backward_pass_needs() -> None:
    def loss(x: Any, w: Any) -> Any:
        return mesh.scan(lambda c, _: (mnp.tanh(c @ w), ()), x, None, length=9)[0].sum()

    graph = mesh.trace(mesh.grad(loss), X, W)
    forward, *_ = [node for node in graph if node.op == "scan"]
    body = forward.attrs["body"]
    kept = [body.types[index].shape for index in body.outputs[1:]]
    assert len(kept) <= 2 and all(shape == (3,) for shape in kept), "the carry and its tanh, not w"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_turns_add_up_the_slope_of_a_constant_in_float32(dtype: Any) -> None:
    """2,000 times 1 was 256 in bfloat16, to which 1 adds nothing."""

    def total(w: Any) -> Any:
        def turn(carry: Any, x: Any) -> Any:
            return carry + mnp.astype(w * x, mnp.float32), ()

        return mesh.scan(turn, np.float32(0), np.ones(3000, dtype))[0]

    found = mesh.grad(total)(np.ones((), dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(float(found), 3000, rtol=2**-8)
