"""Gradients of the loss of some rows: weighted, in another precision, of several batches one after the other.

Every row has a weight, and what does not count has 0; the weights of a step sum to 1, so that ranks, batches and shards
just add up.  It knows nothing of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import F64

from .. import numpy as mnp
from .. import tree
from ..core.array import Array
from ..core.call_arguments import check_call
from ..numpy import random
from ..numpy.promotion import asarray
from ..optim.optimiser import wide
from ..transforms.control_flow import cond, scan
from ..transforms.grad import value_and_grad
from ..transforms.vmap import vmap
from .step_config import Recipe

LossAndGradients = tuple[Array, Any]


def of_rows(
    recipe: Recipe, params: Any, batch: Any, weights: Array, key: Any, scale: Any, rows_apart: bool
) -> LossAndGradients:
    """The loss of these rows, and its gradients in the params' own dtypes.

    With `rows_apart`, a loss that is a mean is computed row by row.
    """

    def scaled(own: Any) -> Array:
        total = _weighted(recipe, _cast(recipe, own), _cast(recipe, batch), weights, key, rows_apart)
        return total if scale is None else total * scale

    loss, gradients = value_and_grad(scaled)(params)
    gradients = tree.map(lambda leaf: mnp.conj(leaf) if mnp.iscomplexobj(leaf) else leaf, gradients)  # which way is up
    if scale is None:
        return loss, gradients
    return loss / scale, tree.map(lambda leaf: leaf / scale, gradients)


def in_turn(recipe: Recipe, turns: int, compute: Callable[[Any, Any], LossAndGradients], rows: Any) -> LossAndGradients:
    """The sum over `turns` equal parts of the rows, one after the other, so that one is in memory at a time."""
    if turns == 1:
        return compute(rows, np.int32(0))
    parts = _parts(rows, turns)
    (shapes, _), numbers = value_shapes(compute, parts), mnp.arange(turns, dtype="int32")

    def turn(carry: Any, part: Any) -> tuple[Any, tuple[()]]:
        return tree.map(mnp.add, carry, compute(*part)), ()

    total: LossAndGradients = scan(turn, shapes, (parts, numbers))[0]
    return total


def each_alone(turns: int, compute: Callable[[Any, Any], LossAndGradients], rows: Any, first: Any) -> LossAndGradients:
    """Loss and gradients of each of `turns` parts of the rows, stacked: every one is computed by the same graph."""

    def turn(number: Any, part: Any) -> tuple[Any, LossAndGradients]:
        return number + 1, compute(part, number)

    stacked: LossAndGradients = scan(turn, asarray(first), _parts(rows, turns))[1]
    return stacked


def by_turns(turns: int, turn: Callable[[Any, Any, Any], Any], first: Any, rows: Any) -> Any:
    """What `turn(carry, rows, number)` makes of `first` with equal parts of the rows, one after the other."""

    def one(carry: Any, part: Any) -> tuple[Any, tuple[()]]:
        return turn(carry, *part), ()

    return scan(one, first, (_parts(rows, turns), mnp.arange(turns, dtype="int32")))[0]


def interleaved(turns: int, compute: Callable[[Any, Any], LossAndGradients], rows: Any) -> LossAndGradients:
    """Sum over parts, without a loop.  Parts take every `turns`-th row, so that a split of rows splits each part."""
    total: LossAndGradients | None = None
    for turn in range(turns):
        part = tree.map(lambda leaf, turn=turn: _strided(leaf, turns, turn), rows)
        result = compute(part, np.int32(turn))
        total = result if total is None else tree.map(mnp.add, total, result)
    assert total is not None
    return total


def value_shapes(compute: Callable[[Any, Any], LossAndGradients], parts: Any) -> tuple[LossAndGradients, None]:
    """Zeros like what `compute` gives of one part."""
    result = compute(tree.map(lambda leaf: leaf[0], parts), np.int32(0))
    return tree.map(lambda leaf: mnp.zeros(leaf.shape, leaf.dtype), result), None


def finite(values: Any) -> Array:
    """1.0 if all leaves are finite, else 0.0, computed in one pass over their sums.

    A sum is NaN or Inf if a leaf is, and otherwise finite unless leaves are so large that the norm of gradients
    overflows.
    """
    sums = [mnp.sum(wide(leaf)) for leaf in tree.leaves(values)]
    return mnp.astype(mnp.isfinite(sum(sums[1:], sums[0])), "float32")


def step_key(recipe: Recipe, step: Any, number: Any) -> Any:
    """The key of a part of a step's rows, None if the loss wants none."""
    if not recipe.takes_key:
        return None
    return random.fold_in(random.fold_in(random.key(recipe.seed), step), number)


def _weighted(recipe: Recipe, params: Any, batch: Any, weights: Array, key: Any, rows_apart: bool) -> Array:
    keyed = {} if key is None else {"key": key}

    def loss_of(own: Any) -> Array:
        arguments = own if type(own) is tuple else (own,)
        try:
            check_call(recipe.loss, (params, *arguments), keyed)
        except InputError as error:
            raise InputError(
                f"the loss does not take a batch of {len(arguments)}: {error.message}",
                next_step="It is called loss(params, *batch), or loss(params, batch) where a batch is a dict or one "
                "array; arrays are given as a tuple, fit((x, y)), and a list is of batches",
            ) from None
        value = recipe.loss(params, *arguments, **keyed)
        if value is None or isinstance(value, (tuple, list, dict)):
            raise InputError(f"a loss is one array, and this function gives a {type(value).__name__}")
        return asarray(value)

    loss = loss_of(batch)
    if loss.type.dtype.kind != "f":
        raise InputError(f"a loss is a float, got {loss.type}")
    if loss.shape == weights.shape:
        return _total(loss, weights)
    if loss.shape != ():
        raise ShapeError(f"a loss is one number per row, {weights.shape}, or the mean over rows, got {loss.type}")

    def by_rows() -> Array:
        rows = vmap(lambda own: loss_of(tree.map(lambda leaf: leaf[None], own)))(batch)
        return _total(rows, weights)

    if not rows_apart:
        return _mean_of(loss, weights)
    if recipe.staged:  # a branch is computed by one stage as a whole
        return by_rows()
    mean: Array = cond(mnp.all(weights > 0), lambda: _mean_of(loss_of(batch), weights), by_rows)
    return mean


def _total(losses: Array, weights: Array) -> Array:
    """The weighted sum.  Rows that do not count are copies of rows that do, so they are finite where those are."""
    shares = _shares(weights, losses)
    return mnp.astype(mnp.sum(mnp.where(weights > 0, mnp.astype(losses, shares.dtype) * shares, 0.0)), "float32")


def _mean_of(loss: Array, weights: Array) -> Array:
    """What a mean over rows of these weights adds to the loss of the step."""
    shares = _shares(weights, loss)
    return mnp.astype(mnp.astype(loss, shares.dtype) * mnp.sum(shares), "float32")


def _shares(weights: Array, losses: Array) -> Array:
    """The weights, in float64 for losses in float64: 1 / 3 in float32 would leave its rounding in all gradients.

    A weight is one by the number of rows that count, which follows from it exactly.
    """
    if losses.type.dtype is not F64:
        return weights
    rows = mnp.round(1 / mnp.where(weights > 0, mnp.astype(weights, "float64"), 1.0))
    return mnp.where(weights > 0, 1 / rows, 0.0)


def _cast(recipe: Recipe, values: Any) -> Any:
    if recipe.narrow is None:
        return values
    return tree.map(
        lambda leaf: mnp.astype(leaf, recipe.narrow) if asarray(leaf).type.dtype.kind == "f" else leaf, values
    )


def _parts(rows: Any, turns: int) -> Any:
    return tree.map(lambda leaf: mnp.reshape(leaf, (turns, leaf.shape[0] // turns, *leaf.shape[1:])), rows)


def _strided(leaf: Any, turns: int, turn: int) -> Array:
    return mnp.reshape(leaf, (leaf.shape[0] // turns, turns, *leaf.shape[1:]))[:, turn]
