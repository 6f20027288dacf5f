"""Random programs on native workers: the same bits for any number of workers and threads, by every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.random_graphs import COMPLEX, random_graph
from support.compare import same_bits
from support.kept_kernels import native_engine
from support.machines.profiles import random_profiles
from support.machines.run_plan import run_plan

from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import make_plan
from wire.errors import InputError, PlacementError
from wire.ir.dtypes import DTYPES
from wire.ir.graph import WireGraph
from wire.policy.strategies import STRATEGIES, text_of
from worker.cpu.engine import ordered

Compute = Callable[[WireGraph, Mapping[str, NDArray[Any]]], Sequence[NDArray[Any]]]


@pytest.fixture(scope="module")
def computing() -> Iterator[list[Compute]]:
    """By numbers of threads, from 1 on."""
    engines = [native_engine(threads=threads) for threads in (1, 2, 3, 4)]
    yield [
        lambda graph, values, engine=engine: engine.run(engine.compile(graph), ordered(graph, values))
        for engine in engines
    ]
    for engine in engines:
        engine.close()


def native(profiles: Profiles) -> Profiles:
    """The workers with native engines, each on a processor of its own type."""
    workers = [
        replace(
            worker, devices=tuple(replace(device, arithmetic=f"native-2, numpy {number}") for device in worker.devices)
        )
        for number, worker in enumerate(profiles.workers)
    ]
    return replace(profiles, workers=tuple(workers))


def sweep(seed: int, computing: Sequence[Compute]) -> int:
    """How many plans of a random program were made, all with the same bits."""
    case = random_graph(seed, dtypes=[dtype for dtype in DTYPES if dtype not in COMPLEX], matrices=False)
    rng = np.random.default_rng([seed, 15])
    expected = computing[0](case.graph, {**case.inputs, **case.params})
    made = 0
    for strategy in STRATEGIES:
        profiles = native(random_profiles(rng, int(rng.integers(1, 6))))
        try:
            plan = make_plan(case.graph, profiles, text_of(strategy, reproducible=True))
        except (InputError, PlacementError):
            continue  # there is nothing to split, or there are too few workers
        results = run_plan(plan, case.inputs, case.params, computing[int(rng.integers(4))])
        assert all(map(same_bits, results, expected)), f"{strategy} over {len(profiles.workers)} workers:\n{case.graph}"
        made += 1
    return made


@pytest.mark.parametrize("seed", [4, 13, *(pytest.param(seed, marks=pytest.mark.long) for seed in (16, 27))])
def test_a_random_program_has_one_result(seed: int, computing: Sequence[Compute]) -> None:
    assert sweep(seed, computing) >= 3


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 2100, 50))
def test_many_random_programs_have_one_result(first: int, computing: Sequence[Compute]) -> None:
    assert sum(sweep(seed, computing) for seed in range(first, first + 50)) >= 150
