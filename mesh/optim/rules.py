"""The parts of optimisers: each turns gradients into other gradients, and knows nothing of the rest of the chain.

Moments are float32 at least; counts are int32 numbers.  Updates point down where the chain ends in
`scale_by_learning_rate`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import numpy as mnp
from .. import tree
from ..core.array import Array, Operand
from ..util.annotation_checks import checked, instance
from ..util.argument_checks import check_number
from .optimiser import Optimiser, global_norm, needed, stateless, told, weight_of, wide, zeros_for
from .schedules import Rate, rate_at


@told
def scale(factor: Operand) -> Optimiser:
    """Times a number."""
    check_number(factor, "a factor")
    return stateless(lambda gradients, params: tree.map(lambda each: wide(each) * factor, gradients))


@told
def clip_by_value(bound: Operand) -> Optimiser:
    """Every element within [-bound, bound]."""
    check_number(bound, "a bound", 0.0)
    low = mnp.negative(bound)
    return stateless(lambda gradients, params: tree.map(lambda each: mnp.clip(each, low, bound), gradients))


@told
def clip_by_global_norm(bound: Operand) -> Optimiser:
    """All together scaled down so that their norm is at most `bound`.  Pascanu et al., 2012 (arXiv 1211.5063)."""
    check_number(bound, "a bound", 0.0)

    def clipped(gradients: Any, params: Any) -> Any:
        norm = global_norm(gradients)
        factor = mnp.where(norm > bound, bound / norm, 1.0)
        return tree.map(lambda each: wide(each) * factor, gradients)

    return stateless(clipped)


@told
def add_decayed_weights(rate: Operand, mask: Any = None) -> Optimiser:
    """Plus rate * param.

    `mask` says for which: a tree of bools as the params, or a function of the params to one; for example
    `lambda params: mesh.tree.map(lambda leaf: leaf.ndim > 1, params)` for matrices only.
    """
    check_number(rate, "weight decay", 0.0)

    def decayed(gradients: Any, params: Any) -> Any:
        chosen = mask(needed(params, "weight decay")) if callable(mask) else mask
        if chosen is None:
            chosen = tree.map(lambda leaf: True, needed(params, "weight decay"))
        return tree.map(
            lambda each, param, wanted: wide(each) + rate * wide(param) if wanted else each, gradients, params, chosen
        )

    return stateless(decayed)


@told
@checked
def momentum(decay: Operand, nesterov: bool = False) -> Optimiser:
    """The running sum m = decay * m + g; with `nesterov`, g + decay * m of that."""
    check_number(decay, "momentum", 0.0, 1.0)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        moved = tree.map(lambda each, own: decay * own + each, gradients, state)
        if not nesterov:
            return moved, moved
        return tree.map(lambda each, own: each + decay * own, gradients, moved), moved

    return Optimiser(zeros_for, update)


class Moments(NamedTuple):
    """How many steps were made, and the running means of gradients and of their squares."""

    steps: Operand
    first: Any
    second: Any


@told
def scale_by_adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimiser:
    """The mean of gradients by the root of the mean of squares, both without bias.

    Kingma and Ba, 2014 (arXiv 1412.6980).
    """

    for what, decay in (("b1", b1), ("b2", b2)):
        check_number(decay, what, 0.0, 1.0)
    check_number(eps, "eps", 0.0)

    def init(params: Any) -> Moments:
        return Moments(mnp.asarray(0), zeros_for(params), zeros_for(params))

    def update(gradients: Any, state: Moments, params: Any = None) -> tuple[Any, Moments]:
        instance(state, "the state of scale_by_adam", Moments, "what its init or update gave")
        steps = mnp.asarray(state.steps) + 1
        first = tree.map(lambda each, own: b1 * own + (1 - b1) * wide(each), gradients, state.first)
        second = tree.map(lambda each, own: b2 * own + (1 - b2) * mnp.square(wide(each)), gradients, state.second)
        of_first, of_second = 1 / weight_of(b1, steps), 1 / weight_of(b2, steps)
        found = tree.map(lambda m, v: m * of_first / (mnp.sqrt(v * of_second) + eps), first, second)
        return found, Moments(steps, first, second)

    return Optimiser(init, update)


@told
def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> Optimiser:
    """The sign of a mean of gradients.  Chen et al., 2023 (arXiv 2302.06675)."""
    for what, decay in (("b1", b1), ("b2", b2)):
        check_number(decay, what, 0.0, 1.0)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        found = tree.map(lambda each, own: mnp.sign(b1 * own + (1 - b1) * wide(each)), gradients, state)
        return found, tree.map(lambda each, own: b2 * own + (1 - b2) * wide(each), gradients, state)

    return Optimiser(zeros_for, update)


@told
def scale_by_learning_rate(rate: Rate) -> Optimiser:
    """Times -rate: a number, or a schedule of the number of steps made before."""
    if not callable(rate):
        check_number(rate, "a learning rate", 0.0)
        return scale(mnp.negative(rate))

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Array]:
        count = mnp.asarray(state)
        factor = -rate_at(rate, count)
        return tree.map(lambda each: wide(each) * factor, gradients), count + 1

    return Optimiser(lambda params: mnp.asarray(0), update)
