"""Optimisers by name and options, the problem they are given, and schedules: what torch and optax were asked too.

`tests/golden/make_optax_reference.py` and `make_torch_steps.py` record where every step led; `test_optim.py` compares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STEPS = 25
Params = dict[str, NDArray[Any]]


class OptimCase(NamedTuple):
    """`clip` is (kind, bound) of the clipping in front, `oracles` who was asked."""

    label: str
    optimiser: str
    options: dict[str, Any]
    clip: tuple[str, float] | None = None
    oracles: tuple[str, ...] = ("torch", "optax")


CASES = (
    OptimCase("sgd", "sgd", {"learning_rate": 0.1}),
    OptimCase("sgd-momentum", "sgd", {"learning_rate": 0.05, "momentum": 0.9}),
    OptimCase("sgd-nesterov", "sgd", {"learning_rate": 0.05, "momentum": 0.8, "nesterov": True}),
    OptimCase("sgd-decay", "sgd", {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.1}, oracles=("torch",)),
    OptimCase("sgd-norm", "sgd", {"learning_rate": 0.1}, ("norm", 0.7)),
    OptimCase("sgd-value", "sgd", {"learning_rate": 0.1}, ("value", 0.3)),
    OptimCase("adam", "adam", {"learning_rate": 0.05}),
    OptimCase("adam-betas", "adam", {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 1e-4}),
    OptimCase("adam-decay", "adam", {"learning_rate": 0.05, "weight_decay": 0.2}, oracles=("torch",)),
    OptimCase("adamw", "adamw", {"learning_rate": 0.05, "weight_decay": 0.3}),
    OptimCase("adamw-norm", "adamw", {"learning_rate": 0.05, "weight_decay": 0.1}, ("norm", 0.5)),
    OptimCase("lion", "lion", {"learning_rate": 0.01, "weight_decay": 0.2}, oracles=("optax",)),
    OptimCase(
        "lion-betas", "lion", {"learning_rate": 0.01, "b1": 0.7, "b2": 0.8, "weight_decay": 0.0}, oracles=("optax",)
    ),
)

SCHEDULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("linear", {"start": 0.3, "end": 0.1, "steps": 8}),
    ("cosine", {"start": 0.3, "steps": 10, "end": 0.03}),
    ("exponential", {"start": 0.3, "rate": 0.7, "steps": 4}),
    ("exponential", {"start": 0.3, "rate": 0.7, "steps": 4, "staircase": True}),
    ("warmup_cosine", {"peak": 0.4, "warmup": 5, "steps": 20, "end": 0.02, "start": 0.1}),
    ("piecewise", {"values": [0.4, 0.2, 0.1], "boundaries": [3, 9]}),
)


def first_params() -> Params:
    rng = np.random.default_rng(1)
    return {"w": rng.standard_normal((4, 3)).astype(np.float32), "b": rng.standard_normal(3).astype(np.float32)}


def pull(step: int) -> Params:
    """The part of step `step`'s gradient that does not depend on the params; the other part is sin(params)."""
    rng = np.random.default_rng(100 + step)
    return {name: rng.standard_normal(value.shape).astype(np.float32) for name, value in first_params().items()}


def row(params: Any) -> NDArray[Any]:
    """All params as one line of float32."""
    return np.concatenate([np.asarray(params[name]).reshape(-1) for name in ("w", "b")]).astype(np.float32)
