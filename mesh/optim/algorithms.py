"""The optimisers that have names, as chains of the rules.

Learning rates are numbers or schedules.  Weight decay of sgd and adam is part of the gradient, that of adamw and lion
stands beside it; `mask` as in `add_decayed_weights`.
"""

from __future__ import annotations

from typing import Any

from ..util.annotation_checks import checked
from .optimiser import Optimiser, chain, told
from .rules import add_decayed_weights, scale_by_adam, scale_by_learning_rate, scale_by_lion
from .rules import momentum as running
from .schedules import Rate


@told
@checked
def sgd(
    learning_rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0, mask: Any = None
) -> Optimiser:
    """Gradient descent, with momentum."""
    return chain(
        *([add_decayed_weights(weight_decay, mask)] if weight_decay else []),
        *([running(momentum, nesterov)] if momentum else []),
        scale_by_learning_rate(learning_rate),
    )


@told
@checked
def adam(
    learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0,
    mask: Any = None,
) -> Optimiser:  # fmt: skip
    """Kingma and Ba, 2014 (arXiv 1412.6980)."""
    return chain(
        *([add_decayed_weights(weight_decay, mask)] if weight_decay else []),
        scale_by_adam(b1, b2, eps),
        scale_by_learning_rate(learning_rate),
    )


@told
@checked
def adamw(
    learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-2,
    mask: Any = None,
) -> Optimiser:  # fmt: skip
    """Adam with weight decay of its own.  Loshchilov and Hutter, 2017 (arXiv 1711.05101)."""
    return chain(
        scale_by_adam(b1, b2, eps), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate)
    )


@told
@checked
def lion(
    learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.0, mask: Any = None
) -> Optimiser:
    """Steps of one size in the direction of a mean of gradients.  Chen et al., 2023 (arXiv 2302.06675)."""
    return chain(scale_by_lion(b1, b2), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))
