"""Two worker processes, one throttled to a third of the other, with other graphs of one program in each call."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from support.cases.unlike_ranks import X, Y, program, shared
from support.processes.commands import PATIENT_S, daemon, environment

from mesh import Mesh, PartitionSpec, Ranks
from wire.passes.unroll_spmd import unroll
from worker.cpu import evaluate

FLOPS_PER_S = {"slow": 1e4, "fast": 3e4}  # so that a call is computing, however busy the machine


@pytest.mark.long  # the default run has it simulated: tests/sim/test_spmd_and_mpmd.py
def test_ranks_with_other_rows_on_unlike_workers_have_the_bits_of_one_device(tmp_path: Path) -> None:
    graph = program(shared((6, 2)), 2, out=PartitionSpec())
    right = evaluate(unroll(graph), {"x": X, "y": Y})
    with contextlib.ExitStack() as stack:
        builder = Mesh.builder().mesh("unlike").node_timeout(PATIENT_S)
        for name, flops_per_s in FLOPS_PER_S.items():
            words = ("worker", "--local", "--mesh", "unlike", "--name", name, "--device", "cpu", "--port", "0")
            env, throttle = environment(tmp_path / name), f"flops={flops_per_s:g}"
            found = stack.enter_context(daemon(*words, "--throttle", throttle, env=env, log=tmp_path / f"{name}.log"))
            builder = builder.node(found.address)
        mesh = stack.enter_context(builder.build())
        preview = mesh.plan(graph, X, Y, strategy=Ranks())
        (gang,) = preview.gangs
        assert [rank["worker"] for rank in gang["ranks"]] == ["fast", "slow"], "most rows on the fastest"
        flops = {part["worker"]: part["flops"] for part in preview.data["parts"]}
        assert flops["fast"] > 2 * flops["slow"]
        for _ in range(3):
            for one, other in zip(mesh.run(graph, X, Y, strategy=Ranks()).values(), right, strict=True):
                np.testing.assert_array_equal(one, other)
        assert set(mesh.report().workers) == {"slow", "fast"}
