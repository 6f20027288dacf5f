"""The step of training, as one program: loss, gradients, their exchange, the veto, clipping and the optimiser's update.

    state, told = step(state, resident, batch, weights)

It is made once and carried by a session.  `ranks` above 1 are ranks that share a batch, each with all params; with one,
it is a program about whole tensors, for one worker, or for a strategy that splits it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import collectives, optim, tree
from .. import numpy as mnp
from ..core.array import Array, apply
from ..optim.optimiser import sum_of_squares
from ..spmd.grid import Grid, PartitionSpec
from ..spmd.shard_map import shard_map
from ..transforms.control_flow import cond
from . import gradient_exchange
from .data import Shares
from .gradients import Found, by_turns, each_alone, finite, in_turn, interleaved, of_rows, step_key
from .step_config import SCALE_FIRST, SCALE_MAX, SCALE_STEPS, Recipe

Step = Callable[..., tuple[Any, Any]]


def first_state(recipe: Recipe, params: Any, ranks: int) -> dict[str, Any]:
    """What a step changes, before the first one."""
    size = gradient_exchange.memory_size(params, recipe.compression) if ranks > 1 else 0
    return {
        "params": params,
        "optimiser": tree.map(np.asarray, recipe.optimiser.init(params)),
        "step": np.int32(0),
        "scale": {"factor": np.float32(SCALE_FIRST), "steps": np.int32(0)} if recipe.scales else None,
        "unsent": np.zeros((ranks, size), np.float32) if size else None,
    }


def training_step(recipe: Recipe, ranks: int, whole: bool, rows_apart: bool, unlike: Shares | None = None) -> Step:
    """The step of so many ranks; `whole`: it is split by others, who cannot split loops; `unlike` says what each rank
    has where that is not the same."""

    def local(state: Any, resident: Any, batch: Any, weights: Array) -> tuple[Any, Any]:
        rank = collectives.axis_index(gradient_exchange.AXIS) if ranks > 1 else np.int32(0)
        factor = None if state["scale"] is None else state["scale"]["factor"]

        def found_of(batch: Any, weights: Array, turns: int, first: Any) -> Found:
            """Of what a rank has, in so many turns of which the `first` has this number; of shards each one's."""
            rows = batch if resident is None else tree.map(lambda leaf: leaf[batch], resident)

            def compute(part: Any, number: Any) -> Found:
                own, counted = part
                key = step_key(recipe, state["step"], first + number)
                return of_rows(recipe, state["params"], own, counted, key, factor, rows_apart)

            if recipe.shards:
                return each_alone(turns, lambda part, at: compute(part, at - first), (rows, weights), first)
            if whole:
                return interleaved(turns, compute, (rows, weights))
            return in_turn(recipe, turns, compute, (rows, weights))

        if unlike is None:
            turns = -(-recipe.shards // ranks) if recipe.shards else recipe.accumulate
            found = found_of(batch, weights, turns, rank * turns)
        else:
            found = _by_rank(recipe, rank, unlike, found_of, (batch, weights))
        flag = finite((found[0], optim.global_norm(found[1])))[None]  # the norm is no number if a gradient is none
        unsent = state["unsent"]
        if recipe.shards:
            flags = collectives.all_gather(flag, gradient_exchange.AXIS) if ranks > 1 else flag
            blocks = _blocks(recipe, unlike) if unlike else gradient_exchange.one_by_one(ranks, turns, recipe.shards)
            loss, gradients = gradient_exchange.combined(found, blocks, recipe.shards)
            gradients = tree.map(lambda each, param: mnp.astype(each, param.dtype), gradients, state["params"])
        elif ranks > 1:
            mine = mnp.arange(ranks, dtype="int32") == rank
            told = mnp.concatenate([found[0][None], mnp.where(mine, flag, 0.0)])
            if recipe.compression is None:  # what is told comes first, and so is in the bucket that leaves last
                sent = gradient_exchange.narrowed(recipe, found[1], factor)
                (told, gradients), unsent = gradient_exchange.summed(recipe, (told, sent), unsent)
                gradients = gradient_exchange.widened(recipe, gradients, state["params"], factor)
            else:
                told = collectives.all_reduce(told, gradient_exchange.AXIS)
                gradients, unsent = gradient_exchange.summed(recipe, found[1], unsent)
            loss, flags = told[0], told[1:]
        else:
            (loss, gradients), flags = found, flag
        return _updated(recipe, {**state, "unsent": unsent}, state, loss, gradients, flags)

    if recipe.updates:
        return partial(_changing, recipe, rows_apart)
    if ranks == 1:
        return local
    split = PartitionSpec(gradient_exchange.AXIS)
    specs = {"params": None, "optimiser": None, "step": None, "scale": None, "unsent": split}

    def step(state: Any, resident: Any, batch: Any, weights: Array) -> tuple[Any, Any]:
        lying = {name: spec if state[name] is not None else None for name, spec in specs.items()}
        mapped = shard_map(local, Grid((ranks,), (gradient_exchange.AXIS,)), (lying, None, split, split), (lying, None))
        found: tuple[Any, Any] = mapped(state, resident, batch, weights)
        return found

    return step


def _by_rank(recipe: Recipe, rank: Any, shares: Shares, found_of: Callable[..., Found], given: Any) -> Found:
    """What `found_of` makes of the rows that a rank takes: a branch for all ranks in a row that have as many.  Shards
    are added up as far as a rank can, and get zeros behind them, as many as others have more."""
    ranks, blocks = range(len(shares.rows)), _blocks(recipe, shares)
    most = max(map(len, blocks))
    alike = [(shares.rows[each], shares.turns[each], [level for level, _ in blocks[each]]) for each in ranks]
    groups = [[*each] for _, each in itertools.groupby(ranks, lambda each: alike[each])]

    def branch(group: list[int]) -> Any:
        count, turns = shares.rows[group[0]], shares.turns[group[0]]
        batch, weights = tree.map(lambda leaf: leaf[:count], given)
        first = sum(shares.turns[: group[0]])
        found = found_of(batch, weights, turns, first + (rank - group[0]) * turns)
        if not recipe.shards:
            return found
        found = gradient_exchange.added_up(found, first, blocks[group[0]])
        missing = most - len(blocks[group[0]])
        return tree.map(partial(_with_zeros, rows=missing), found) if missing else found

    def of(groups: list[list[int]]) -> Any:
        if len(groups) == 1:
            return branch(groups[0])
        return cond(rank <= groups[0][-1], lambda: branch(groups[0]), lambda: of(groups[1:]))

    found: Found = of(groups)
    return found


def _blocks(recipe: Recipe, shares: Shares) -> list[gradient_exchange.Blocks]:
    """By rank, what it exchanges of its shards; nothing where there are none."""
    if not recipe.shards:
        return [()] * len(shares.turns)
    firsts = itertools.accumulate(shares.turns, initial=0)
    return [gradient_exchange.blocks_of(*each, recipe.shards) for each in zip(firsts, shares.turns, strict=False)]


def _with_zeros(leaf: Array, rows: int) -> Array:
    return mnp.concatenate([leaf, mnp.zeros((rows, *leaf.shape[1:]), leaf.dtype)])


def _changing(
    recipe: Recipe, rows_apart: bool, state: Any, resident: Any, batch: Any, weights: Array
) -> tuple[Any, Any]:
    """A step that changes the weights after each of its parts, by the mean over the rows of that; and none if one of
    them is no number in the end.  The norm that it tells is the root of the mean square of theirs."""
    rows = batch if resident is None else tree.map(lambda leaf: leaf[batch], resident)
    factor = None if state["scale"] is None else state["scale"]["factor"]
    zero = np.float32(0)

    def turn(carry: Any, part: Any, number: Any) -> Any:
        total, squares, params, optimiser = carry
        own, counted = part
        key = step_key(recipe, state["step"], number)
        loss, gradients = of_rows(recipe, params, own, counted, key, factor, rows_apart)
        share = mnp.sum(counted)
        mean = mnp.where(share > 0, share, 1.0)
        gradients = tree.map(lambda each: apply("after", each, loss) / mnp.astype(mean, each.dtype), gradients)
        updates, following = recipe.optimiser.update(gradients, optimiser, params)
        made = optim.apply_updates(params, updates), following
        kept = tree.map(lambda new, old: mnp.where(share > 0, new, old), made, (params, optimiser))
        squares = [mnp.astype(sum_of_squares(each), "float32") + before
                   for each, before in zip(tree.leaves(gradients), squares, strict=True)]  # fmt: skip
        return total + loss, squares, *kept

    first = zero, [zero] * len(tree.leaves(state["params"])), state["params"], state["optimiser"]
    loss, squares, params, optimiser = by_turns(recipe.accumulate, turn, first, (rows, weights))
    norm = mnp.sqrt(sum(squares[1:], squares[0]) / np.float32(recipe.accumulate))
    flags = finite((loss, norm, params))[None]
    good = mnp.all(flags > 0)
    kept = tree.map(
        lambda new, old: mnp.where(good, new, old), (params, optimiser), (state["params"], state["optimiser"])
    )
    told = {"loss": loss, "norm": norm, "good": good, "flags": flags}
    scale = None if state["scale"] is None else _rescaled(state["scale"], good)
    if scale is not None:
        told["scale"] = factor
    return {**state, "params": kept[0], "optimiser": kept[1], "step": state["step"] + 1, "scale": scale}, told


def _updated(recipe: Recipe, after: Any, before: Any, loss: Array, gradients: Any, flags: Array) -> tuple[Any, Any]:
    """The next state, which is the one before if anything is no number, and what the step tells."""
    norm = optim.global_norm(gradients)
    good = mnp.logical_and(mnp.all(flags > 0), mnp.logical_and(mnp.isfinite(loss), mnp.isfinite(norm)))
    if recipe.clip is not None:
        shrunk = mnp.where(norm > recipe.clip, recipe.clip / norm, 1.0)
        gradients = tree.map(lambda each: each * shrunk, gradients)
    updates, optimiser = recipe.optimiser.update(gradients, before["optimiser"], before["params"])
    made = {**after, "params": optim.apply_updates(before["params"], updates), "optimiser": optimiser}
    kept = {name: None if value is None else tree.map(lambda new, old: mnp.where(good, new, old), value, before[name])
            for name, value in made.items() if name in ("params", "optimiser", "unsent")}  # fmt: skip
    scale = None if before["scale"] is None else _rescaled(before["scale"], good)
    told = {"loss": loss, "norm": norm, "good": good, "flags": flags}
    if scale is not None:
        told["scale"] = before["scale"]["factor"]
    following = {**kept, "step": before["step"] + 1, "scale": scale}
    return {name: following[name] for name in before}, told


def _rescaled(scale: Any, good: Array) -> Any:
    """Half after an overflow, double after many steps without one."""
    steps = mnp.where(good, scale["steps"] + 1, 0)
    grows = steps >= SCALE_STEPS
    grown = mnp.where(grows, mnp.minimum(scale["factor"] * 2, SCALE_MAX), scale["factor"])
    return {
        "factor": mnp.where(good, grown, mnp.maximum(scale["factor"] / 2, 1.0)),
        "steps": mnp.where(grows, 0, steps),
    }
