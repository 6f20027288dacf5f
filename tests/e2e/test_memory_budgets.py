"""A worker's budget: what exceeds it is refused with need and have before it is allocated, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.processes.commands import COMES_TRUE_S, PATIENT_S

import mesh.numpy as mnp
from coordinator.calls.state import INPUTS_BYTES_MAX
from mesh import Mesh, scan
from mesh.errors import PlacementError
from wire.limits import MIB
from wire.system.memory import default_budget
from worker.config import WorkerConfig

ENGINES = ["native", pytest.param("wgsl", marks=needs_adapter)]
BUDGET = 24  # MiB
WORDS = MIB // 4  # of a MiB


def ones(mib: int) -> Any:
    return np.ones(mib * WORDS, np.float32)


def square_of_outer(x: Any) -> Any:
    y = x[:, None] * x[None, :]
    return mnp.sum(y @ y)


def added(*terms: Any) -> Any:
    return sum(map(mnp.sum, terms))


def counted(x: Any) -> Any:
    return scan(lambda c, _: (c + 1, c), x, None, length=32)[1]


def session_of(mesh: Mesh, mib: int) -> Any:
    return mesh.session(lambda state, x: (state + x, mnp.sum(state[:4])), ones(mib), np.float32(1))


def stepped(session: Any) -> float:
    with session:
        return float(session.step(np.float32(1)).result(COMES_TRUE_S))


EXCEEDING: dict[str, Callable[[Mesh], Any]] = {
    "a weight": lambda mesh: mesh.run(mnp.sum, mesh.put(ones(32))),
    "weights together": lambda mesh: mesh.run(added, *(mesh.put(n * ones(9)) for n in (1, 2, 3))),
    "an input": lambda mesh: mesh.run(mnp.sum, ones(32)),
    "what is made on the way": lambda mesh: mesh.run(square_of_outer, np.ones(2048, np.float32)),
    "what is sorted": lambda mesh: mesh.run(lambda x: mnp.sum(mnp.sort(x * mnp.arange(8.0)[:, None])), ones(2)),
    "a result": lambda mesh: mesh.run(lambda x: x * mnp.arange(32.0)[:, None], ones(1)),
    "results together": lambda mesh: mesh.run(lambda x: (x + 1, x + 2, x + 3), ones(7)),
    "the rows of a loop": lambda mesh: mesh.run(counted, ones(1)),
    "a state": lambda mesh: stepped(session_of(mesh, 32)),
    "the values of a state that steps in flight need": lambda mesh: stepped(session_of(mesh, 10)),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_what_exceeds_a_budget_is_refused_and_everything_else_goes_on(engine: str) -> None:
    with Mesh.builder().local(1, engine=engine, max_memory=f"{BUDGET}MiB").node_timeout(PATIENT_S).build() as mesh:
        pids = [node.pid for node in mesh.nodes]
        with session_of(mesh, 1) as session:
            assert float(session.step(np.float32(1)).result(COMES_TRUE_S)) == 4
            for what, make in EXCEEDING.items():
                with pytest.raises(PlacementError, match="Raise --max-memory by") as refused:
                    make(mesh)
                need, have = map(float, re.findall(r"needs ([\d.]+) MiB and has ([\d.]+) MiB", str(refused.value))[0])
                assert need > have, what
                assert have == BUDGET, what
                assert float(mesh.run(mnp.sum, ones(1))) == WORDS, what
            assert float(session.step(np.float32(1)).result(COMES_TRUE_S)) == 8, "the state is what it was"
        assert [node.pid for node in mesh.nodes] == pids


@pytest.mark.parametrize("engine", ENGINES)
def test_models_that_do_not_fit_together_take_turns(engine: str) -> None:
    """Each has 14 MiB of weights.  Meanwhile the state of a session is what it was."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.01, (1024, 14 * WORDS // 1024)).astype(np.float32) for _ in range(2)]
    x = rng.normal(size=(2, 1024)).astype(np.float32)
    with Mesh.builder().local(1, engine=engine, max_memory=f"{BUDGET}MiB").node_timeout(PATIENT_S).build() as mesh:
        handles = [mesh.put(array) for array in weights]
        with session_of(mesh, 1) as session:
            for call in range(6):
                made = mesh.run(lambda w, x: mnp.tanh(x @ w), handles[call % 2], x)
                np.testing.assert_allclose(np.asarray(made), np.tanh(x @ weights[call % 2]), rtol=1e-4, atol=1e-4)
                assert {part.engine for worker in mesh.report().workers.values() for part in worker.parts} == {engine}
                assert float(session.step(np.float32(1)).result(COMES_TRUE_S)) == 4 * (1 + call)


def test_inputs_of_calls_that_wait_take_no_shared_memory() -> None:
    """Twenty-four calls of 16 MiB would take 384 MiB: those that there is no room for wait for their turn."""
    x, w = ones(16), np.full((500, 500), 1e-3, np.float32)

    def slow(x: Any, w: Any) -> Any:
        product = w
        for _ in range(20):
            product = product @ w
        return mnp.sum(x) + mnp.sum(product)

    with Mesh.builder().mesh("waiting").local(1, ["native"]).node_timeout(PATIENT_S).build() as mesh:
        expected = mesh.run(slow, x, w)
        folder, most = mesh._async._backend.coordinator._shared.path, 0
        jobs = [mesh.submit(slow, x, w) for _ in range(24)]
        while not all(job.done() for job in jobs):
            most = max(most, sum(size_of(each) for each in folder.iterdir()))
        assert all(job.result(COMES_TRUE_S) == expected for job in jobs)
    assert 16 * MIB <= most <= INPUTS_BYTES_MAX + 17 * MIB  # and w, which lies there as content


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_workers_that_were_started_together_have_half_of_the_machines_memory_between_them() -> None:
    with Mesh.builder().mesh("shared").local(3, "cpu").build() as mesh:
        shares = [device.memory_bytes for node in mesh.nodes for device in node.devices]
    assert shares == [default_budget() // 3] * 3
    assert WorkerConfig(sharers=3).blob_memory_bytes == default_budget() // 3
