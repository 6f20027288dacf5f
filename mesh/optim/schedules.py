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
from .optimiser import counted

Schedule = Callable[[Operand], Array]
Rate = Operand | Schedule


def rate_at(rate: Rate, count: Operand) -> Array:
    """A number as it is, a schedule at a step."""
    return rate(count) if callable(rate) else mnp.positive(rate)


@checked
def constant(value: float) -> Schedule:
    """Always the same."""
    return lambda count: mnp.positive(value)


@checked
def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` over `steps`, and `end` after."""
    return lambda count: start + (end - start) * _share(count, steps)


@checked
def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """Half a cosine from `start` to `end` over `steps`, and `end` after.  Loshchilov and Hutter (arXiv 1608.03983)."""
    return lambda count: end + (start - end) * 0.5 * (1 + mnp.cos(math.pi * _share(count, steps)))


@checked
def exponential(start: float, rate: float, steps: int, *, staircase: bool = False) -> Schedule:
    """Times `rate` every `steps`; at once with `staircase`, gradually without."""

    def at(count: Operand) -> Array:
        turns = counted(count) / steps
        return start * mnp.pow(rate, mnp.floor(turns) if staircase else turns)

    return at


@checked
def piecewise(values: Sequence[float], boundaries: Sequence[int]) -> Schedule:
    """values[0] before step boundaries[0], values[1] from there on, and so forth."""
    return joined([constant(value) for value in values], boundaries)


@checked
def joined(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other, each from its own step 0; the second begins at step boundaries[0]."""
    if len(schedules) != len(boundaries) + 1 or list(boundaries) != sorted(boundaries):
        raise InputError(f"{len(schedules)} schedules need {len(schedules) - 1} boundaries that rise, got {boundaries}")

    def at(count: Operand) -> Array:
        found = schedules[0](count)
        for schedule, boundary in zip(schedules[1:], boundaries, strict=True):
            step = mnp.asarray(count) - boundary
            found = mnp.where(step >= 0, schedule(mnp.maximum(step, 0)), found)
        return found

    return at


@checked
def warmup_cosine(peak: float, warmup: int, steps: int, end: float = 0.0, start: float = 0.0) -> Schedule:
    """Linear from `start` to `peak` over `warmup` steps, then a cosine to `end` at step `steps`."""
    return joined([linear(start, peak, warmup), cosine(peak, steps - warmup, end)], [warmup])


def _share(count: Operand, steps: int) -> Array:
    return mnp.clip(counted(count) / steps, 0.0, 1.0)
