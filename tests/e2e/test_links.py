"""Links between real processes: two workers that cannot connect work together all the same."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from support.processes.commands import PATIENT_S, daemon, environment, wait_for
from support.processes.refusing import dialling_only
from support.processes.site import WORKER

import mesh.numpy as mnp
from mesh import Mesh

NOBODY = 1  # a port that nobody listens on


def tower(x: Any) -> Any:
    """Eight layers whose activations have 1 MiB."""
    for _ in range(8):
        x = mnp.tanh(x @ x) * 0.5
    return x


def test_two_workers_that_cannot_connect_work_together_and_the_plan_says_what_it_costs(tmp_path: Path) -> None:
    env = dialling_only(NOBODY, environment(tmp_path, MESH_NAME="cut"), tmp_path)
    x = np.random.default_rng(3).normal(size=(512, 512)).astype(np.float32) / 16
    with ExitStack() as stack:
        workers = [
            stack.enter_context(daemon(*WORKER, "--name", name, env=env, log=tmp_path / f"{name}.log"))
            for name in ("one", "two")
        ]
        with Mesh.builder().mesh("cut").node(workers[0].address).node_timeout(PATIENT_S).build() as alone:
            expected = alone.run(tower, x)
        both = Mesh.builder().mesh("cut").node(workers[0].address).node(workers[1].address)
        with both.node_timeout(PATIENT_S).build() as mesh:
            results = []

            def says_so() -> bool:
                results.append(mesh.run(tower, x, strategy="pipeline"))
                said = any("cannot connect" in reason for reason in mesh.report().reasons)
                return said and set(mesh.report().workers) == {"one", "two"}

            wait_for(says_so)
            (relayed,) = mesh.report().relayed
            assert {relayed.source, relayed.target} == {"one", "two"}
            assert (relayed.tensors, relayed.size_bytes) == (1, x.nbytes)
            for result in results:
                np.testing.assert_array_equal(result, expected)
