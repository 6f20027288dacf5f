"""What simulates and slows down stays out of processes that do neither: their imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.processes.commands import RUN_S, daemon, environment

APART = "mesh.simulation"
CLIENT = """
import sys
import numpy as np
from mesh import Mesh
with Mesh.builder().mesh("plain").node(sys.argv[1]).build() as mesh:
    assert mesh.run(lambda x: x + 1, np.float32(2)) == 3
"""
NOTING = """
import os
import sys

file = os.open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

class Noting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("mesh", "wire", "worker", "coordinator"):
            os.write(file, f"{name}\\n".encode())

sys.meta_path.insert(0, Noting)
"""  # of an engine host the daemon's log has the first lines alone


def noting(folder: Path) -> dict[str, str]:
    """An environment in which each process writes what it imports of ours to a file of its own."""
    env = environment(folder, OF_ITS_OWN="1")
    (folder / "sitecustomize.py").write_text(NOTING)
    return {**env, "PYTHONPATH": os.pathsep.join((str(folder), env["PYTHONPATH"]))}


def words(name: str) -> tuple[str, ...]:
    return ("worker", "--local", "--mesh", "plain", "--name", name, "--device", "cpu", "--port", "0")


def modules(folder: Path, *processes: tuple[str, ...]) -> set[str]:
    """What processes imported, each of which has the modules that are named of it."""
    found = [set(file.read_text().split()) for file in folder.glob("*.txt")]
    assert all(any(each.issuperset(theirs) for each in found) for theirs in processes)
    return set().union(*found)


def test_a_worker_its_hosts_and_a_client_with_its_coordinator_import_no_simulation(tmp_path: Path) -> None:
    env = noting(tmp_path)
    with daemon(*words("w"), env=env, log=tmp_path / "w.log") as worker:
        client = [sys.executable, "-P", "-c", CLIENT, worker.address]
        subprocess.run(client, env=env, capture_output=True, timeout=RUN_S, check=True)
    seen = modules(
        tmp_path, ("coordinator.coordinator", "wire.link.websocket_carrier"), ("worker.daemon.daemon",),
        ("worker.engine_host.host", "worker.cpu.engine"),
    )  # fmt: skip
    assert not {name for name in seen if name.startswith(APART)}


def test_a_coordinator_daemon_imports_no_simulation(tmp_path: Path) -> None:
    words = ("coord", "serve", "--mesh", "plain", "--port", "0", "--no-mdns")
    with daemon(*words, env=noting(tmp_path), log=tmp_path / "coord.log"):
        pass
    seen = modules(tmp_path, ("coordinator.coordinator", "coordinator.jobs.job_service"))
    assert not {name for name in seen if name.startswith(APART)}


def test_a_throttled_worker_and_its_hosts_import_what_slows_them_down(tmp_path: Path) -> None:
    with daemon(*words("slow"), "--throttle", "flops=1e9", env=noting(tmp_path), log=tmp_path / "slow.log"):
        pass
    throttled = ("mesh.simulation.throttled_worker",), ("worker.engine_host.host", "mesh.simulation.throttled_engine")
    assert "mesh.simulation.loop" not in modules(tmp_path, *throttled), "it has a real clock"
