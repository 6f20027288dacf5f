"""Training through stages on real worker processes: the bits of one process, also with a stage killed."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
import pytest
from support.cases.pipelines import MODELS
from support.processes.commands import PATIENT_S

from mesh import DistributedTrainer, Mesh, Pipeline, optim, tree
from mesh.training import Callback, StepReport

LOSS, PARAMS, DATA = MODELS["layers"]


class Killing(Callback):
    """kill -9 for a stage after the second step."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def on_step(self, report: StepReport) -> None:
        if report.step == 2:
            os.kill(self.pid, signal.SIGKILL)


def trained(strategy: Any, mesh: Mesh | None, callbacks: Any = (), **wishes: Any) -> list[bytes]:
    own = DistributedTrainer(LOSS, PARAMS, optimizer=optim.adam(1e-2), strategy=strategy, clip=0.5, **wishes)
    own.distribute(mesh).fit(DATA, epochs=3, batch_size=9, callbacks=callbacks)
    return [np.asarray(leaf).tobytes() for leaf in tree.leaves(own.params)]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_stages_of_processes_make_the_bits_of_one_also_with_one_killed() -> None:
    expected = trained("single", None, accumulate=4)
    with Mesh.builder().local(3, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        assert trained(Pipeline(3, 4), mesh) == expected
        assert trained(Pipeline(3, 4, "gpipe"), mesh, [Killing(mesh.nodes[1].pid)]) == expected
