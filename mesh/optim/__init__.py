"""mesh.optim: optimisers as pairs of pure functions over pytrees, and schedules as functions of the step.

    optimiser = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(optim.warmup_cosine(1e-3, 100, 10_000)))
    state = optimiser.init(params)

    def step(params, state, batch):
        loss, gradients = mesh.value_and_grad(loss_of)(params, batch)
        updates, state = optimiser.update(gradients, state, params)
        return optim.apply_updates(params, updates), state, loss

Everything can be traced.  To add an optimiser: a pair in `rules.py`, or a chain of those there are in `algorithms.py`.
"""

from typing import TYPE_CHECKING, Any

from ..util.missing_names import missing_name_error
from .algorithms import adam, adamw, lion, sgd
from .averages import ema
from .optimiser import Optimiser, apply_updates, chain, global_norm
from .rules import (
    add_decayed_weights,
    clip_by_global_norm,
    clip_by_value,
    momentum,
    scale,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
)
from .schedules import constant, cosine, exponential, joined, linear, piecewise, warmup_cosine

__all__ = [
    "Optimiser",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip_by_global_norm",
    "clip_by_value",
    "constant",
    "cosine",
    "ema",
    "exponential",
    "global_norm",
    "joined",
    "linear",
    "lion",
    "momentum",
    "piecewise",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_lion",
    "sgd",
    "warmup_cosine",
]


if not TYPE_CHECKING:  # which would take any name then

    def __getattr__(name: str) -> Any:
        raise missing_name_error(__name__, name)
