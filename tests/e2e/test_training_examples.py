"""Training on real worker processes: the examples, which assert their own numbers, and the bits of virtual shards."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.training import first_state, loss_of
from support.processes.commands import PATIENT_S

from mesh import DistributedTrainer, Mesh, optim, tree
from mesh.training import Callback, StepReport

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_three_workers_fit_a_sine() -> None:
    assert example("fit_sine")["main"]() < 1e-3


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_digits_are_learnt_although_a_worker_is_killed() -> None:
    pytest.importorskip("sklearn")
    assert example("digits")["main"]() > 0.93


class Killing(Callback):
    """kill -9 for a worker after the third step."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def on_step(self, report: StepReport) -> None:
        if report.step == 3:
            os.kill(self.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_shards_give_the_same_bits_on_any_number_of_processes_with_one_killed() -> None:
    chance = np.random.default_rng(3)
    x = chance.normal(size=(53, 8)).astype(np.float32)
    y = np.sin(x[:, :4])

    def bits(workers: int, killed: bool) -> list[bytes]:
        found = DistributedTrainer(loss_of, first_state()["layers"], optimizer=optim.adam(1e-2), deterministic=True)
        if not workers:
            found.fit((x, y), epochs=3, batch_size=16)
        else:
            with Mesh.builder().local(workers, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
                callbacks = [Killing(mesh.nodes[1].pid)] if killed else []
                found.distribute(mesh).fit((x, y), epochs=3, batch_size=16, callbacks=callbacks)
        return [leaf.tobytes() for leaf in tree.leaves(found.params)]

    expected = bits(0, False)
    for workers, killed in ((1, False), (2, False), (2, True), (3, True), (5, False)):
        assert bits(workers, killed) == expected, (workers, killed)
