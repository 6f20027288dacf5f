"""What an older release wrote is read by this one: its bytes, graphs, checkpoints and the journal of its coordinator.

tests/older/README.md says how the files were made.
"""

from __future__ import annotations

import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray
from support.processes.commands import PATIENT_S, ROOT, Daemon, asked, daemon, environment, job_log, jobs, wait_for
from support.processes.durable import MESH, free_port, workers

import mesh
import mesh.numpy as mnp
from mesh.training import Checkpoints, DistributedTrainer
from wire.ir.codec import decode_graph
from wire.ir.graph import WireGraph
from wire.ir.text import from_text, to_text
from wire.protocol.frames import decode, decode_hello_body, encode_hello_body
from wire.protocol.frames import encode as encode_frame
from wire.protocol.messages import decode_message, encode_message

OLDER = ROOT / "tests" / "older"
VERSIONS = ("1.0",)
BYTES = {
    f"{version} {name}": bytes.fromhex(digits)
    for version in VERSIONS
    for name, digits in (line.split(": ") for line in (OLDER / f"bytes-{version}.txt").read_text().splitlines())
}


@pytest.fixture(params=VERSIONS)
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the files of an older release."""
    with tarfile.open(OLDER / f"state-{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path / "older", filter="data")
    return tmp_path / "older"


def is_prefix(older: Any, newer: Any) -> bool:
    """Whether all fields of the older value stand in the newer one, which may have more at the end of each list."""
    if isinstance(older, list) and isinstance(newer, list):
        return len(older) <= len(newer) and all(map(is_prefix, older, newer))
    return bool(older == newer)


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_an_older_release_are_read_and_lose_nothing(name: str) -> None:
    data, (_, kind, *rest) = BYTES[name], name.split()
    if kind == "message":
        message = decode_message(data)
        assert type(message).__name__ == rest[0]
        assert is_prefix(msgpack.unpackb(data), msgpack.unpackb(encode_message(message)))
    elif kind == "frame":
        assert encode_frame(decode(data)) == data
    elif kind == "graph":
        graph = decode_graph(data)
        assert from_text(to_text(graph)) == graph
        assert graph.encoded == data or graph.name
    else:
        assert is_prefix(msgpack.unpackb(data), msgpack.unpackb(encode_hello_body(decode_hello_body(data))))


def test_graphs_of_an_older_release_are_read_as_bytes_and_as_text(state: Path) -> None:
    graph, text = WireGraph.load(state / "model.wire"), (state / "model.txt").read_text()
    assert from_text(text) == graph and to_text(graph) == text
    outputs = np.load(state / "outputs.npy")
    x = np.load(state / "data.npz")["x"][:4]
    np.testing.assert_allclose(np.asarray(mesh.load(state / "model.wire")(x)), outputs, rtol=2e-6)


def squared_error(params: Any, x: Any, y: Any) -> Any:
    return mnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def trained(data: NDArray[Any], folder: Path, epochs: int) -> dict[str, NDArray[Any]]:
    params = {"w": data["w"], "b": data["b"]}
    trainer = DistributedTrainer(squared_error, params, optimizer=mesh.optim.adam(0.05))
    trainer.fit((data["x"], data["y"]), epochs=epochs, batch_size=16, checkpoint=folder)
    return {name: np.asarray(value) for name, value in trainer.params.items()}


def test_a_training_continues_from_a_checkpoint_of_an_older_release(state: Path, tmp_path: Path) -> None:
    data, before = np.load(state / "data.npz"), np.load(state / "trained.npz")
    latest = Checkpoints(state / "checkpoints").latest()
    assert latest is not None and latest.step == 12
    at_once = trained(data, state / "checkpoints", epochs=3)  # nothing is left to do
    for name in before:
        np.testing.assert_array_equal(at_once[name], before[name])
    continued, anew = trained(data, state / "checkpoints", epochs=5), trained(data, tmp_path / "new", epochs=5)
    for name in before:
        np.testing.assert_allclose(continued[name], anew[name], rtol=1e-4, atol=1e-6)
        assert not np.array_equal(continued[name], before[name])


def outputs_of(coordinator: Daemon, job: str) -> NDArray[Any]:
    outputs, _ = asked(coordinator, lambda remote: remote.result(job))
    (array,) = outputs.values()
    return array


def test_a_coordinator_keeps_the_promises_of_an_older_release(state: Path, tmp_path: Path) -> None:
    """The journal is that of a coordinator that was killed with one job done, one queued and one cancelled."""
    env = environment(tmp_path, MESH_NAME=MESH)
    folder = Path(env["XDG_STATE_HOME"]) / "graph-mesh" / MESH / "@coordinator" / "jobs"
    shutil.copytree(state / "jobs", folder)
    assert (folder / "jobs.sqlite-wal").stat().st_size, "what was not in the database yet when it was killed"
    port, done = free_port(), np.load(state / "done.npy")
    words = ("serve", "--port", str(port), "--no-mdns", "--node-timeout", f"{PATIENT_S:g}")
    with daemon("coord", *words, env=env, log=tmp_path / "coordinator.log") as coordinator:
        assert jobs(coordinator) == {"done": "done", "waiting": "queued", "cancelled": "cancelled"}
        np.testing.assert_array_equal(outputs_of(coordinator, "done"), done)
        assert "queued again: the coordinator started anew" in job_log(coordinator, "waiting")
        with workers(tmp_path, port, 1):
            np.testing.assert_array_equal(outputs_of(coordinator, "waiting"), done)
        wait_for(lambda: jobs(coordinator)["waiting"] == "done")
        coordinator.stop(signal.SIGTERM)
