"""A model that no worker has room for, on three of them: a death loses nothing, and moves only what was lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes.commands import COMES_TRUE_S, PATIENT_S

import mesh.numpy as mnp
from mesh import Mesh, errors, load, trace
from mesh.backends.config import MeshConfig

LAYERS, WIDTH = 6, 256
LAYER_BYTES = 4 * WIDTH * WIDTH
WEIGHTS_BYTES = LAYERS * LAYER_BYTES
ROOM = 4 * LAYER_BYTES  # of each worker, for weights, what it makes of them and what it keeps for others
WORKING = 12 << 10  # besides: buddies take up all of that room
X = np.random.default_rng(0).standard_normal((4, WIDTH), np.float32)


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {f"w{number}": rng.standard_normal((WIDTH, WIDTH), np.float32) / 16 for number in range(LAYERS)}


def model(params: Any, x: Any) -> Any:
    for number in range(LAYERS):
        x = mnp.tanh(x @ params[f"w{number}"])
    return x


def saved(folder: Path) -> Path:
    """The model as a file."""
    with Mesh(MeshConfig()) as mesh:
        graph = trace(model, mesh.put(weights()), X)
    path = folder / "model.wire"
    graph.save(path, {f"params/{name}": array for name, array in weights().items()})
    return path


class EventLog:
    """Events of a mesh, waited for in another thread."""

    def __init__(self, mesh: Mesh) -> None:
        self._kinds: list[str] = []
        self._news = threading.Condition()
        mesh.watch(self._tell)

    def _tell(self, event: Mapping[str, Any]) -> None:
        with self._news:
            self._kinds.append(event["kind"])
            self._news.notify_all()

    def wait(self, kind: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: kind in self._kinds, COMES_TRUE_S), self._kinds


@pytest.mark.parametrize(("copies", "room"), [("buddy", ROOM + WORKING), ("coded", ROOM)])
def test_a_death_moves_only_what_was_lost_and_the_client_sends_nothing(copies: str, room: int, tmp_path: Path) -> None:
    loaded = load(saved(tmp_path))
    builder = Mesh.builder().mesh("redundancy").local(3, "cpu", max_memory=room).copies(copies)
    with builder.node_timeout(PATIENT_S).build() as mesh:
        events = EventLog(mesh)
        with pytest.raises(errors.PlacementError):
            mesh.run(loaded, X, strategy="single")
        with pytest.raises(errors.PlacementError, match=r"copies coded 1 of 3 do not fit .* for copies, and"):
            mesh.run(loaded, X, strategy="pipeline", copies="coded 1 of 3")
        before = mesh.run(loaded, X, strategy="pipeline")
        first = mesh.report()
        assert sum(each.weight_bytes["client"] for each in first.workers.values()) == WEIGHTS_BYTES
        events.wait("guarded")
        plan = mesh.plan(loaded, X, strategy="pipeline").data
        outlook = plan["redundancy"]
        assert all(each["kept_bytes"] + each["memory_bytes"] <= room for each in plan["workers"])
        assert sum(each["kept_bytes"] for each in plan["workers"]) >= WEIGHTS_BYTES // 2
        death = max(outlook["deaths"], key=lambda row: row["lost_bytes"])
        (pid,) = [node.pid for node in mesh.nodes if node.name == death["worker"]]
        os.kill(pid, signal.SIGKILL)
        after = mesh.run(loaded, X, strategy="pipeline")
        report = mesh.report()
        alone = mesh.run(loaded, X, mode="off")
    assert before.tobytes() == after.tobytes() == alone.tobytes()
    assert sum(each.weight_bytes["client"] for each in report.workers.values()) == 0
    assert 0 < death["lost_bytes"] < WEIGHTS_BYTES and report.weight_bytes_moved <= death["lost_bytes"]
    assert copies == "buddy" or report.weight_bytes_moved <= death["moved_bytes"], "more than the plan said"
