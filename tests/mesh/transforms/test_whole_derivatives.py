"""Derivatives of whole functions are what jax says (tests/golden/make_jax_reference.py), in f64 and in any form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases.whole_functions import WHOLE, attention, cross_entropy, derivatives, figures, layer_norm
from support.rounding import RECORDED as ORACLES
from support.rounding import allowed, assert_rounds_alike, traced

import mesh
import mesh.numpy as mnp
from mesh import nn
from mesh.core.array import Array

RECORDED: dict[str, Any] = dict(np.load(Path(__file__).parents[2] / "golden" / "jax_derivatives.npz"))


def check(name: str, found: dict[str, Any]) -> None:
    """Every figure is jax's but for rounding."""
    graph, given = traced(lambda *arguments: derivatives(name, mnp, mesh, *arguments), *WHOLE[name][1])
    bounds = dict(zip(graph.output_names, allowed(graph, given, ORACLES["jax_derivatives"]), strict=True))
    for key, value in found.items():
        assert value.dtype == RECORDED[key].dtype
        assert_rounds_alike(value, RECORDED[key], bounds[key.replace("/", "~1")], key)


@pytest.mark.parametrize("name", WHOLE)
def test_derivatives_are_those_of_jax(name: str) -> None:
    found = figures(name, mnp, mesh)
    assert found.keys() == {key for key in RECORDED if key.split("/")[0] == name}
    check(name, found)


def by_composites(name: str) -> Any:
    """The same functions by the functions of mesh.nn, whose composites have rules of their own."""

    def entropy(logits: Array, labels: Array) -> Array:
        return -mnp.mean(mnp.take_along_axis(nn.log_softmax(logits), labels[:, None], axis=-1))

    def norm(x: Array, weight: Array, bias: Array) -> Array:
        return mnp.sum(mnp.tanh(nn.layer_norm(x, weight, bias, eps=1e-5)))

    def attend(q: Array, k: Array, v: Array) -> Array:
        mask = mnp.tril(mnp.ones((q.shape[1], q.shape[1]))) > 0
        return mnp.sum(nn.scaled_dot_product_attention(q, k, v, mask) ** 2)

    return {"cross_entropy": entropy, "layer_norm": norm, "attention": attend}[name]


@pytest.mark.parametrize("fn", [cross_entropy, layer_norm, attention])
@pytest.mark.parametrize("again", [False, True])
def test_composites_have_the_same_derivatives(fn: Any, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fn.__name__
    made = by_composites(name)
    made = mesh.remat(made) if again else made
    monkeypatch.setitem(WHOLE, name, (lambda xp, *args: made(*args), WHOLE[name][1]))
    check(name, figures(name, mnp, mesh))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_slopes_of_narrow_floats_have_room_for_what_they_sum(dtype: Any) -> None:
    """The count of more than 65,504 equal elements was infinite in float16, and so was a sum of cotangents."""
    equal = np.ones(70_000, dtype)
    found = np.asarray(mesh.grad(lambda x: mnp.max(x))(equal))
    assert np.array_equal(found, np.full(70_000, 1 / 70_000).astype(dtype))
    moved = mesh.jvp(lambda x: mnp.max(x), (equal,), (equal,))[1]
    assert float(moved) == 1

    x, g = (np.arange(1000) / 100).astype(dtype), np.full(1000, 300, dtype)
    for fn in (nn.softmax, nn.log_softmax):
        (found,) = mesh.vjp(fn, x)[1](g)
        (wanted,) = mesh.vjp(fn, x.astype(np.float64))[1](g.astype(np.float64))
        size = np.abs(np.asarray(wanted)).max()
        np.testing.assert_allclose(
            np.asarray(found).astype(np.float64), np.asarray(wanted), rtol=2**-6, atol=size * 1e-2 + 1e-3
        )
