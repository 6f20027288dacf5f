"""Learning rates as functions of how many steps were made before; they take ints and int32 arrays, traced or not.

A rate is made of Python's floats, and adapts as they do: it is float32 where it stands alone, and beside float64 params
it is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wire.errors import InputError

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..util.annotation_checks import checked
from ..util.argument_checks import integer
from .optimiser import counted

Schedule = Callable[[Operand], Array]
Rate = Operand | Schedule


def rate_at(rate: Rate, count: Operand) -> Array:
    """The rate at a step: a number as it is, or the value of a schedule."""
    return rate(count) if callable(rate) else mnp.positive(rate)


@checked
def constant(value: float) -> Schedule:
    """A rate that never changes.

    Parameters
    ----------
    value : float
        The rate.

    Returns
    -------
    Schedule
        A function of the step.

    Examples
    --------
    >>> from mesh import optim
    >>> print(optim.constant(0.5)(100))
    Array(0.5, dtype=float32)
    """
    return lambda count: mnp.positive(value)


@checked
def linear(start: float, end: float, steps: int) -> Schedule:
    """A straight line from `start` to `end` over `steps`, and `end` after that.

    Parameters
    ----------
    start : float
        The rate at step 0.
    end : float
        The rate at step `steps` and later.
    steps : int
        How long the line is.

    Returns
    -------
    Schedule
        A function of the step.

    Examples
    --------
    >>> from mesh import optim
    >>> rate = optim.linear(1.0, 0.0, 4)
    >>> [float(rate(step)) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    return lambda count: start + (end - start) * _share(count, steps)


@checked
def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """Half a cosine from `start` to `end` over `steps`, and `end` after that.

    Parameters
    ----------
    start : float
        The rate at step 0.
    steps : int
        How long the curve is.
    end : float, optional
        The rate at step `steps` and later.

    Returns
    -------
    Schedule
        A function of the step.

    Notes
    -----
    Loshchilov and Hutter, 2016 (arXiv 1608.03983).

    Examples
    --------
    >>> from mesh import optim
    >>> rate = optim.cosine(1.0, 4)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 2, 4, 9)]
    [1.0, 0.854, 0.5, 0.0, 0.0]
    """
    return lambda count: end + (start - end) * 0.5 * (1 + mnp.cos(math.pi * _share(count, steps)))


@checked
def exponential(start: float, rate: float, steps: int, *, staircase: bool = False) -> Schedule:
    """A rate that is multiplied by `rate` every `steps`.

    Parameters
    ----------
    start : float
        The rate at step 0.
    rate : float
        The factor.
    steps : int
        The number of steps between two of its powers.
    staircase : bool, optional
        Whether the rate changes all at once every `steps`, and not gradually.

    Returns
    -------
    Schedule
        A function of the step.

    Raises
    ------
    InputError
        If steps is less than 1.

    Examples
    --------
    >>> from mesh import optim
    >>> smooth, stairs = optim.exponential(1.0, 0.25, 2), optim.exponential(1.0, 0.25, 2, staircase=True)
    >>> [(round(float(smooth(step)), 3), float(stairs(step))) for step in (0, 1, 2)]
    [(1.0, 1.0), (0.5, 1.0), (0.25, 0.25)]
    """

    integer(steps, "steps of an exponential rate", 1)

    def at(count: Operand) -> Array:
        turns = counted(count) / steps
        return start * mnp.pow(rate, mnp.floor(turns) if staircase else turns)

    return at


@checked
def piecewise(values: Sequence[float], boundaries: Sequence[int]) -> Schedule:
    """A constant rate between each two boundaries.

    Parameters
    ----------
    values : sequence of float
        The rates: `values[0]` before step `boundaries[0]`, `values[1]` from there on, and so on.
    boundaries : sequence of int
        The steps at which the next value begins, rising, one fewer than values.

    Returns
    -------
    Schedule
        A function of the step.

    Raises
    ------
    InputError
        If the boundaries do not rise, or their number does not fit.

    Examples
    --------
    >>> from mesh import optim
    >>> rate = optim.piecewise([1.0, 0.5, 0.25], [10, 20])
    >>> [float(rate(step)) for step in (9, 10, 20)]
    [1.0, 0.5, 0.25]
    """
    return joined([constant(value) for value in values], boundaries)


@checked
def joined(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedules one after the other, each counted from its own step 0.

    Parameters
    ----------
    schedules : sequence of Schedule
        The schedules.
    boundaries : sequence of int
        The steps at which the next schedule begins, rising, one fewer than schedules.

    Returns
    -------
    Schedule
        A function of the step.

    Raises
    ------
    InputError
        If the boundaries do not rise, or their number does not fit.

    Examples
    --------
    >>> from mesh import optim
    >>> rate = optim.joined([optim.linear(0.0, 1.0, 2), optim.constant(0.5)], [2])
    >>> [float(rate(step)) for step in (0, 1, 2, 3)]
    [0.0, 0.5, 0.5, 0.5]
    """
    if len(schedules) != len(boundaries) + 1 or list(boundaries) != sorted(boundaries):
        raise InputError(f"{len(schedules)} schedules need {len(schedules) - 1} boundaries that rise, got {boundaries}")

    def at(count: Operand) -> Array:
        rate = schedules[0](count)
        for schedule, boundary in zip(schedules[1:], boundaries, strict=True):
            step = mnp.asarray(count) - boundary
            rate = mnp.where(step >= 0, schedule(mnp.maximum(step, 0)), rate)
        return rate

    return at


@checked
def warmup_cosine(peak: float, warmup: int, steps: int, end: float = 0.0, start: float = 0.0) -> Schedule:
    """A line from `start` to `peak` over `warmup` steps, then half a cosine to `end` at step `steps`.

    Parameters
    ----------
    peak : float
        The largest rate.
    warmup : int
        The number of steps to the peak.
    steps : int
        The number of steps in all.
    end : float, optional
        The rate at step `steps` and later.
    start : float, optional
        The rate at step 0.

    Returns
    -------
    Schedule
        A function of the step.

    Examples
    --------
    >>> from mesh import optim
    >>> rate = optim.warmup_cosine(1.0, 2, 6)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 2, 4, 6)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return joined([linear(start, peak, warmup), cosine(peak, steps - warmup, end)], [warmup])


def _share(count: Operand, steps: int) -> Array:
    if steps <= 0:  # the end is reached at once, and no step is 0/0 of the way
        return mnp.positive(1.0)
    return mnp.clip(counted(count) / steps, 0.0, 1.0)
