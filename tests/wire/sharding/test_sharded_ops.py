"""Every op, its operands split in every way: the same results and gradients as on one device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from support.cases.layouts import GRIDS, layouts
from support.cases.sharded_cases import Case, cases

from wire.ir.ops import OPS
from wire.ir.verify import verify
from wire.sharding.factors import WITHOUT
from wire.sharding.layout import Axes, Dims
from wire.sharding.partition import partition
from worker.cpu import evaluate

SHARDED = sorted(
    OPS.keys() - WITHOUT.keys() - {"constraint"}
)  # which names its own grid: tests/wire/sharding/test_partition.py
WAYS_MAX = 400  # of one case on one grid; of more, that many are tried


def ways(case: Case, axes: Axes, rng: random.Random) -> Iterator[dict[str, Dims]]:
    """All layouts of a case's inputs, each with some layout of its outputs; in an order that `rng` says."""
    shapes = [array.ndim for array in case.inputs.values()]
    every = list(product(*[layouts(rank, axes) for rank in shapes]))
    for chosen in rng.sample(every, min(len(every), WAYS_MAX)):
        specs = dict(zip(case.inputs, chosen, strict=True))
        for name, kind in case.graph.output_types.items():
            if name not in specs and rng.random() < 0.5:
                specs[name] = rng.choice(layouts(len(kind.shape), axes))
        yield specs


def check(case: Case, axes: Axes, specs: dict[str, Dims]) -> None:
    """Raises unless the sharded program gives what it gives on one device."""
    sharded = partition(case.graph, axes, specs)
    assert sharded.input_types == case.graph.input_types and sharded.output_types == case.graph.output_types
    for result, wanted in zip(evaluate(sharded, case.inputs), case.outputs, strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-12, err_msg=f"{case.id} split as {specs}")


@pytest.mark.parametrize("op", SHARDED)
def test_sharded_is_local(op: str) -> None:
    """One way per case, another for each case and grid."""
    examples = cases(op)
    assert examples, f"{op} has no case in tests/support/cases/sharded_cases.py"
    for case in examples:
        rng = random.Random(case.id)
        axes = GRIDS[rng.choice(list(GRIDS))]
        check(case, axes, next(ways(case, axes, rng)))


@pytest.mark.long
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("op", SHARDED)
def test_sharded_is_local_in_every_way(op: str, grid: str) -> None:
    for case in cases(op):
        for specs in ways(case, GRIDS[grid], random.Random(case.id)):
            check(case, GRIDS[grid], specs)


def test_a_rank_program_is_a_graph_like_any_other() -> None:
    (case, *_) = cases("composite")
    verify(partition(case.graph, GRIDS["2x2"], {next(iter(case.inputs)): (("dp",), ("tp",))}))
