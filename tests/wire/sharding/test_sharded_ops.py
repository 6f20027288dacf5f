"""Every op, its operands split in every way: the same results and gradients as on one device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from support.cases.layouts import GRIDS, layouts
from support.cases.sharded_cases import Case, cases
from support.kept_kernels import native_engine

from wire.ir.arithmetic import by_libraries
from wire.ir.ops import OPS
from wire.ir.verify import verify
from wire.sharding.factors import WITHOUT
from wire.sharding.layout import Axes, Dims
from wire.sharding.partition import partition
from worker.cpu import evaluate
from worker.cpu.engine import ordered
from worker.native.engine import NativeEngine

SHARDED = sorted(
    OPS.keys() - WITHOUT.keys() - {"constraint"}
)  # which names its own grid: tests/wire/sharding/test_partition.py
CASES_MAX = 2  # of an op that are compiled to machine code
WAYS_MAX = 400  # of one case on one grid; of more, that many are tried


@pytest.fixture(scope="module")
def engine() -> Iterator[NativeEngine]:
    made = native_engine()
    yield made
    made.close()


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


def check_bits(case: Case, axes: Axes, specs: dict[str, Dims], engine: NativeEngine) -> None:
    """Raises unless the program, split with every sum in order, has the bits that it has on one device."""
    if by_libraries(case.graph):
        return
    sharded = partition(case.graph, axes, specs, in_order=True)
    one, several = (engine.run(engine.compile(graph), ordered(graph, case.inputs)) for graph in (case.graph, sharded))
    for result, wanted in zip(several, one, strict=True):
        assert result.tobytes() == wanted.tobytes(), f"{case.id} split as {specs}"


@pytest.mark.parametrize("op", SHARDED)
def test_split_in_order_is_the_same_to_the_bit(op: str, engine: NativeEngine) -> None:
    """Some of the cases, in one way each: every way is made of other kernels."""
    chosen = random.Random(op)
    examples = cases(op)
    for case in chosen.sample(examples, min(len(examples), CASES_MAX)):
        rng = random.Random(case.id)
        axes = GRIDS[rng.choice(list(GRIDS))]
        check_bits(case, axes, next(ways(case, axes, rng)), engine)


@pytest.mark.long
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("op", SHARDED)
def test_split_in_order_in_every_way_is_the_same_to_the_bit(op: str, grid: str, engine: NativeEngine) -> None:
    for case in cases(op):
        for specs in ways(case, GRIDS[grid], random.Random(case.id)):
            check_bits(case, GRIDS[grid], specs, engine)


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
