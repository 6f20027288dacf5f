"""A training step written in JAX, gradients and all, run by workers that have no JAX: it learns what it learns in JAX.

The workers get a graph.  The params stay on them from step to step, and the loss comes back.

pip install 'graph-mesh[jax]'; python examples/jax_model.py
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import mesh
from mesh import Mesh

SIZES = (2, 32, 32, 2)
STEPS, RATE = 120, 0.5


def rings(rows: int) -> tuple[Any, Any]:
    """Points around two circles, one inside of the other, and whose they are."""
    rng = np.random.default_rng(0)
    labels = np.arange(rows, dtype=np.int32) % 2
    angle, radius = rng.uniform(0, 2 * np.pi, rows), 1 + labels + rng.normal(0, 0.15, rows)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32), labels


def first_params() -> Any:
    rng = np.random.default_rng(1)
    return [{"weight": rng.normal(0, n**-0.5, (n, m)).astype(np.float32), "bias": np.zeros(m, np.float32)}
            for n, m in itertools.pairwise(SIZES)]  # fmt: skip


def written_in_jax() -> Any:
    """The step (params, x, labels) -> (params, loss): JAX and nothing else."""
    import jax
    import jax.numpy as jnp

    def scores(params: Any, x: Any) -> Any:
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
        return x @ params[-1]["weight"] + params[-1]["bias"]

    def loss(params: Any, x: Any, labels: Any) -> Any:
        chances = jax.nn.log_softmax(scores(params, x))
        return -jnp.mean(jnp.take_along_axis(chances, labels[:, None], axis=1))

    @jax.jit
    def step(params: Any, x: Any, labels: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(params, x, labels)
        return jax.tree.map(lambda param, gradient: param - RATE * gradient, params, gradients), value

    return step


def main() -> float:
    try:
        step = written_in_jax()
    except ModuleNotFoundError:
        print("This example needs JAX, which is not installed: pip install 'graph-mesh[jax]'")
        raise SystemExit(0) from None
    x, labels = rings(256)
    params, expected = first_params(), []
    for _ in range(STEPS):
        params, loss = step(params, x, labels)
        expected.append(float(loss))

    imported = mesh.from_jax(step, first_params(), x, labels)
    with (
        Mesh.builder().local(2, engine="cpu").node_timeout(20).build() as m,
        m.session(imported, first_params(), x, labels) as session,
    ):
        steps = [session.step(x, labels) for _ in range(STEPS)]
        found = [float(step.result()) for step in steps]
        learnt = session.state()

    error = max(abs(mine - right) for mine, right in zip(found, expected, strict=True))
    far = max(float(np.abs(mine[name] - np.asarray(right[name])).max())
              for mine, right in zip(learnt, params, strict=True) for name in mine)  # fmt: skip
    assert found[-1] < 0.1 * found[0], found
    assert error < 1e-4 and far < 1e-3, (error, far)
    print(f"loss {found[0]:.2f} at first, {found[-1]:.4f} after {STEPS} steps, as in JAX ({expected[-1]:.4f})")
    print(f"largest difference: {error:.0e} of the losses, {far:.0e} of the params")
    return found[-1]


if __name__ == "__main__":
    main()
