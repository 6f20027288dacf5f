"""Three workers fit y = sin x by data parallelism.

python examples/fit_sine.py
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import mesh
import mesh.numpy as mnp
from mesh import DistributedTrainer, Mesh, optim

SIZES = (1, 32, 32, 1)


def first_params() -> Any:
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(SIZES)
    return [(rng.normal(0, n**-0.5, (n, m)).astype(np.float32), rng.normal(0, 0.5, m).astype(np.float32))
            for n, m in pairs]  # fmt: skip


def predict(params: Any, x: Any) -> Any:
    for weights, bias in params[:-1]:
        x = mnp.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return x @ weights + bias


def loss(params: Any, x: Any, y: Any) -> Any:
    """One per row."""
    return mnp.mean((predict(params, x) - y) ** 2, axis=1)


def main() -> float:
    x = np.linspace(-np.pi, np.pi, 500, dtype=np.float32)[:, None]
    trainer = DistributedTrainer(loss, first_params(), optimizer=optim.adam(optim.cosine(3e-2, 256)),
                                 strategy=mesh.DataParallel())  # fmt: skip
    with Mesh.builder().local(3, engine="cpu").node_timeout(20).build() as m:
        history = trainer.distribute(m).fit((x, np.sin(x)), epochs=16, batch_size=32, progress=True)
    error = float(np.mean(np.asarray(predict(trainer.params, x) - np.sin(x)) ** 2))
    assert error < 1e-3, error
    print(f"mean squared error {error:.2g} after {len(history.losses)} steps, {history.rows_per_s:.0f} samples/s")
    return error


if __name__ == "__main__":
    main()
