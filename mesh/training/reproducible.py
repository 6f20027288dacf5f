"""Reproducible training: the same weights to the bit, however many workers there are and whichever die."""

from __future__ import annotations

from wire.errors import InputError
from wire.policy.strategies import Strategy, text_of

from .step_config import Recipe


def check_reproducible(recipe: Recipe, strategy: Strategy) -> None:
    """InputError, which says what to choose, where the bits of weights would follow the number of workers."""
    if recipe.compression:
        raise InputError(
            "compressed gradients are not reproducible: what is left unsent follows the number of workers",
            next_step="Leave out compression, or build the mesh without reproducible",
        )
    if not recipe.shards:  # with shards the same parts make every batch, whoever computes them
        text_of(strategy, reproducible=True)
