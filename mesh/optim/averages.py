"""Running means of params, which often predict better than the params themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import numpy as mnp
from .. import tree
from ..core.array import Operand
from ..util.annotation_checks import checked
from .optimiser import Optimiser, told, weight_of, wide, zeros_for


class Mean(NamedTuple):
    """How many values came in, and their weighted sum."""

    steps: Operand
    total: Any


@told
@checked
def ema(decay: float, *, debias: bool = True) -> Optimiser:
    """mean = decay * mean + (1 - decay) * value: `update(values, state)` gives the mean and the next state.

    It begins with 0, for which `debias` makes up.
    """

    def init(values: Any) -> Mean:
        return Mean(mnp.asarray(0), zeros_for(values))

    def update(values: Any, state: Mean, params: Any = None) -> tuple[Any, Mean]:
        steps = mnp.asarray(state.steps) + 1
        total = tree.map(lambda each, own: decay * own + (1 - decay) * wide(each), values, state.total)
        factor = 1 / weight_of(decay, steps) if debias else 1.0
        return tree.map(lambda each: each * factor, total), Mean(steps, total)

    return Optimiser(init, update)
