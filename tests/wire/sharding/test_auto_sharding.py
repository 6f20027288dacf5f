"""auto_sharding: the best of all choices where they are few, else a search that says so."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from support.cases.layouts import PAIR, SQUARE, layouts

import mesh
import mesh.numpy as mnp
from mesh import PartitionSpec as P
from wire.errors import InputError, PlacementError
from wire.sharding.auto import choose
from wire.sharding.cost import cost_of
from wire.sharding.op_cost import Rates
from wire.sharding.partition import partition

RATES = Rates(flops_per_s=1e9, bytes_per_s=1e9, collective_s=1e-5)
SLOW_LINK = Rates(flops_per_s=1e9, bytes_per_s=1e3, collective_s=1.0)
GRID = mesh.Grid(2, "tp")


def shapes(*dims: tuple[int, ...]) -> list[mesh.ShapeDtype]:
    return [mesh.ShapeDtype(shape) for shape in dims]


def mlp(x: Any, w: Any, v: Any) -> Any:
    return mesh.nn.relu(x @ w) @ v


@pytest.mark.parametrize(
    ("batch", "width", "hidden"), [(64, 8, 16), (2, 32, 64), (1, 64, 64), (6, 6, 6)], ids=lambda size: str(size)
)
def test_what_is_proven_is_the_best_of_all(batch: int, width: int, hidden: int) -> None:
    graph = mesh.trace(mlp, *shapes((batch, width), (width, hidden), (hidden, width)))
    choice = choose(graph, PAIR, RATES)
    assert choice.proven and choice.tried <= 27

    def seconds(specs: dict[str, Any]) -> float:
        return cost_of(partition(graph, PAIR, specs, RATES)).seconds(RATES)

    every = [dict(zip("xwv", chosen, strict=True)) for chosen in product(layouts(2, PAIR), repeat=3)]
    assert choice.seconds == min(map(seconds, every)) == seconds(dict(choice.specs))


def test_many_rows_are_split_by_rows_and_wide_layers_by_features() -> None:
    (rows, *weights) = mesh.auto_sharding(mlp, GRID, *shapes((512, 8), (8, 8), (8, 8)), rates=RATES).specs
    assert rows == P("tp", None) and weights == [P(None, None)] * 2
    wide = mesh.auto_sharding(mlp, GRID, *shapes((1, 256), (256, 1024), (1024, 256)), rates=RATES)
    assert wide.proven and wide.specs[1:] == (P(None, "tp"), P("tp", None))
    assert wide.seconds < wide.alone_s


def test_over_a_slow_link_nothing_is_sent() -> None:
    choice = mesh.auto_sharding(lambda x: mnp.sum(x), GRID, *shapes((8, 8)), rates=SLOW_LINK)
    assert choice.sent_bytes == 0


def test_memory_makes_it_split_and_too_little_of_it_is_said() -> None:
    examples = shapes((64, 256), (256, 256), (256, 256))
    roomy = mesh.auto_sharding(mlp, GRID, *examples, rates=RATES)
    tight = mesh.auto_sharding(mlp, GRID, *examples, rates=RATES, memory_bytes=400_000)
    assert roomy.held_bytes > 400_000 >= tight.held_bytes
    with pytest.raises(PlacementError, match="may hold 1000"):
        mesh.auto_sharding(mlp, GRID, *examples, rates=RATES, memory_bytes=1000)


def test_many_choices_are_searched_and_layers_of_one_shape_are_one() -> None:
    def deep(x: Any, layers: Any) -> Any:
        for w, v in layers:
            x = x + mlp(x, w, v)
        return x

    layers = [tuple(shapes((256, 1024), (1024, 256))) for _ in range(4)]
    choice = mesh.auto_sharding(deep, GRID, mesh.ShapeDtype((1, 256)), layers, rates=RATES)
    assert not choice.proven and choice.tried < 100
    assert choice.specs[1] == [(P(None, "tp"), P("tp", None))] * 4
    assert choice.seconds < choice.alone_s


def test_a_search_is_no_worse_than_anything_it_began_with() -> None:
    graph = mesh.trace(lambda x, w: mesh.nn.relu(x @ w), *shapes((8, 6), (6, 8)))
    best = choose(graph, SQUARE, RATES)
    searched = choose(graph, SQUARE, RATES, tries_max=30)
    assert best.proven and not searched.proven and searched.tried <= 30
    assert best.seconds <= searched.seconds <= choose(graph, SQUARE, RATES, tries_max=1).seconds
    assert f"by heuristic, {searched.tried} tried" in str(searched)
    assert f"the best of all {best.tried}" in str(best)


def test_the_choice_is_applied_and_what_the_function_asks_for_is_kept() -> None:
    def fn(x: Any, w: Any) -> Any:
        return x @ mesh.shard(w, P("tp"), GRID)

    choice = mesh.auto_sharding(fn, GRID, *shapes((4, 6), (6, 8)), rates=RATES)
    x, w = np.ones((4, 6), np.float32), np.ones((6, 8), np.float32)
    np.testing.assert_array_equal(np.asarray(choice.applied(fn)(x, w)), x @ w)
    asked = [node.attrs["spec"] for node in mesh.trace(choice.applied(fn), x, w).nodes if node.op == "constraint"]
    assert "tp -" in asked and len(asked) in (2, 3)


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (Rates(flops_per_s=0), "flops_per_s of the rates is a finite number from"),
        (Rates(bytes_per_s=-1), "bytes_per_s of the rates is a finite number from"),
        (Rates(collective_s=math.nan), "collective_s of the rates is a finite number from 0"),
        (Rates(cast(Any, "fast")), "flops_per_s of the rates is a number"),
        (3, "Make them: wire.sharding.op_cost.Rates("),
    ],
)
def test_rates_that_no_rank_has_are_refused(rates: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        mesh.auto_sharding(mlp, GRID, *shapes((8, 8), (8, 8), (8, 8)), rates=rates)
