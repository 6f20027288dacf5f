"""Losses: how far a prediction is from what it should be.

`reduction` is "mean" over all elements (or the samples that count), "sum", or "none".
"""

from __future__ import annotations

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import DType

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import asarray, cast, floats
from ..util.annotation_checks import checked
from .activations import softplus
from .functions import check_known, log_softmax
from .precision import wide


@checked
def mse(prediction: Operand, target: Operand, *, reduction: str = "mean") -> Array:
    """The squared error, `(prediction - target)**2`.

    Parameters
    ----------
    prediction : array_like
        What was predicted.
    target : array_like
        What is right, of the same shape.
    reduction : {"mean", "sum", "none"}, optional
        What is made of the losses of all elements.

    Returns
    -------
    Array
        A number, or for "none" one loss per element.

    Raises
    ------
    ShapeError
        If prediction and target differ in shape.
    InputError
        If the reduction is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.mse(np.array([1.0, 2.0]), np.array([0.0, 4.0]))
    Array(2.5, dtype=float64)
    """
    predicted, wanted, dtype = _pair(prediction, target)
    return cast(_reduced((predicted - wanted) * (predicted - wanted), reduction), dtype)


@checked
def mae(prediction: Operand, target: Operand, *, reduction: str = "mean") -> Array:
    """The absolute error, `|prediction - target|`.

    Parameters
    ----------
    prediction : array_like
        What was predicted.
    target : array_like
        What is right, of the same shape.
    reduction : {"mean", "sum", "none"}, optional
        What is made of the losses of all elements.

    Returns
    -------
    Array
        A number, or for "none" one loss per element.

    Raises
    ------
    ShapeError
        If prediction and target differ in shape.
    InputError
        If the reduction is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.mae(np.array([1.0, 2.0]), np.array([0.0, 4.0]))
    Array(1.5, dtype=float64)
    """
    predicted, wanted, dtype = _pair(prediction, target)
    return cast(_reduced(mnp.abs(predicted - wanted), reduction), dtype)


@checked
def huber(prediction: Operand, target: Operand, *, delta: float = 1.0, reduction: str = "mean") -> Array:
    """Half the squared error up to `delta`, and linear from there on.

    Parameters
    ----------
    prediction : array_like
        What was predicted.
    target : array_like
        What is right, of the same shape.
    delta : float, optional
        The error at which the loss becomes linear.
    reduction : {"mean", "sum", "none"}, optional
        What is made of the losses of all elements.

    Returns
    -------
    Array
        A number, or for "none" one loss per element.

    Raises
    ------
    ShapeError
        If prediction and target differ in shape.
    InputError
        If the reduction is not known.

    Notes
    -----
    Huber, 1964, "Robust estimation of a location parameter".

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.huber(np.array([0.5, 3.0]), np.zeros(2), reduction="none")
    Array([0.125, 2.5  ], dtype=float64)
    """
    predicted, wanted, dtype = _pair(prediction, target)
    error = predicted - wanted
    near = mnp.clip(error, -delta, delta)
    return cast(_reduced(near * (error - 0.5 * near), reduction), dtype)


@checked
def cross_entropy(
    logits: Operand,
    labels: Operand,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    """The cross entropy of classes, `-log softmax(logits)[label]`.

    Parameters
    ----------
    logits : array_like, (..., classes)
        Scores of the classes.
    labels : array_like, (...) or (..., classes)
        The right class of each sample, or the probability of each class.
    label_smoothing : float, optional
        The share s of the probability that is spread over all classes, which gives `(1 - s) * label + s / classes`.
    ignore_index : int, optional
        The label of samples that count for nothing, nor in the mean.
    reduction : {"mean", "sum", "none"}, optional
        What is made of the losses of all samples.

    Returns
    -------
    Array
        A number, or for "none" one loss per sample, (...).

    Raises
    ------
    ShapeError
        If the labels do not fit the logits.
    InputError
        If a known label is no class, or the reduction is not known; computed labels are clamped.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> print(np.round(nn.cross_entropy(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([0, 1])), 3))
    0.41
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
    """The cross entropy of yes and no, of logits.

    Parameters
    ----------
    logits : array_like
        Scores x, of which the probabilities are sigmoid(x).
    target : array_like
        Probabilities in [0, 1] that are right, of the same shape.
    reduction : {"mean", "sum", "none"}, optional
        What is made of the losses of all elements.

    Returns
    -------
    Array
        A number, or for "none" one loss per element.

    Raises
    ------
    ShapeError
        If prediction and target differ in shape.
    InputError
        If the reduction is not known.

    Notes
    -----
    It is `-(t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x)))`, and never overflows.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> np.round(nn.binary_cross_entropy(np.array([0.0, 5.0]), np.array([1.0, 1.0]), reduction="none"), 3)
    array([0.693, 0.007])
    """
    x, wanted, dtype = _pair(logits, target)
    return cast(_reduced(softplus(x) - x * wanted, reduction), dtype)


@checked
def kl_divergence(log_prediction: Operand, target: Operand, *, reduction: str = "mean") -> Array:
    """The Kullback-Leibler divergence, `t * (log(t) - log_prediction)`.

    Parameters
    ----------
    log_prediction : array_like
        Logarithms of predicted probabilities.
    target : array_like
        Probabilities t that are right, of the same shape.
    reduction : {"mean", "sum", "none"}, optional
        What is made of the losses of all elements.

    Returns
    -------
    Array
        A number, or for "none" one loss per element.

    Raises
    ------
    ShapeError
        If prediction and target differ in shape.
    InputError
        If the reduction is not known.

    Notes
    -----
    It is 0 where t is 0.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> print(np.round(nn.kl_divergence(np.log(np.array([0.5, 0.5])), np.array([1.0, 0.0]), reduction="sum"), 3))
    0.693
    """
    predicted, wanted, dtype = _pair(log_prediction, target)
    positive = wanted > 0
    logs = mnp.log(mnp.where(positive, wanted, 1))
    return cast(_reduced(mnp.where(positive, wanted * (logs - predicted), 0), reduction), dtype)


def _pair(prediction: Operand, target: Operand) -> tuple[Array, Array, DType]:
    """Give prediction and target in float32 where they are narrower, and their dtype: 256 has no square in float16."""
    predicted, wanted = floats(prediction, target)
    if predicted.shape != wanted.shape:
        raise ShapeError(
            f"a loss needs a prediction and a target of one shape, got {predicted.shape} and {wanted.shape}"
        )
    return wide(predicted), wide(wanted), predicted.type.dtype


def _reduced(loss: Array, reduction: str) -> Array:
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction {reduction!r} is not known", next_step=f"Known: {', '.join(REDUCTIONS)}")
    return {"mean": mnp.mean, "sum": mnp.sum, "none": mnp.positive}[reduction](loss)


def _reduced_over(loss: Array, counted: Array, reduction: str) -> Array:
    kept = mnp.where(counted, loss, 0)
    if reduction != "mean":
        return _reduced(kept, reduction)
    high = wide(kept)  # a sum of float16 overflows, and so does a count of more than 65,504
    return cast(mnp.sum(high) / cast(mnp.sum(counted), high.type.dtype), loss.type.dtype)


REDUCTIONS = ("mean", "sum", "none")
