"""Running means of params, which often predict better than the params themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import numpy as mnp
from .. import tree
from ..core.array import Operand
from ..util.annotation_checks import checked
from .optimiser import Optimiser, named_by_call, weight_of, wide, zeros_for


class Mean(NamedTuple):
    """The number of values that came in, and their weighted sum."""

    steps: Operand
    total: Any


@named_by_call
@checked
def ema(decay: float, *, debias: bool = True) -> Optimiser:
    """Exponential moving average of params, which often predicts better than the params themselves.

    The mean is `decay * mean + (1 - decay) * value`.  It begins with 0.

    Parameters
    ----------
    decay : float
        How much of the mean stays at each step, from 0 to below 1.
    debias : bool, optional
        Whether to make up for the 0 that the mean begins with.

    Returns
    -------
    Optimiser
        Its `update(values, state)` gives the mean and the next state.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> average = optim.ema(0.5)
    >>> state = average.init(np.array([0.0]))
    >>> for value in (1.0, 3.0):
    ...     mean, state = average.update(np.array([value]), state)
    >>> np.round(mean, 3)
    array([2.333])
    """

    def init(values: Any) -> Mean:
        return Mean(mnp.asarray(0), zeros_for(values))

    def update(values: Any, state: Mean, params: Any = None) -> tuple[Any, Mean]:
        steps = mnp.asarray(state.steps) + 1
        total = tree.map(lambda value, own: decay * own + (1 - decay) * wide(value), values, state.total)
        factor = 1 / weight_of(decay, steps) if debias else 1.0
        return tree.map(lambda value: value * factor, total), Mean(steps, total)

    return Optimiser(init, update)
