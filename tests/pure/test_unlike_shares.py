"""Shares of a batch that are not even: which rows each rank has, and that a step by them makes the same weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from support.training import first_state as first_weights

import mesh.numpy as mnp
from mesh import optim, random, tree
from mesh.stepping import Stepping
from mesh.training.data import ArrayData, Cursor, Rows, Shares, padded
from mesh.training.formation import Alone, together
from mesh.training.recipe import Recipe, TopK
from mesh.training.step import first_state, training_step
from mesh.training.trainer import together_first
from wire.portions import Portions, ranks_of

RNG = np.random.default_rng(4)
X = RNG.normal(size=(37, 8)).astype(np.float32)
Y = np.sin(X[:, :4])
ROWS = 16  # and 5 in the last step of an epoch
UNLIKE: tuple[tuple[int, ...], ...] = ((5, 3), (2, 1, 1), (6, 5, 1), (13, 1, 1, 1))


def loss(params: Any, x: Any, y: Any) -> Any:
    """One per row."""
    for layer in params[:-1]:
        x = mnp.tanh(x @ layer["w"] + layer["b"])
    return mnp.mean((x @ params[-1]["w"] + params[-1]["b"] - y) ** 2, axis=1)


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

    step = training_step(recipe, ranks, False, True, None if shares.alike else shares)
    state = first_state(recipe, together_first(recipe, first_weights()["layers"])["params"], ranks)
    made = Alone(Stepping(step, state, given(next(data.epoch(Cursor()))), "single"), given)
    told = [made.step(rows).result() for epoch in range(2) for rows in data.epoch(Cursor(epoch))]
    leaves = tree.leaves(together(made.state())["params"])
    return [float(each["loss"]) for each in told], np.concatenate([np.ravel(leaf) for leaf in leaves])


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
