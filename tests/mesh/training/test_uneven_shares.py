"""Shares of a batch that are not even: which rows each rank has, and that a step by them makes the same weights."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.cases.training import first_state as first_weights
from support.cases.training import loss_of_rows as loss

import mesh.numpy as mnp
from mesh import optim, random, tree
from mesh.functions.step_trace import Stepping
from mesh.numpy.promotion import asarray
from mesh.training.data import ArrayData, Cursor, Rows, Shares, padded
from mesh.training.gradient_exchange import _tree_sum, blocks_of
from mesh.training.step import first_state, training_step
from mesh.training.step_config import Recipe, TopK
from mesh.training.trainer import initial_state
from mesh.training.worker_group import LocalGroup, without_ranks
from wire.policy.batch_shares import Portions, ranks_of

RNG = np.random.default_rng(4)
X = RNG.normal(size=(37, 8)).astype(np.float32)
Y = np.sin(X[:, :4])
ROWS = 16  # and 5 in the last step of an epoch
UNLIKE: tuple[tuple[int, ...], ...] = ((5, 3), (2, 1, 1), (6, 5, 1), (13, 1, 1, 1))


def mean_loss(params: Any, x: Any, y: Any) -> Any:
    return mnp.mean(loss(params, x, y))


def noisy(params: Any, x: Any, y: Any, key: Any) -> Any:
    return loss(params, x + 0.1 * random.normal(key, x.shape), y)


@cache
def trained(portions: Portions, own: Any = loss, **wishes: Any) -> tuple[list[float], Any]:
    """The losses and the weights of two epochs."""
    recipe = Recipe(own, optim.adam(1e-2), **wishes)
    ranks, shares = ranks_of(portions), Shares.of(recipe, portions, ROWS)
    data = ArrayData((X, Y), ROWS, True, 0, False)

    def given(rows: Rows) -> Any:
        return None, *padded(rows, shares)

    step = training_step(recipe, ranks, False, True, None if shares.even else shares)
    state = first_state(recipe, initial_state(recipe, first_weights()["layers"])["params"], ranks)
    made = LocalGroup(Stepping(step, state, given(next(data.epoch(Cursor()))), "single"), given)
    losses = [made.step(rows).result() for epoch in range(2) for rows in data.epoch(Cursor(epoch))]
    leaves = tree.leaves(without_ranks(made.state())["params"])
    return [float(each["loss"]) for each in losses], np.concatenate([np.ravel(leaf) for leaf in leaves])


@pytest.mark.parametrize("portions", UNLIKE)
@pytest.mark.parametrize(
    "wishes", [{}, {"accumulate": 3}, {"own": mean_loss}, {"bucket_bytes": 100}], ids=lambda each: ",".join(each)
)
def test_a_step_by_unlike_shares_makes_the_weights_of_even_ones(portions: Portions, wishes: dict[str, Any]) -> None:
    losses, weights = trained(1, **wishes)
    found = trained(portions, **wishes)
    np.testing.assert_allclose(found[0], losses, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1], weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("portions", [(5, 3), (4, 3, 1), (2, 1, 1)])
@pytest.mark.parametrize("own", [loss, noisy])
def test_whole_shards_give_the_same_bits_whoever_has_how_many(portions: Portions, own: Any) -> None:
    losses, weights = trained(1, own, shards=8)
    found = trained(portions, own, shards=8)
    assert found[0] == losses and np.array_equal(found[1], weights)


@pytest.mark.parametrize("compression", ["f16", TopK(0.5)])
def test_compressed_gradients_of_unlike_shares_are_those_of_all_rows(compression: Any) -> None:
    losses, weights = trained(2, compression=compression)
    found = trained((11, 5), compression=compression)
    np.testing.assert_allclose(found[0], losses, rtol=0, atol=0.05)
    np.testing.assert_allclose(found[1], weights, rtol=0, atol=0.05)


@pytest.mark.parametrize("shards", [0, 8])
@pytest.mark.parametrize("portions", [1, 3, *UNLIKE])
def test_rows_are_where_their_rank_takes_them_and_padding_weighs_nothing(shards: int, portions: Portions) -> None:
    recipe = Recipe(loss, optim.sgd(0.1), shards=0 if portions == (13, 1, 1, 1) else shards)
    shares = Shares.of(recipe, portions, ROWS)
    for rows in ArrayData((np.arange(100, 121),), ROWS, False, 0, False).epoch(Cursor()):
        (found,), weights = padded(rows, shares)
        assert np.array_equal(found[weights > 0], rows.batch[0]) and weights.sum() == pytest.approx(1)
        assert set(found[weights == 0]) <= {rows.batch[0][0]}
        taken = [mine[: shares.rows[rank]] for rank, mine in enumerate(weights.reshape(ranks_of(portions), -1))]
        assert np.count_nonzero(np.concatenate(taken)) == rows.counted


def test_units_are_of_rows_or_of_whole_shards_and_every_one_is_somebodys() -> None:
    plain, sharded = Recipe(loss, optim.sgd(0.1)), Recipe(loss, optim.sgd(0.1), shards=8)
    assert Shares.of(plain, (12, 4), 512).rows == (384, 128)
    assert Shares.of(plain, (2, 1), 53) == Shares((35, 18), (1, 1))
    assert Shares.of(sharded, (5, 3), 512) == Shares((320, 192), (5, 3))
    assert Shares.of(Recipe(loss, optim.sgd(0.1), accumulate=4), (3, 1), 16) == Shares((12, 4), (4, 4))
    assert Shares.of(plain, (8, 8), 512) == Shares.of(plain, 2, 512)


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 7, 8, 12, 16, 31, 56])
def test_whoever_adds_up_which_branches_of_the_tree_its_shape_is_the_same(shards: int) -> None:
    rng = np.random.default_rng(shards)
    terms = [asarray(each) for each in rng.normal(0, 10.0 ** rng.uniform(-3, 3, shards)).astype(np.float32)]

    def added(first: int, end: int) -> Any:
        return _tree_sum({(0, at): terms[first + at] for at in range(end - first)}, end - first)

    expected = np.asarray(added(0, shards))
    for _ in range(4):
        ends = sorted({0, shards, *rng.integers(0, shards + 1, 3).tolist()})
        blocks = [block for first, end in itertools.pairwise(ends) for block in blocks_of(first, end - first, shards)]
        spans = [(at << level, min((at + 1) << level, shards)) for level, at in blocks]
        assert [first for first, _ in spans] == [0, *(end for _, end in spans)][:-1] and spans[-1][1] == shards
        known = {block: added(*span) for block, span in zip(blocks, spans, strict=True)}
        assert np.array_equal(np.asarray(_tree_sum(known, shards)), expected)


def test_who_has_a_whole_branch_sends_one_sum() -> None:
    assert [len(blocks_of(first, count, 16)) for first, count in ((0, 12), (12, 4), (0, 16), (3, 3))] == [2, 1, 1, 2]


@pytest.mark.parametrize(
    ("portions", "wishes", "branches"),
    [((2, 1, 1), {}, 1), ((3, 2, 1), {}, 2), ((6, 1, 1), {"shards": 8}, 1), ((4, 3, 1), {"shards": 8}, 2)],
)
def test_ranks_in_a_row_with_as_many_rows_share_a_branch(
    portions: Portions, wishes: dict[str, Any], branches: int
) -> None:
    recipe, ranks = Recipe(loss, optim.sgd(0.1), **wishes), ranks_of(portions)
    given = padded(Rows((X[:ROWS], Y[:ROWS]), ROWS, Cursor()), Shares.of(recipe, portions, ROWS))
    step = training_step(recipe, ranks, False, False, Shares.of(recipe, portions, ROWS))
    state = first_state(recipe, initial_state(recipe, first_weights()["layers"])["params"], ranks)
    graph = Stepping(step, state, (None, *given), "single").graph
    body = next(node for node in graph.nodes if node.op == "spmd").attrs["body"]
    assert conds(body) == branches


def conds(graph: Any) -> int:
    """How many branches are one inside of the other."""
    inner = [node.attrs["otherwise"] for node in graph.nodes if node.op == "cond"]
    return 1 + max(map(conds, inner)) if inner else 0
