"""A small training step with a state of many tensors, for tests of sessions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mesh
import mesh.numpy as mnp
from mesh import DistributedTrainer, optim, tree

SIZES = (8, 16, 16, 4)
BATCH = 8


def first_state() -> dict[str, Any]:
    """Weights, moments and a count of steps."""
    rng = np.random.default_rng(0)
    layers = [
        {"w": rng.normal(0, 0.3, (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
        for n, m in itertools.pairwise(SIZES)
    ]
    return {"layers": layers, "optimiser": OPTIMISER.init(layers), "steps": np.int32(0)}


OPTIMISER = optim.adam(1e-2)


def loss_of(layers: Any, x: Any, y: Any) -> Any:
    return mnp.mean(_squares(layers, x, y))


def loss_of_rows(layers: Any, x: Any, y: Any) -> Any:
    """One per row."""
    return mnp.mean(_squares(layers, x, y), axis=1)


def _squares(layers: Any, x: Any, y: Any) -> Any:
    for layer in layers[:-1]:
        x = mnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ layers[-1]["w"] + layers[-1]["b"] - y) ** 2


def train(state: Any, x: Any, y: Any) -> Any:
    """One step of Adam."""
    loss, gradients = mesh.value_and_grad(loss_of)(state["layers"], x, y)
    updates, optimiser = OPTIMISER.update(gradients, state["optimiser"], state["layers"])
    layers = optim.apply_updates(state["layers"], updates)
    return {"layers": layers, "optimiser": optimiser, "steps": state["steps"] + 1}, loss


def batch(step: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1000 + step)
    x = rng.normal(size=(BATCH, SIZES[0])).astype(np.float32)
    return x, np.sin(x[:, : SIZES[-1]])


def flat_params(trainer: DistributedTrainer) -> NDArray[Any]:
    """All params of a trainer in one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in tree.leaves(trainer.params)])
