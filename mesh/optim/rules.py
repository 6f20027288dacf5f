"""The parts of optimisers: each turns gradients into other gradients, and knows nothing of the rest of the chain.

Moments are float32 at least; counts are int32 numbers.  Updates point down where the chain ends in
`scale_by_learning_rate`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import numpy as mnp
from .. import tree
from ..core.array import Array, Operand
from ..numpy.elementwise import squared_size
from ..util.annotation_checks import checked, instance
from ..util.argument_checks import check_number
from .optimiser import (
    Optimiser,
    global_norm,
    named_by_call,
    needed,
    real_zeros_for,
    stateless,
    weight_of,
    wide,
    zeros_for,
)
from .schedules import Rate, rate_at


@named_by_call
def scale(factor: Operand) -> Optimiser:
    """Multiply gradients by a number.

    Parameters
    ----------
    factor : float
        The number.

    Returns
    -------
    Optimiser
        An optimiser without state.

    Raises
    ------
    InputError
        If the factor is not a finite number.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optim.scale(-2.0).update(np.array([1.0, 3.0]), ())[0]
    Array([-2., -6.], dtype=float64)
    """
    check_number(factor, "a factor")
    return stateless(lambda gradients, params: tree.map(lambda gradient: wide(gradient) * factor, gradients))


@named_by_call
def clip_by_value(bound: Operand) -> Optimiser:
    """Bring every element into [-bound, bound].

    Parameters
    ----------
    bound : float
        The largest magnitude.

    Returns
    -------
    Optimiser
        An optimiser without state.

    Raises
    ------
    InputError
        If the bound is not a number from 0.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optim.clip_by_value(1.0).update(np.array([5.0, -0.5]), ())[0]
    Array([ 1. , -0.5], dtype=float64)
    """
    check_number(bound, "a bound", 0.0)
    low = mnp.negative(bound)
    return stateless(lambda gradients, params: tree.map(lambda gradient: mnp.clip(gradient, low, bound), gradients))


@named_by_call
def clip_by_global_norm(bound: Operand) -> Optimiser:
    """Scale all gradients down together, so that their norm is at most `bound`.

    Parameters
    ----------
    bound : float
        The largest norm; smaller gradients stay as they are.

    Returns
    -------
    Optimiser
        An optimiser without state.

    Raises
    ------
    InputError
        If the bound is not a number from 0.

    Notes
    -----
    Pascanu et al., 2012 (arXiv 1211.5063).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> optim.clip_by_global_norm(1.0).update(np.array([3.0, 4.0]), ())[0]
    Array([0.6, 0.8], dtype=float64)
    """
    check_number(bound, "a bound", 0.0)

    def clipped(gradients: Any, params: Any) -> Any:
        norm = global_norm(gradients)
        factor = mnp.where(norm > bound, bound / norm, 1.0)
        return tree.map(lambda gradient: wide(gradient) * factor, gradients)

    return stateless(clipped)


@named_by_call
def add_decayed_weights(rate: Operand, mask: Any = None) -> Optimiser:
    """Add `rate * param` to the gradients.

    Parameters
    ----------
    rate : float
        The share of each param that is added, from 0.
    mask : pytree of bool or callable, optional
        The params that decay: a tree like the params, or a function of the params that gives one; all by default.

    Returns
    -------
    Optimiser
        An optimiser without state.  Its `update` needs the params.

    Raises
    ------
    InputError
        If the rate is negative or not finite, or `update` is called without the params.

    Examples
    --------
    >>> import mesh
    >>> import numpy as np
    >>> from mesh import optim
    >>> params = {"w": np.ones((1, 2)), "b": np.ones(2)}
    >>> matrices = lambda params: mesh.tree.map(lambda leaf: leaf.ndim > 1, params)
    >>> gradients = mesh.tree.map(np.zeros_like, params)
    >>> optim.add_decayed_weights(0.1, matrices).update(gradients, (), params)[0]
    {'w': Array([[0.1, 0.1]], dtype=float64), 'b': array([0., 0.])}
    """
    check_number(rate, "weight decay", 0.0)

    def decayed(gradients: Any, params: Any) -> Any:
        chosen = mask(needed(params, "weight decay")) if callable(mask) else mask
        if chosen is None:
            chosen = tree.map(lambda leaf: True, needed(params, "weight decay"))
        return tree.map(
            lambda gradient, param, wanted: wide(gradient) + rate * wide(param) if wanted else gradient,
            gradients,
            params,
            chosen,
        )

    return stateless(decayed)


@named_by_call
@checked
def momentum(decay: Operand, nesterov: bool = False) -> Optimiser:
    """Replace gradients by their running sum, `m = decay * m + g`.

    Parameters
    ----------
    decay : float
        How much of the sum stays at each step, from 0 to below 1.
    nesterov : bool, optional
        Whether to give `g + decay * m` in place of `m`.

    Returns
    -------
    Optimiser
        Its state is the sum.

    Raises
    ------
    InputError
        If the decay is not a number from 0 to below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> rule, gradients = optim.momentum(0.5), np.array([1.0])
    >>> first, state = rule.update(gradients, rule.init(gradients))
    >>> second, state = rule.update(gradients, state)
    >>> np.round(second, 3)
    array([1.5])
    """
    check_number(decay, "momentum", 0.0, 1.0)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        moved = tree.map(lambda gradient, own: decay * own + gradient, gradients, state)
        if not nesterov:
            return moved, moved
        return tree.map(lambda gradient, own: gradient + decay * own, gradients, moved), moved

    return Optimiser(zeros_for, update)


class Moments(NamedTuple):
    """The number of steps made, and the running means of gradients and of their squares."""

    steps: Operand
    first: Any
    second: Any


@named_by_call
def scale_by_adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimiser:
    """Divide the mean of gradients by the root of the mean of their squares, both without bias.

    Parameters
    ----------
    b1 : float, optional
        Decay of the mean of gradients, from 0 to below 1.
    b2 : float, optional
        Decay of the mean of their squares, from 0 to below 1.
    eps : float, optional
        Added to the root, so that nothing is divided by 0.

    Returns
    -------
    Optimiser
        Its state is the number of steps and the two means.

    Raises
    ------
    InputError
        If a number is out of its range, or `update` is called with the state of another optimiser.

    Notes
    -----
    Kingma and Ba, 2014 (arXiv 1412.6980).

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> rule, gradients = optim.scale_by_adam(), np.array([3.0, -5.0])
    >>> np.round(rule.update(gradients, rule.init(gradients))[0], 3)
    array([ 1., -1.])
    """

    for what, decay in (("b1", b1), ("b2", b2)):
        check_number(decay, what, 0.0, 1.0)
    check_number(eps, "eps", 0.0)

    def init(params: Any) -> Moments:
        return Moments(mnp.asarray(0), zeros_for(params), real_zeros_for(params))

    def update(gradients: Any, state: Moments, params: Any = None) -> tuple[Any, Moments]:
        instance(state, "the state of scale_by_adam", Moments, "what its init or update gave")
        steps = mnp.asarray(state.steps) + 1
        first = tree.map(lambda gradient, own: b1 * own + (1 - b1) * wide(gradient), gradients, state.first)
        second = tree.map(
            lambda gradient, own: b2 * own + (1 - b2) * squared_size(wide(gradient)), gradients, state.second
        )
        of_first, of_second = 1 / weight_of(b1, steps), 1 / weight_of(b2, steps)
        scaled = tree.map(lambda m, v: m * of_first / (mnp.sqrt(v * of_second) + eps), first, second)
        return scaled, Moments(steps, first, second)

    return Optimiser(init, update)


@named_by_call
def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> Optimiser:
    """Replace gradients by the sign of their mean.

    Parameters
    ----------
    b1 : float, optional
        Weight of the mean beside the newest gradient, from 0 to below 1.
    b2 : float, optional
        Decay of the mean that is kept, from 0 to below 1.

    Returns
    -------
    Optimiser
        Its state is the mean.

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
    >>> rule, gradients = optim.scale_by_lion(), np.array([3.0, -5.0])
    >>> rule.update(gradients, rule.init(gradients))[0]
    Array([ 1., -1.], dtype=float64)
    """
    for what, decay in (("b1", b1), ("b2", b2)):
        check_number(decay, what, 0.0, 1.0)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        signs = tree.map(lambda gradient, own: mnp.sign(b1 * own + (1 - b1) * wide(gradient)), gradients, state)
        return signs, tree.map(lambda gradient, own: b2 * own + (1 - b2) * wide(gradient), gradients, state)

    return Optimiser(zeros_for, update)


@named_by_call
def scale_by_learning_rate(rate: Rate) -> Optimiser:
    """Multiply gradients by `-rate`: the end of a chain, which turns a direction into a step down.

    Parameters
    ----------
    rate : float or Schedule
        A number, or a function of the number of steps made before.

    Returns
    -------
    Optimiser
        With a schedule, its state is the number of steps.

    Raises
    ------
    InputError
        If the rate is a number and negative or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import optim
    >>> rule = optim.scale_by_learning_rate(optim.linear(0.0, 1.0, 4))
    >>> state = rule.init(None)
    >>> for _ in range(3):
    ...     updates, state = rule.update(np.array([1.0]), state)
    >>> np.round(updates, 3)
    array([-0.5])
    """
    if not callable(rate):
        check_number(rate, "a learning rate", 0.0)
        return scale(mnp.negative(rate))

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Array]:
        count = mnp.asarray(state)
        factor = -rate_at(rate, count)
        return tree.map(lambda gradient: wide(gradient) * factor, gradients), count + 1

    return Optimiser(lambda params: mnp.asarray(0), update)
