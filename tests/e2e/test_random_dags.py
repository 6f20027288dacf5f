"""Random DAGs over two to five real workers: the same bits as the local cpu engine.

`python tests/e2e/test_random_dags.py COUNT` runs seeds 0 to COUNT - 1 on every mesh size and reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import pytest
from support.cases.random_graphs import RandomGraph, random_graph
from support.compare import same_bits
from support.processes.commands import PATIENT_S

from mesh import Mesh
from worker.cpu import evaluate

SIZES = (2, 3, 4, 5)
SAMPLE = 6
ALL = 1000


def assert_same_bits(mesh: Mesh, case: RandomGraph, seed: int) -> None:
    """The graph cut across every worker, against the whole graph in this process."""
    expected = evaluate(case.graph, case.inputs, case.params)
    found = mesh.run(case.graph, {**case.inputs, **case.params}, strategy="pipeline")
    outputs = found.values() if isinstance(found, Mapping) else (found,)
    assert len(outputs) == len(expected)
    for name, got, wanted in zip(case.graph.output_names, outputs, expected, strict=True):
        assert same_bits(got, wanted), f"seed {seed} output {name}"


@pytest.mark.parametrize("count", SIZES)
def test_distributed_equals_local(count: int) -> None:
    check(count, range(SAMPLE))


@pytest.mark.long
@pytest.mark.parametrize("count", SIZES)
def test_distributed_equals_local_a_thousand_times(count: int) -> None:
    check(count, range(ALL))


def check(count: int, seeds: range) -> None:
    cut = 0
    with Mesh.builder().mesh(f"dags-{count}").local(count, "cpu").node_timeout(PATIENT_S).build() as mesh:
        for seed in seeds:
            assert_same_bits(mesh, random_graph(seed), seed)
            cut += len(mesh.report().workers) > 1
    assert cut > len(seeds) / 2, f"only {cut} of {len(seeds)} graphs were cut"


if __name__ == "__main__":
    for size in SIZES:
        began_s = time.monotonic()
        check(size, range(int(sys.argv[1])))
        print(f"{size} workers: {sys.argv[1]} graphs, the same bits, {time.monotonic() - began_s:.0f} s", flush=True)
