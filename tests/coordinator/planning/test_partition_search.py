"""The partitioner against brute force: on small graphs it finds the cheapest of all assignments, to the last bit.

`python tests/coordinator/planning/test_partition_search.py COUNT` checks COUNT graphs of up to 12 computing nodes and
reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.brute_force import best_of_all
from support.cases.random_graphs import big_graph, random_graph
from support.machines.profiles import alike_profiles, device, near, random_profiles, worker

import mesh
import mesh.numpy as mnp
from coordinator.planning.model.cost_model import Assignment, CostModel, Prediction
from coordinator.planning.model.liveness import DUPLICATED
from coordinator.planning.placement.partition import EXACT_ASSIGNMENTS_MAX, Partitioner
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph

NODES_MAX = 12
GRAPHS = 300


def small_graphs(count: int) -> Iterator[tuple[int, WireGraph]]:
    """Random DAGs of at most 12 nodes, of which at least 4 compute something."""
    seed = 0
    while count:
        graph = random_graph(seed, 4, 11).graph
        if len(graph) <= NODES_MAX and computing(graph) >= 4:
            yield seed, graph
            count -= 1
        seed += 1


def larger_graphs(count: int, least: int = 5) -> Iterator[tuple[int, WireGraph]]:
    """Random DAGs of `least` to 12 nodes that compute something, besides those that do not."""
    seed = 0
    while count:
        graph = random_graph(seed, least, NODES_MAX).graph
        if least <= computing(graph) <= NODES_MAX:
            yield seed, graph
            count -= 1
        seed += 1


def computing(graph: WireGraph) -> int:
    return sum(node.op not in DUPLICATED for node in graph)


def model_for(seed: int, graph: WireGraph, workers: int) -> CostModel:
    """The graph on made-up machines; in four cases of ten with memory for about half of it or all of it."""
    rng = np.random.default_rng([seed, workers])
    make = random_profiles if rng.random() < 0.7 else alike_profiles
    roomy = CostModel(graph, make(np.random.default_rng(seed), workers))
    if rng.random() < 0.6:
        return roomy
    one = max(roomy.predict([able] * len(roomy.index.units)).memory_bytes[able] for able in range(workers))
    budget = int(one * rng.uniform(0.4, 1.1)) + 1
    return CostModel(graph, make(np.random.default_rng(seed), workers, memory_bytes=budget))


def assert_cheapest(seed: int, graph: WireGraph, workers: int) -> tuple[Prediction, Assignment]:
    model = model_for(seed, graph, workers)
    assert len(model.profiles.workers) ** len(model.index.units) <= EXACT_ASSIGNMENTS_MAX
    found, assignment = Partitioner(model, predictions_max=EXACT_ASSIGNMENTS_MAX).auto
    assert found.objective == best_of_all(model).objective, f"seed {seed}, {workers} workers"
    assert model.predict(assignment) == found
    return found, assignment


@pytest.mark.parametrize("graphs", [GRAPHS // 4, pytest.param(GRAPHS, marks=pytest.mark.long)])
def test_small_graphs_get_the_cheapest_of_all_assignments(graphs: int) -> None:
    cut = tight = 0
    for seed, graph in small_graphs(graphs):
        for workers in (2, 3):
            found, assignment = assert_cheapest(seed, graph, workers)
            cut += len(set(assignment)) > 1
            tight += not found.fits
    assert cut >= graphs // 2, "too few of the cases are worth cutting"
    assert tight >= graphs // 10, "too few of the cases lack memory"


def test_graphs_of_up_to_twelve_computing_nodes_too() -> None:
    for seed, graph in larger_graphs(60):
        assert_cheapest(seed, graph, 2)


@pytest.mark.long
def test_graphs_of_up_to_twelve_computing_nodes_on_two_and_three_workers() -> None:
    check(GRAPHS)


def check(count: int) -> None:
    for seed, graph in larger_graphs(count):
        for workers in (2, 3):
            assert_cheapest(seed, graph, workers)


def weights(*sizes: int) -> list[Any]:
    """Of layers from size to size."""
    return [np.ones(shape, np.float32) for shape in pairwise(sizes)]


def dense(x: Any, layers: list[Any]) -> Any:
    return reduce(lambda value, layer: mnp.tanh(value @ layer), layers, x)


def skipping(x: Any, layers: list[Any]) -> Any:
    """Down and up again, with what was met on the way down added on the way up."""
    met = [x := mnp.tanh(x @ layer) for layer in layers[:3]]
    for layer in layers[3:]:
        x = mnp.tanh(x @ layer) + met.pop()
    return x


def attending(x: Any, layers: list[Any]) -> Any:
    for _ in range(4):
        query, key, value = (x @ each for each in layers[:3])
        x = mesh.nn.softmax(query @ key.mT) @ value + x
        x = mesh.nn.gelu(x @ layers[3]) @ layers[4] + x
    return x


def apart(x: Any, layers: list[Any]) -> Any:
    return dense(x, layers[:1] * 5).sum(-1) + dense(x, layers[1:] * 5).sum(-1)


PROGRAMS: dict[str, Callable[[], WireGraph]] = {
    "layers of one size": lambda: mesh.trace(dense, np.ones((32, 256), np.float32), weights(*[256] * 9)),
    "a bottleneck": lambda: mesh.trace(dense, np.ones((32, 512), np.float32), weights(512, 256, 16, 256, 512)),
    "skips": lambda: mesh.trace(skipping, np.ones((64, 256), np.float32), weights(256, 128, 64, 32, 32, 64, 128)),
    "attention": lambda: mesh.trace(
        attending, np.ones((32, 64), np.float32), weights(*[64] * 4) + weights(64, 256, 64)
    ),
    "two branches": lambda: mesh.trace(apart, np.ones((64, 64), np.float32), weights(64, 64, 64)),
    "a tower": lambda: big_graph(400),
    "a random one": lambda: random_graph(3, 60, 80).graph,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_more_is_sent_than_between_equal_slices_for_as_many_workers(program: str) -> None:
    graph = PROGRAMS[program]()
    for count in (2, 3, 4):
        model = CostModel(graph, near(*(worker(number, device(0, 50.0, 10.0)) for number in range(count))))
        for strategy in ("pipeline", "auto"):
            assignment = Partitioner(model).best(strategy)[1]
            used = len(set(assignment))
            assert strategy == "auto" or used == count
            slices = [unit * used // len(assignment) for unit in range(len(assignment))]
            assert model.predict(assignment).cut_bytes <= model.predict(slices).cut_bytes, (strategy, count)


def test_one_worker_gets_a_graph_of_any_depth() -> None:
    builder = GraphBuilder()
    last = builder.input("x", (), F32)
    for _ in range(5000):
        last = builder.add("exp", last)
        last = builder.add("neg", last)
    model = CostModel(builder.build([last]), alike_profiles(np.random.default_rng(0), 1))
    found, assignment = Partitioner(model).best("auto")
    assert assignment == [0] * 10_000
    assert found == model.predict(assignment)


def test_a_prefix_bounds_whatever_continues_it() -> None:
    for seed in range(60):
        graph = random_graph(seed).graph
        model = model_for(seed, graph, 3)
        rng = np.random.default_rng(seed)
        assignment = [int(rng.choice(able)) for able in model.able]
        before = model.predict([])
        for length in range(1, len(assignment) + 1):
            after = model.predict(assignment[:length])
            for less, more in zip(before.objective, after.objective, strict=True):
                assert less <= more, seed
            before = after


if __name__ == "__main__":
    began_s = time.monotonic()
    check(int(sys.argv[1]))
    print(
        f"{sys.argv[1]} graphs on 2 and 3 workers, the cheapest of all, {time.monotonic() - began_s:.0f} s", flush=True
    )
