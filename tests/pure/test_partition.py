"""The partitioner against brute force: on small graphs it finds the cheapest of all assignments."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.brute_force import best_of_all
from support.profiles import random_profiles
from support.random_graphs import random_graph

from coordinator.cost import CostModel
from coordinator.partition import best_assignment
from wire.graph import WireGraph

NODES_MAX = 12
GRAPHS = 300


def small_graphs(count: int) -> Iterator[tuple[int, WireGraph]]:
    """Random DAGs of at most 12 nodes, of which at least 4 compute something."""
    seed = 0
    while count:
        graph = random_graph(seed, 4, 11).graph
        if len(graph) <= NODES_MAX and sum(node.op not in ("input", "param", "const") for node in graph) >= 4:
            yield seed, graph
            count -= 1
        seed += 1


def model_for(seed: int, graph: WireGraph, workers: int) -> CostModel:
    rng = np.random.default_rng([seed, workers])
    roomy = CostModel(graph, random_profiles(rng, workers))
    if rng.random() < 0.6:
        return roomy
    one = max(roomy.predict([able] * len(roomy.units)).memory_bytes[able] for able in range(workers))
    return CostModel(graph, random_profiles(rng, workers, memory_bytes=int(one * rng.uniform(0.4, 1.1)) + 1))


def test_small_graphs_get_the_cheapest_of_all_assignments() -> None:
    cut = 0
    for seed, graph in small_graphs(GRAPHS):
        for workers in (2, 3):
            model = model_for(seed, graph, workers)
            found, assignment = best_assignment(model, "auto")
            best = best_of_all(model)
            assert found.objective[:2] == pytest.approx(best.objective[:2], rel=1e-12), (
                f"seed {seed}, {workers} workers"
            )
            assert model.predict(assignment).objective == found.objective
            cut += len(set(assignment)) > 1
    assert cut >= GRAPHS // 2, "too few of the cases are worth cutting"
