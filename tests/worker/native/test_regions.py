"""Regions: which kernels make one, and that they compute by slices what they compute one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases.cuts import same_bits
from support.kept_kernels import native_engine

import mesh.numpy as mnp
from mesh import nn, trace, vjp
from wire.ir.dtypes import F32
from wire.ir.types import TensorType
from worker.native.steps import CACHE_BYTES, STEPS_MAX, Step, regions_of
from worker.native.threads import Program

HEADS, LENGTH, WIDTH = 12, 256, 16
SCORES = HEADS * LENGTH * LENGTH * 4
assert SCORES > CACHE_BYTES, "attention of this size has a region"


def step(reads: tuple[int, ...], result: int, slices: int = 8, sliced: tuple[int, ...] | None = None) -> Step:
    of_slices = frozenset(reads if sliced is None else sliced)
    return Step(0, (), reads, result, 2 * slices, 0, slices=slices, sliced=of_slices)


LARGE, SMALL = 2 * CACHE_BYTES, CACHE_BYTES // 4
CHAIN = (step((0,), 1), step((1,), 2), step((2,), 3))  # 0 is given, 3 is needed
CUTS: dict[str, tuple[tuple[Step, ...], int, int, list[int]]] = {  # steps, bytes of values, threads, steps of regions
    "kernels by slices": (CHAIN, LARGE, 2, [3]),
    "what fits into the cache as a whole": (CHAIN, SMALL, 2, [1, 1, 1]),
    "slices that do not fit into it": (CHAIN, 16 * CACHE_BYTES, 2, [1, 1, 1]),
    "slices that some threads would have none of": (CHAIN, LARGE, 3, [1, 1, 1]),
    "a kernel of one slice": ((CHAIN[0], step((1,), 2, 1), CHAIN[2]), LARGE, 1, [1, 1, 1]),
    "another number of slices": ((step((0,), 1, 16), step((1,), 2, 24), CHAIN[2]), LARGE, 2, [3]),
    "no common number of slices": ((CHAIN[0], step((1,), 2, 9), CHAIN[2]), LARGE, 1, [1, 1, 1]),
    "a kernel that reads other slices": ((CHAIN[0], CHAIN[1], step((2,), 3, sliced=())), LARGE, 2, [2, 1]),
    "a kernel that reads other slices of what is given": (
        (CHAIN[0], CHAIN[1], step((0, 2), 3, sliced=(2,))), LARGE, 2, [3],
    ),
    "many kernels": (
        tuple([step((at,), at + 1) for at in range(STEPS_MAX + 3)]), CACHE_BYTES, 2, [STEPS_MAX, 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_a_region_has_kernels_that_compute_by_the_same_slices(name: str) -> None:
    steps, size_bytes, threads, expected = CUTS[name]
    types = {value: TensorType((size_bytes // 4,), F32) for value in range(len(steps) + 1)}
    regions = regions_of(steps, types, [len(steps)], threads)
    assert [one for region in regions for one in region.steps] == list(steps)
    assert [len(region.steps) for region in regions] == expected
    for region in regions:
        assert region.bytes <= CACHE_BYTES
        assert all(one.tasks % region.slices == 0 for one in region.steps)


def masked(q: Any, k: Any, v: Any) -> Any:
    return nn.scaled_dot_product_attention(q, k, v, mnp.tril(mnp.ones((LENGTH, LENGTH), bool)))


def backward(q: Any, k: Any, v: Any) -> Any:
    result, back = vjp(masked, q, k, v)
    return [result, *back(result)]


def weights_too(q: Any, k: Any, v: Any) -> Any:
    """A tensor of the region is an output, and another one is read by a kernel that is not in it."""
    weights = nn.softmax(q @ mnp.swapaxes(k, 1, 2), -1)
    scaled = weights * mnp.exp(-weights)
    return [weights, scaled @ v, mnp.sum(weights, 0)]


def turned(q: Any, k: Any, v: Any) -> Any:
    """The second product takes all heads' weights together, and so the other way round."""
    weights = nn.softmax(q @ mnp.swapaxes(k, 1, 2), -1)
    return [mnp.einsum("hqk,hkd->qd", weights, v)]


PROGRAMS = {"attention": masked, "and backward": backward, "weights too": weights_too, "turned": turned}


def given() -> list[Any]:
    random = np.random.default_rng(5)
    return [random.standard_normal((HEADS, LENGTH, WIDTH), dtype=np.float32) for _ in range(3)]


@pytest.mark.parametrize(
    ("name", "threads"),
    [  # the default run has two numbers of threads for each program, and each number for two
        pytest.param(name, threads, marks=[] if (place + number) % 2 else pytest.mark.long)
        for place, name in enumerate(PROGRAMS)
        for number, threads in enumerate((1, 2, 3, 5))
    ],
)
def test_regions_have_the_bits_of_kernels_one_after_the_other(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, programs = native_engine(threads=threads), list[Program]()
    run = engine._threads.run

    def noted(program: Program, *more: Any) -> bool:
        programs.append(program)
        return run(program, *more)

    monkeypatch.setattr(engine._threads, "run", noted)
    executable, arrays = engine.compile(trace(PROGRAMS[name], *given())), given()
    try:
        results = engine.run(executable, arrays)
        assert same_bits(engine.run(executable, arrays), results)
        engine.watch(lambda span: None)  # each kernel is timed, so none is in a region
        apart = engine.run(executable, arrays)
    finally:
        engine.close()
    assert same_bits(results, apart)
    by_slices, _, one_by_one = (len(program.rows) for program in programs)
    assert (by_slices < one_by_one) == (threads != 5), "5 threads would not share 12 heads evenly"


def test_a_region_takes_memory_for_the_slices_of_its_threads_alone() -> None:
    engine = native_engine()
    executable, arrays = engine.compile(trace(masked, *given())), given()
    engine.run(executable, arrays)
    (kernels,) = [call.kernel for call in executable.calls]
    engine.close()
    assert kernels._sequenced.block_bytes == 0
    assert kernels._sequenced.program.scratch_bytes < SCORES
