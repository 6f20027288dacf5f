"""Derivatives of whole functions are what jax says (tests/golden/make_jax_reference.py), in f64 and in any form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.whole_functions import WHOLE, attention, cross_entropy, figures, layer_norm

import mesh
import mesh.numpy as mnp
from mesh import nn
from mesh.array import Array

RECORDED: dict[str, Any] = dict(np.load(Path(__file__).parents[1] / "golden" / "jax_derivatives.npz"))


@pytest.mark.parametrize("name", WHOLE)
def test_derivatives_are_those_of_jax(name: str) -> None:
    found = figures(name, mnp, mesh)
    assert found.keys() == {key for key in RECORDED if key.split("/")[0] == name}
    for key, value in found.items():
        assert value.dtype == RECORDED[key].dtype
        np.testing.assert_allclose(value, RECORDED[key], 1e-9, 1e-11, err_msg=key)


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
    for key, value in figures(name, mnp, mesh).items():
        np.testing.assert_allclose(value, RECORDED[key], 1e-9, 1e-11, err_msg=key)
