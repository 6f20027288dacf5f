"""The optimisers that have names, as chains of the rules.

Learning rates are numbers or schedules.  Weight decay of sgd and adam is part of the gradient, that of adamw and lion
stands beside it; `mask` as in `add_decayed_weights`.
"""

from __future__ import annotations

from typing import Any

from ..util.annotation_checks import checked
from .optimiser import Optimiser, chain, named_by_call
from .rules import add_decayed_weights, scale_by_adam, scale_by_learning_rate, scale_by_lion
from .rules import momentum as running
from .schedules import Rate


@named_by_call
@checked
def sgd(
    learning_rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0, mask: Any = None
) -> Optimiser:
    """Gradient descent, with momentum if asked for.

    Parameters
    ----------
    learning_rate : float or Schedule
        The step size, a number or a function of the step.
    momentum : float, optional
        Decay of the running sum of gradients; 0 for none.
    nesterov : bool, optional
        Whether to look ahead along the momentum.
    weight_decay : float, optional
        Decay times the params is added to the gradients.
    mask : pytree of bool or callable, optional
        The params that decay, as for `add_decayed_weights`.

    Returns
    -------
    Optimiser
        The chain of `add_decayed_weights`, `momentum` and `scale_by_learning_rate`.

    Raises
    ------
    InputError
        If a number is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optimiser, params = optim.sgd(0.5), np.array([1.0, 2.0])
    >>> updates, state = optimiser.update(np.array([1.0, -1.0]), optimiser.init(params), params)
    >>> optim.apply_updates(params, updates)
    Array([0.5, 2.5], dtype=float64)
    """
    return chain(
        *([add_decayed_weights(weight_decay, mask)] if weight_decay else []),
        *([running(momentum, nesterov)] if momentum else []),
        scale_by_learning_rate(learning_rate),
    )


@named_by_call
@checked
def adam(
    learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0,
    mask: Any = None,
) -> Optimiser:  # fmt: skip
    """Adam: steps by the mean of gradients over the root of the mean of their squares.

    Parameters
    ----------
    learning_rate : float or Schedule
        The step size, a number or a function of the step.
    b1 : float, optional
        Decay of the mean of gradients.
    b2 : float, optional
        Decay of the mean of their squares.
    eps : float, optional
        Added to the root, so that nothing is divided by 0.
    weight_decay : float, optional
        Decay times the params is added to the gradients; `adamw` decays beside them.
    mask : pytree of bool or callable, optional
        The params that decay, as for `add_decayed_weights`.

    Returns
    -------
    Optimiser
        The chain of `add_decayed_weights`, `scale_by_adam` and `scale_by_learning_rate`.

    Raises
    ------
    InputError
        If a number is out of its range.

    Notes
    -----
    Kingma and Ba, 2014 (arXiv 1412.6980).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optimiser, params = optim.adam(0.1), np.array([1.0, 2.0])
    >>> updates, state = optimiser.update(np.array([3.0, -5.0]), optimiser.init(params), params)
    >>> np.round(optim.apply_updates(params, updates), 3)
    array([0.9, 2.1])
    """
    return chain(
        *([add_decayed_weights(weight_decay, mask)] if weight_decay else []),
        scale_by_adam(b1, b2, eps),
        scale_by_learning_rate(learning_rate),
    )


@named_by_call
@checked
def adamw(
    learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-2,
    mask: Any = None,
) -> Optimiser:  # fmt: skip
    """Adam with weight decay beside the gradients, not in them.

    Parameters
    ----------
    learning_rate : float or Schedule
        The step size, a number or a function of the step.
    b1 : float, optional
        Decay of the mean of gradients.
    b2 : float, optional
        Decay of the mean of their squares.
    eps : float, optional
        Added to the root, so that nothing is divided by 0.
    weight_decay : float, optional
        Decay times the params is added to the direction of the step.
    mask : pytree of bool or callable, optional
        The params that decay, as for `add_decayed_weights`.

    Returns
    -------
    Optimiser
        The chain of `scale_by_adam`, `add_decayed_weights` and `scale_by_learning_rate`.

    Raises
    ------
    InputError
        If a number is out of its range.

    Notes
    -----
    Loshchilov and Hutter, 2017 (arXiv 1711.05101).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optimiser, params = optim.adamw(0.1, weight_decay=0.1), np.array([1.0, 2.0])
    >>> updates, state = optimiser.update(np.array([3.0, -5.0]), optimiser.init(params), params)
    >>> np.round(updates, 3)
    array([-0.11,  0.08])
    """
    return chain(
        scale_by_adam(b1, b2, eps), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate)
    )


@named_by_call
@checked
def lion(
    learning_rate: Rate, *, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.0, mask: Any = None
) -> Optimiser:
    """Lion: steps of one size in the direction of a mean of gradients.

    Parameters
    ----------
    learning_rate : float or Schedule
        The step size, a number or a function of the step; about a tenth of Adam's.
    b1 : float, optional
        Weight of the mean in the direction of a step.
    b2 : float, optional
        Decay of the mean.
    weight_decay : float, optional
        Decay times the params is added to the direction of the step.
    mask : pytree of bool or callable, optional
        The params that decay, as for `add_decayed_weights`.

    Returns
    -------
    Optimiser
        The chain of `scale_by_lion`, `add_decayed_weights` and `scale_by_learning_rate`.

    Raises
    ------
    InputError
        If a number is out of its range.

    Notes
    -----
    Chen et al., 2023 (arXiv 2302.06675).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optimiser, params = optim.lion(0.1), np.array([1.0, 2.0])
    >>> updates, state = optimiser.update(np.array([3.0, -5.0]), optimiser.init(params), params)
    >>> np.round(updates, 3)
    array([-0.1,  0.1])
    """
    return chain(scale_by_lion(b1, b2), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))
