"""Training step: loss, gradients, their exchange, the check for NaN, clipping and the update, as one program.

    state, report = step(state, resident, batch, weights)

A session traces it once and repeats it.  A step is of one of four kinds, and a function builds each:
* single: one worker, or a strategy that splits whole tensors;
* data-parallel: every rank has all params and its rows of the batch; ranks exchange sums of gradients;
* sharded: the same for deterministic training; ranks exchange the gradients of virtual shards, not sums;
* updating: the schedule "pipedream" changes the weights after every micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
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
from .gradients import LossAndGradients, by_turns, each_alone, finite, in_turn, interleaved, of_rows, step_key
from .step_config import SCALE_FIRST, SCALE_MAX, SCALE_STEPS, Recipe

Step = Callable[..., tuple[Any, Any]]


def first_state(recipe: Recipe, params: Any, ranks: int) -> dict[str, Any]:
    """The state before the first step: all that a step changes."""
    size = gradient_exchange.memory_size(params, recipe.compression) if ranks > 1 else 0
    return {
        "params": params,
        "optimiser": tree.map(np.asarray, recipe.optimiser.init(params)),
        "step": np.int32(0),
        "scale": {"factor": np.float32(SCALE_FIRST), "steps": np.int32(0)} if recipe.scales else None,
        "unsent": np.zeros((ranks, size), np.float32) if size else None,
    }


def training_step(recipe: Recipe, ranks: int, whole: bool, rows_apart: bool, unlike: Shares | None = None) -> Step:
    """The step of this many ranks.

    `whole`: a strategy splits the step's tensors, and it cannot split loops.  `unlike`: the rows and turns of each
    rank, where ranks have different numbers of them.
    """
    if recipe.updates:
        return _updating_step(recipe, rows_apart)
    if recipe.shards:
        return _sharded_step(recipe, ranks, rows_apart, unlike)
    if ranks > 1:
        return _data_parallel_step(recipe, ranks, rows_apart, unlike)
    return _single_step(recipe, whole, rows_apart)


def _single_step(recipe: Recipe, whole: bool, rows_apart: bool) -> Step:
    def step(state: Any, resident: Any, batch: Any, weights: Array) -> tuple[Any, Any]:
        compute, parts = _part_gradients(recipe, rows_apart, state), (_rows(resident, batch), weights)
        if whole:
            loss, gradients = interleaved(recipe.accumulate, compute, parts)
        else:
            loss, gradients = in_turn(recipe, recipe.accumulate, compute, parts)
        return updated(recipe, state, state, loss, gradients, _finite_flag(loss, gradients))

    return step


def _data_parallel_step(recipe: Recipe, ranks: int, rows_apart: bool, unlike: Shares | None) -> Step:
    turns = unlike.turns if unlike is not None else (recipe.accumulate,) * ranks

    def local(state: Any, resident: Any, batch: Any, weights: Array) -> tuple[Any, Any]:
        rank, compute = collectives.axis_index(gradient_exchange.AXIS), _part_gradients(recipe, rows_apart, state)

        def rank_gradients(batch: Any, weights: Array, leader: int) -> LossAndGradients:
            first, rows = _first_turn(turns, leader, rank), (_rows(resident, batch), weights)
            return in_turn(recipe, turns[leader], lambda part, number: compute(part, first + number), rows)

        if unlike is None:
            loss, gradients = rank_gradients(batch, weights, 0)
        else:
            kinds = list(zip(unlike.rows, turns, strict=True))
            loss, gradients = _by_rank(rank, unlike, kinds, rank_gradients, batch, weights)
        flag, unsent = _finite_flag(loss, gradients), state["unsent"]
        head = mnp.concatenate([loss[None], mnp.where(mnp.arange(ranks, dtype="int32") == rank, flag, 0.0)])
        if recipe.compression is None:  # the head comes first, and so is in the bucket that leaves last
            factor = _scale_factor(state)
            sent = gradient_exchange.narrowed(recipe, gradients, factor)
            (head, gradients), unsent = gradient_exchange.summed(recipe, (head, sent), unsent)
            gradients = gradient_exchange.widened(recipe, gradients, state["params"], factor)
        else:
            head = collectives.all_reduce(head, gradient_exchange.AXIS)
            gradients, unsent = gradient_exchange.summed(recipe, gradients, unsent)
        return updated(recipe, {**state, "unsent": unsent}, state, head[0], gradients, head[1:])

    return _on_ranks(local, ranks)


def _sharded_step(recipe: Recipe, ranks: int, rows_apart: bool, unlike: Shares | None) -> Step:
    turns = unlike.turns if unlike is not None else (-(-recipe.shards // ranks),) * ranks
    if unlike is None:
        blocks = gradient_exchange.one_by_one(ranks, turns[0], recipe.shards)
    else:
        firsts = itertools.accumulate(turns, initial=0)
        blocks = [gradient_exchange.blocks_of(*pair, recipe.shards) for pair in zip(firsts, turns, strict=False)]
    blocks_max = max(map(len, blocks))

    def local(state: Any, resident: Any, batch: Any, weights: Array) -> tuple[Any, Any]:
        rank = collectives.axis_index(gradient_exchange.AXIS) if ranks > 1 else np.int32(0)
        compute = _part_gradients(recipe, rows_apart, state)

        def shard_gradients(batch: Any, weights: Array, leader: int) -> LossAndGradients:
            first = _first_turn(turns, leader, rank)
            return each_alone(turns[leader], compute, (_rows(resident, batch), weights), first)

        def block_gradients(batch: Any, weights: Array, leader: int) -> LossAndGradients:
            """Shards added up as far as a rank can, and zeros behind them where others have more blocks."""
            stacked, first = shard_gradients(batch, weights, leader), sum(turns[:leader])
            sums: LossAndGradients = gradient_exchange.added_up(stacked, first, blocks[leader])
            missing = blocks_max - len(blocks[leader])
            return tree.map(partial(_with_zeros, rows=missing), sums) if missing else sums

        if unlike is None:
            stacked = shard_gradients(batch, weights, 0)
        else:
            levels = [tuple([level for level, _ in mine]) for mine in blocks]
            kinds = list(zip(unlike.rows, turns, levels, strict=True))
            stacked = _by_rank(rank, unlike, kinds, block_gradients, batch, weights)
        flag = _finite_flag(*stacked)
        flags = collectives.all_gather(flag, gradient_exchange.AXIS) if ranks > 1 else flag
        loss, gradients = gradient_exchange.combined(stacked, blocks, recipe.shards)
        gradients = tree.map(lambda leaf, param: mnp.astype(leaf, param.dtype), gradients, state["params"])
        return updated(recipe, state, state, loss, gradients, flags)

    return _on_ranks(local, ranks)


def _updating_step(recipe: Recipe, rows_apart: bool) -> Step:
    """The step that changes the weights after each part of its rows, by the mean over that part's rows.

    If a weight is NaN or Inf in the end, nothing changes.  The norm that it reports is the root of the mean square of
    the parts' norms.
    """

    def step(state: Any, resident: Any, batch: Any, weights: Array) -> tuple[Any, Any]:
        rows, factor, zero = _rows(resident, batch), _scale_factor(state), np.float32(0)

        def turn(carry: Any, part: Any, number: Any) -> Any:
            total, squares, params, optimiser = carry
            own, counted = part
            key = step_key(recipe, state["step"], number)
            loss, gradients = of_rows(recipe, params, own, counted, key, factor, rows_apart)
            share = mnp.sum(counted)
            mean = mnp.where(share > 0, share, 1.0)
            gradients = tree.map(lambda leaf: apply("after", leaf, loss) / mnp.astype(mean, leaf.dtype), gradients)
            updates, following = recipe.optimiser.update(gradients, optimiser, params)
            changed = optim.apply_updates(params, updates), following
            kept = tree.map(lambda new, old: mnp.where(share > 0, new, old), changed, (params, optimiser))
            squares = [mnp.astype(sum_of_squares(leaf), "float32") + before
                       for leaf, before in zip(tree.leaves(gradients), squares, strict=True)]  # fmt: skip
            return total + loss, squares, *kept

        first = zero, [zero] * len(tree.leaves(state["params"])), state["params"], state["optimiser"]
        loss, squares, params, optimiser = by_turns(recipe.accumulate, turn, first, (rows, weights))
        norm = mnp.sqrt(sum(squares[1:], squares[0]) / np.float32(recipe.accumulate))
        flags = finite((loss, norm, params))[None]
        good = mnp.all(flags > 0)
        kept = _if_good(good, (params, optimiser), (state["params"], state["optimiser"]))
        scale, report = _scale_and_report(state, loss, norm, good, flags)
        return {**state, "params": kept[0], "optimiser": kept[1], "step": state["step"] + 1, "scale": scale}, report

    return step


def _on_ranks(local: Step, ranks: int) -> Step:
    """The step whose ranks each run `local` on their part of the batch."""
    if ranks == 1:
        return local
    split = PartitionSpec(gradient_exchange.AXIS)
    specs = {"params": None, "optimiser": None, "step": None, "scale": None, "unsent": split}

    def step(state: Any, resident: Any, batch: Any, weights: Array) -> tuple[Any, Any]:
        placed = {name: spec if state[name] is not None else None for name, spec in specs.items()}
        mapped = shard_map(
            local, Grid((ranks,), (gradient_exchange.AXIS,)), (placed, None, split, split), (placed, None)
        )
        result: tuple[Any, Any] = mapped(state, resident, batch, weights)
        return result

    return step


def _by_rank(
    rank: Any, shares: Shares, kinds: Sequence[Hashable], compute: Callable[..., LossAndGradients], batch: Any,
    weights: Array,
) -> LossAndGradients:  # fmt: skip
    """What `compute(batch, weights, leader)` makes of the rows of this rank.

    A branch serves all neighbouring ranks of one kind; `leader` is the first of them.
    """
    groups = [[*group] for _, group in itertools.groupby(range(len(kinds)), lambda rank: kinds[rank])]

    def branch(group: list[int]) -> Any:
        count = shares.rows[group[0]]
        return compute(*tree.map(lambda leaf: leaf[:count], (batch, weights)), group[0])

    def branches(groups: list[list[int]]) -> Any:
        if len(groups) == 1:
            return branch(groups[0])
        return cond(rank <= groups[0][-1], lambda: branch(groups[0]), lambda: branches(groups[1:]))

    result: LossAndGradients = branches(groups)
    return result


def _first_turn(turns: Sequence[int], leader: int, rank: Any) -> Any:
    """The number of a rank's first turn, counted over all ranks; the ranks from `leader` to it have as many turns."""
    return sum(turns[:leader]) + (rank - leader) * turns[leader] if leader else rank * turns[0]


def _part_gradients(recipe: Recipe, rows_apart: bool, state: Any) -> Callable[[Any, Any], LossAndGradients]:
    """A function of a part of the rows with its weights, and of the part's number."""
    factor = _scale_factor(state)

    def compute(part: Any, number: Any) -> LossAndGradients:
        rows, weights = part
        key = step_key(recipe, state["step"], number)
        return of_rows(recipe, state["params"], rows, weights, key, factor, rows_apart)

    return compute


def _rows(resident: Any, batch: Any) -> Any:
    """The rows themselves: `batch`, or the rows of `resident` at the places in `batch`."""
    return batch if resident is None else tree.map(lambda leaf: leaf[batch], resident)


def _finite_flag(loss: Array, gradients: Any) -> Array:
    """1.0 if loss and gradients are finite, else 0.0, of shape (1,): the norm is NaN or Inf if a gradient is."""
    return finite((loss, optim.global_norm(gradients)))[None]


def _with_zeros(leaf: Array, rows: int) -> Array:
    return mnp.concatenate([leaf, mnp.zeros((rows, *leaf.shape[1:]), leaf.dtype)])


def updated(recipe: Recipe, after: Any, before: Any, loss: Array, gradients: Any, flags: Array) -> tuple[Any, Any]:
    """The next state and the report; the state stays as it was `before` if anything is NaN or Inf."""
    norm = optim.global_norm(gradients)
    good = mnp.logical_and(mnp.all(flags > 0), mnp.logical_and(mnp.isfinite(loss), mnp.isfinite(norm)))
    if recipe.clip is not None:
        shrunk = mnp.where(norm > recipe.clip, recipe.clip / norm, 1.0)
        gradients = tree.map(lambda leaf: leaf * shrunk, gradients)
    updates, optimiser = recipe.optimiser.update(gradients, before["optimiser"], before["params"])
    changed = {**after, "params": optim.apply_updates(before["params"], updates), "optimiser": optimiser}
    kept = {name: None if changed[name] is None else _if_good(good, changed[name], before[name])
            for name in changed if name in ("params", "optimiser", "unsent")}  # fmt: skip
    scale, report = _scale_and_report(before, loss, norm, good, flags)
    following = {**kept, "step": before["step"] + 1, "scale": scale}
    return {name: following[name] for name in before}, report


def _if_good(good: Array, changed: Any, before: Any) -> Any:
    return tree.map(lambda new, old: mnp.where(good, new, old), changed, before)


def _scale_factor(state: Any) -> Any:
    return None if state["scale"] is None else state["scale"]["factor"]


def _scale_and_report(state: Any, loss: Array, norm: Array, good: Array, flags: Array) -> tuple[Any, dict[str, Any]]:
    report = {"loss": loss, "norm": norm, "good": good, "flags": flags}
    if state["scale"] is None:
        return None, report
    return _rescaled(state["scale"], good), {**report, "scale": _scale_factor(state)}


def _rescaled(scale: Any, good: Array) -> Any:
    """Half after an overflow, double after many steps without one."""
    steps = mnp.where(good, scale["steps"] + 1, 0)
    grows = steps >= SCALE_STEPS
    grown = mnp.where(grows, mnp.minimum(scale["factor"] * 2, SCALE_MAX), scale["factor"])
    return {
        "factor": mnp.where(good, grown, mnp.maximum(scale["factor"] / 2, 1.0)),
        "steps": mnp.where(grows, 0, steps),
    }
