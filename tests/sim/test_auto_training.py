"""Training by `auto`: split where a step is long, on one worker where it is short, to the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import Auto, DistributedTrainer, Mesh, optim

RNG = np.random.default_rng(7)
X = RNG.normal(size=(192, 16)).astype(np.float32)
Y = np.sin(X[:, :4])
FIRST = {"w": RNG.normal(0, 0.3, (16, 16)).astype(np.float32), "v": RNG.normal(0, 0.3, (16, 4)).astype(np.float32)}


def loss(params: Any, x: Any, y: Any) -> Any:
    return mnp.mean((mnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2, axis=1)


def fitted(mesh: Mesh | None) -> Any:
    trainer = DistributedTrainer(loss, FIRST, optimizer=optim.adam(1e-2), strategy=Auto())
    if mesh is not None:
        trainer = trainer.distribute(mesh)
    history = trainer.fit((X, Y), epochs=3, batch_size=64)
    return np.array(history.losses), trainer.params


@pytest.mark.parametrize(("gflops", "split"), [((1e-5,) * 3, True), ((50.0,) * 3, False), ((1e-5, 1e-5, 1e-7), True)])
def test_the_weights_are_those_of_one_worker(gflops: tuple[float, ...], split: bool) -> None:
    losses, params = fitted(None)
    with Mesh.builder().mesh("sim").simulate(3, gflops=gflops).build() as mesh:
        planned: list[str] = []
        mesh.watch(lambda event: planned.append(event["text"]) if event["kind"] == "planned" else None)
        found_losses, found = fitted(mesh)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-4)
    for name in FIRST:
        np.testing.assert_allclose(found[name], params[name], rtol=1e-3, atol=1e-5)
    workers = 3 - (gflops[-1] < gflops[0])
    told = [text for text in planned if text.startswith(f"{workers} of 3 workers")]
    assert any("is predicted to take least" in text for text in told) == split, planned
