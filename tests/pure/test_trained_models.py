"""A loaded model with other params: in a loss that is differentiated, and as a model again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.language import golden_model

import mesh
from mesh import nn
from mesh.errors import InputError

IDS = np.arange(3, 11, dtype=np.int32)[None]


def loss(model: mesh.Model, params: Any) -> Any:
    return nn.cross_entropy(model.apply(params, IDS[:, :-1]), IDS[:, 1:])


def test_its_own_params_give_what_it_gives() -> None:
    model = golden_model("gpt2")
    np.testing.assert_array_equal(np.asarray(model.apply(model.params, IDS)), np.asarray(model(IDS)))
    np.testing.assert_array_equal(np.asarray(model.apply(model.params, input_ids=IDS)), np.asarray(model(IDS)))


def test_a_step_down_the_gradient_is_another_model_with_a_smaller_loss() -> None:
    model = golden_model("gpt2")
    before, gradients = mesh.value_and_grad(lambda params: loss(model, params))(dict(model.params))
    moved = {name: np.asarray(value) - 0.01 * np.asarray(gradients[name]) for name, value in model.params.items()}
    better = model.trained(moved)
    assert float(loss(better, better.params)) < float(before)
    assert np.abs(np.asarray(better(IDS)) - np.asarray(model(IDS))).max() > 0
    assert len(better.generate([3, 4], max_new_tokens=4, ends=())) == 4
    np.testing.assert_array_equal(np.asarray(model.trained(dict(model.params))(IDS)), np.asarray(model(IDS)))


def test_params_that_do_not_fit_are_named() -> None:
    model = golden_model("gpt2")
    name = next(iter(model.params))
    with pytest.raises(InputError, match=f"has a param '{name}', which is missing"):
        model.trained({})
    with pytest.raises(InputError, match=rf"the param '{name}' is f32\[3\], expected"):
        model.trained({**model.params, name: np.zeros(3, np.float32)})
