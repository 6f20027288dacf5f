"""A network of mesh.nn learns digits by mesh.grad and mesh.optim, the whole step as one graph that is traced once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import nn, optim, random, tree
from mesh.errors import InputError

SHAPES = np.random.default_rng(0).random((10, 8, 8)).astype(np.float32).round()  # ten digits, drawn by chance


def digits(count: int, seed: int) -> tuple[Any, Any]:
    """Images (count, 1, 8, 8) of digits under noise, and which they are."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(0, 10, count).astype(np.int32)
    noise = 0.5 * drawn.standard_normal((count, 8, 8)).astype(np.float32)
    return (SHAPES[labels] + noise)[:, None], labels


@dataclass(frozen=True)
class Network:
    """A convolution, pooling and a linear map."""

    first: nn.Conv
    norm: nn.BatchNorm
    last: nn.Linear

    @classmethod
    def init(cls, key: Any) -> Network:
        keys = random.split(key)
        conv = nn.Conv.init(keys[0], 1, 8, (3, 3), padding="same", initialiser=nn.initialisers.he_normal)
        return cls(conv, nn.BatchNorm.init(8), nn.Linear.init(keys[1], 8 * 16, 10))

    def features(self, x: Any, state: nn.BatchStatistics, key: Any = None) -> tuple[Any, nn.BatchStatistics]:
        drawn = self.first(x)
        normal, state = (self.norm(drawn, state), state) if key is None else self.norm.train(drawn, state)
        rows = nn.max_pool(nn.relu(normal), 2).reshape(x.shape[0], -1)
        return self.last(nn.dropout(rows, 0.2, key)), state


def loss_of(network: Network, state: Any, images: Any, labels: Any, key: Any) -> Any:
    logits, after = network.features(images, state, key)
    return nn.cross_entropy(logits, labels, label_smoothing=0.05), after


OPTIMISERS = {
    "sgd": optim.sgd(optim.warmup_cosine(0.2, 5, 60), momentum=0.9, nesterov=True),
    "adamw": optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-2)),
    "lion": optim.lion(1e-2, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_digits_are_learned(name: str) -> None:
    optimiser, traces = OPTIMISERS[name], []

    @mesh.function
    def step(network: Network, moments: Any, state: Any, images: Any, labels: Any, key: Any) -> Any:
        traces.append(name)
        (loss, state), gradients = mesh.value_and_grad(loss_of, has_aux=True)(network, state, images, labels, key)
        updates, moments = optimiser.update(gradients, moments, network)
        return optim.apply_updates(network, updates), moments, state, loss

    network = Network.init(random.key(1))
    moments, state, losses = optimiser.init(network), nn.BatchStatistics.init(8), []
    for number in range(30):
        images, labels = digits(64, number)
        key = random.fold_in(random.key(2), number)
        network, moments, state, loss = step(network, moments, state, images, labels, key)
        losses.append(float(loss))
    assert len(traces) == 1
    assert np.mean(losses[-5:]) < 0.4 * np.mean(losses[:3])
    images, labels = digits(200, 1000)
    guessed = mnp.argmax(network.features(images, state)[0], -1)
    assert (np.asarray(guessed) == labels).mean() > 0.8


def test_gradients_of_a_convolutional_network_are_slopes() -> None:
    """Against differences in float64, in a random direction."""
    network = tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), Network.init(random.key(4)))
    state = tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), nn.BatchStatistics.init(8))
    images, labels = digits(6, 7)

    def loss(network: Network) -> Any:
        return loss_of(network, state, images.astype(np.float64), labels, random.key(5))[0]

    drawn = np.random.default_rng(3)
    direction = tree.map(lambda leaf: drawn.standard_normal(leaf.shape), network)
    gradient = mesh.grad(loss)(network)
    slope = sum(float(np.sum(np.asarray(g) * d)) for g, d in zip(*map(tree.leaves, (gradient, direction)), strict=True))
    ends = [float(loss(tree.map(lambda leaf, d, by=by: leaf + by * d, network, direction))) for by in (1e-6, -1e-6)]
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("mean", [False, True])
def test_gradients_in_float64_are_those_of_float64(mean: bool) -> None:
    """The weight of a row, 1 / 13, was rounded to float32: gradients were off by 3e-8 of themselves."""
    rng = np.random.default_rng(1)
    x, y, w = rng.standard_normal((13, 4)), rng.standard_normal(13), rng.standard_normal(4)

    def loss(params: Any, x: Any, y: Any) -> Any:
        errors = (x @ params - y) ** 2
        return errors.mean() if mean else errors

    for rows in (13, 5):  # 5, 5 and a last batch of 3
        trainer = mesh.DistributedTrainer(loss, w, optimizer=optim.sgd(0.1))
        trainer.fit((x, y), batch_size=rows, shuffle=False)
        wanted = w
        for first in range(0, 13, rows):
            part = slice(first, min(first + rows, 13))
            wanted = wanted - 0.2 * x[part].T @ (x[part] @ wanted - y[part]) / len(y[part])
        np.testing.assert_allclose(trainer.params, wanted, rtol=1e-13)
    with trainer.forward_backward((x, y)) as gradients:
        np.testing.assert_allclose(gradients.fetch(), 2 * x.T @ (x @ trainer.params - y) / 13, rtol=1e-12)


@pytest.mark.parametrize("optimiser", [optim.sgd(0.1), optim.adam(0.1)])
def test_complex_params_are_trained(optimiser: Any) -> None:
    """The report of the norm was a TypeError, and a step along the gradient led away."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 2)) + 1j * rng.standard_normal((40, 2))
    wanted = np.array([1 + 2j, -0.5j])

    def loss(w: Any, x: Any, y: Any) -> Any:
        errors = x @ w - y
        return mnp.real(errors) ** 2 + mnp.imag(errors) ** 2

    trainer = mesh.DistributedTrainer(loss, np.zeros(2, complex), optimizer=optimiser, clip=50.0)
    trainer.fit((x, x @ wanted), epochs=60, batch_size=20)
    np.testing.assert_allclose(trainer.params, wanted, atol=2e-2)
    for refused in ({"precision": "f16"}, {"compression": "f16"}, {"deterministic": 4}):
        with pytest.raises(InputError, match="complex"):
            mesh.DistributedTrainer(loss, np.zeros(2, complex), optimizer=optimiser, **refused)
