"""Assignment: which axes split which factors of a node, and what that means for the layouts of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .layout import Axes, Dims
from .rule import DimFactors, Rule

Assignment = Mapping[int, tuple[str, ...]]
"""The axes that split each factor; a factor that is not there is whole."""


def projected(rule: Rule, dim_factors: DimFactors, dims: Dims, axes: Axes) -> dict[int, tuple[str, ...]]:
    """The factors that a tensor's layout splits; axes that fit none are left out."""
    smaller: dict[int, tuple[str, ...]] = {}
    for factors, split in zip(dim_factors, dims, strict=True):
        left = split
        for factor in factors:
            taken = _taken(rule, factor, left, axes)
            if taken:
                smaller[factor] = taken
            left = left[len(taken) :]
            if not left or axes.size(taken) != rule.sizes[factor]:
                break
    return smaller


def _taken(rule: Rule, factor: int, split: tuple[str, ...], axes: Axes) -> tuple[str, ...]:
    """The first axes, as many as can split the factor."""
    for count in range(len(split), 0, -1):
        if rule.may_split(factor, axes.size(split[:count])):
            return split[:count]
    return ()


def dims_of(rule: Rule, dim_factors: DimFactors, assignment: Assignment, axes: Axes) -> Dims:
    """The layout of a tensor whose factors are split so."""
    dims = []
    for factors in dim_factors:
        split: tuple[str, ...] = ()
        for factor in factors:
            split = (*split, *assignment.get(factor, ()))
            if axes.size(assignment.get(factor, ())) != rule.sizes[factor]:
                break
        dims.append(split)
    return tuple(dims)


def shards_of(rule: Rule, assignment: Assignment, axes: Axes) -> list[int]:
    """The number of shards that each factor is split into."""
    return [axes.size(assignment.get(factor, ())) for factor in range(len(rule.sizes))]


def merged(parts: Iterable[Assignment]) -> dict[int, tuple[str, ...]]:
    """What the parts agree on, the first first: an axis splits one factor, and longer splits extend shorter ones."""
    union: dict[int, tuple[str, ...]] = {}
    taken: dict[str, int] = {}
    for part in parts:
        for factor, split in part.items():
            had = union.get(factor, ())
            if had != split[: len(had)] or any(taken.get(axis, factor) != factor for axis in split):
                continue
            union[factor] = split
            taken.update(dict.fromkeys(split, factor))
    return union


def agreements(rule: Rule, parts: Sequence[Assignment], axes: Axes) -> list[dict[int, tuple[str, ...]]]:
    """What can be made of the parts, each of them first in turn; one only if they do not disagree."""
    distinct: dict[frozenset[tuple[int, tuple[str, ...]]], dict[int, tuple[str, ...]]] = {}
    for place in range(len(parts)):
        offer = sound(rule, merged([parts[place], *parts[:place], *parts[place + 1 :]]), axes)
        distinct.setdefault(frozenset(offer.items()), offer)
    return list(distinct.values())


def sound(rule: Rule, assignment: Assignment, axes: Axes) -> dict[int, tuple[str, ...]]:
    """What of it can be written as layouts: within a dimension, only what stands behind single elements is split."""
    repaired = dict(assignment)
    for dims in (*rule.operands, *rule.results):
        for factors in dims:
            is_open = False
            for factor in factors:
                if is_open:
                    repaired.pop(factor, None)
                is_open |= axes.size(repaired.get(factor, ())) != rule.sizes[factor]
    return repaired if repaired == assignment else sound(rule, repaired, axes)
