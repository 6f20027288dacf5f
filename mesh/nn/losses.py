"""Losses: how far a prediction is from what it should be.

`reduction` is "mean" over all elements (or the samples that count), "sum", or "none".
"""

from __future__ import annotations

from wire.errors import InputError, ShapeError

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import asarray, cast, floats
from ..util.annotation_checks import checked
from .activations import softplus
from .functions import check_known, log_softmax


@checked
def mse(prediction: Operand, target: Operand, *, reduction: str = "mean") -> Array:
    """(prediction - target)^2."""
    found, wanted = _pair(prediction, target)
    return _reduced((found - wanted) * (found - wanted), reduction)


@checked
def mae(prediction: Operand, target: Operand, *, reduction: str = "mean") -> Array:
    """|prediction - target|."""
    found, wanted = _pair(prediction, target)
    return _reduced(mnp.abs(found - wanted), reduction)


@checked
def huber(prediction: Operand, target: Operand, *, delta: float = 1.0, reduction: str = "mean") -> Array:
    """Half the squared error up to `delta`, from there on linear.  Huber, 1964."""
    found, wanted = _pair(prediction, target)
    error = found - wanted
    near = mnp.clip(error, -delta, delta)
    return _reduced(near * (error - 0.5 * near), reduction)


@checked
def cross_entropy(
    logits: Operand,
    labels: Operand,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    """-log softmax(logits)[label], for logits (..., classes) and labels (...) or probabilities (..., classes).

    With smoothing s the wanted probabilities are (1 - s) * label + s / classes.  Samples labelled `ignore_index` count
    for nothing, in the mean neither.  InputError for a known label that is no class; computed ones are clamped.
    """
    scores, target = log_softmax(logits), asarray(labels)
    classes = scores.shape[-1]
    if target.type.dtype.kind == "f":
        if target.shape != scores.shape:
            raise ShapeError(f"cross_entropy of logits {scores.shape} needs probabilities of that shape")
        wanted = cast(target, scores.type.dtype) * (1 - label_smoothing) + label_smoothing / classes
        return _reduced(-mnp.sum(wanted * scores, -1), reduction)
    if target.shape != scores.shape[:-1]:
        raise ShapeError(f"cross_entropy of logits {scores.shape} needs labels {scores.shape[:-1]}, got {target.shape}")
    counted = None if ignore_index is None else target != ignore_index
    check_known(target, classes, "a label", ignore_index)
    index = target if counted is None else mnp.where(counted, target, 0)
    loss = -mnp.squeeze(mnp.take_along_axis(scores, mnp.expand_dims(index, -1), axis=-1), -1)
    if label_smoothing:
        loss = loss * (1 - label_smoothing) - mnp.mean(scores, -1) * label_smoothing
    return _reduced(loss, reduction) if counted is None else _reduced_over(loss, counted, reduction)


@checked
def binary_cross_entropy(logits: Operand, target: Operand, *, reduction: str = "mean") -> Array:
    """-(t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))) of logits x and targets t in [0, 1]."""
    x, wanted = _pair(logits, target)
    return _reduced(softplus(x) - x * wanted, reduction)


@checked
def kl_divergence(log_prediction: Operand, target: Operand, *, reduction: str = "mean") -> Array:
    """t (log t - log_prediction) of probabilities t and logarithms of predicted ones; 0 where t is 0."""
    found, wanted = _pair(log_prediction, target)
    positive = wanted > 0
    logs = mnp.log(mnp.where(positive, wanted, 1))
    return _reduced(mnp.where(positive, wanted * (logs - found), 0), reduction)


def _pair(prediction: Operand, target: Operand) -> list[Array]:
    found, wanted = floats(prediction, target)
    if found.shape != wanted.shape:
        raise ShapeError(f"a loss needs a prediction and a target of one shape, got {found.shape} and {wanted.shape}")
    return [found, wanted]


def _reduced(loss: Array, reduction: str) -> Array:
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction {reduction!r} is not known", next_step=f"Known: {', '.join(REDUCTIONS)}")
    return {"mean": mnp.mean, "sum": mnp.sum, "none": mnp.positive}[reduction](loss)


def _reduced_over(loss: Array, counted: Array, reduction: str) -> Array:
    kept = mnp.where(counted, loss, 0)
    if reduction != "mean":
        return _reduced(kept, reduction)
    return mnp.sum(kept) / cast(mnp.sum(counted), loss.type.dtype)


REDUCTIONS = ("mean", "sum", "none")
