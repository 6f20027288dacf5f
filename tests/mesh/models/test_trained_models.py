"""A loaded model with other params: in a loss that is differentiated, and as a model again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.cases.language import golden_model

import mesh
from mesh import nn
from mesh.errors import InputError
from mesh.models.model import InputSpec, parted
from wire.ir.dtypes import F32

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
    with pytest.raises(InputError, match=r"are a dict of arrays by name, not \[\]"):
        model.apply([], IDS)
    with pytest.raises(InputError, match=r"has no param 'lm_head\.bias'\. Give params by the names in model\.params"):
        model.apply({**model.params, "lm_head.bias": np.zeros(3, np.float32)}, IDS)


def with_statistics() -> mesh.Model:
    """x * w + mean[where], of which only w is trained; v is w by another name."""

    def function(params: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": given["x"] * params["w"] + params["mean"][params["where"]]}

    weights = {"w": np.ones(2, np.float32), "mean": np.full(3, 5.5, np.float32), "where": np.array([0, 2])}
    params, buffers = parted(weights, {"mean"})
    inputs = [InputSpec("x", F32, ("n", 2))]
    return mesh.Model("m", function, inputs, ["y"], params, buffers=buffers, tied={"v": "w"})


def test_buffers_are_read_and_not_trained() -> None:
    model, x = with_statistics(), np.full((4, 2), 3, np.float32)
    assert set(model.params) == {"w"} and set(model.buffers) == {"mean", "where"}
    assert model.weights.keys() == {"w", "mean", "where"}
    slopes = mesh.grad(lambda params: model.apply(params, x).sum())(dict(model.params))
    assert np.asarray(slopes["w"]).tolist() == [12, 12]
    trainer = mesh.DistributedTrainer(
        lambda params, rows: (model.apply(params, rows) ** 2).mean(), dict(model.params), optimizer=mesh.optim.sgd(0.01)
    )
    trainer.fit(x, epochs=3, batch_size=4)
    better = model.trained(trainer.params)
    assert np.asarray(better(x)).max() < np.asarray(model(x)).min() and better.tied == model.tied
    assert better.buffers is model.buffers and set(model.graph(model.given([x])).param_types) == set(model.weights)


@pytest.mark.parametrize(
    ("more", "says"),
    [("mean", "'mean' is a buffer of m, and no param"), ("v", "'v' is the same weight as 'w'"), ("z", "no param 'z'")],
)
def test_names_that_are_no_params_are_named(more: str, says: str) -> None:
    model = with_statistics()
    for call in (model.trained, lambda params: model.apply(params, np.zeros((1, 2), np.float32))):
        with pytest.raises(InputError, match=says):
            call({**model.params, more: np.zeros(2, np.float32)})
