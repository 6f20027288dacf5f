"""What simulates and slows down stays out of processes that do neither: their imports, as Python lists them."""

from __future__ import annotations

import re
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
IMPORTED = re.compile(r"import time: .*\| +([\w.]+)$", re.MULTILINE)  # python -X importtime


def words(name: str) -> tuple[str, ...]:
    return ("worker", "--local", "--mesh", "plain", "--name", name, "--device", "cpu", "--port", "0")


def modules(text: str, *theirs: str) -> set[str]:
    """The modules of ours in a list of imports, which has `theirs` if it is the right process's."""
    names = {name for name in IMPORTED.findall(text) if name.startswith(("mesh.", "wire.", "worker.", "coordinator."))}
    assert names >= set(theirs)
    return names


def test_a_worker_its_hosts_and_a_client_with_its_coordinator_import_no_simulation(tmp_path: Path) -> None:
    env = environment(tmp_path, PYTHONPROFILEIMPORTTIME="1")
    with daemon(*words("w"), env=env, log=tmp_path / "w.log") as worker:
        client = subprocess.run(
            [sys.executable, "-P", "-c", CLIENT, worker.address],
            env=env, capture_output=True, text=True, timeout=RUN_S, check=True,
        )  # fmt: skip
    seen = modules(client.stderr, "coordinator.coordinator", "wire.link.websocket_carrier")
    seen |= modules((tmp_path / "w.log").read_text(), "worker.daemon.daemon", "worker.cpu.engine")
    assert not {name for name in seen if name.startswith(APART)}


def test_a_coordinator_daemon_imports_no_simulation(tmp_path: Path) -> None:
    env, log = environment(tmp_path, PYTHONPROFILEIMPORTTIME="1"), tmp_path / "coord.log"
    with daemon("coord", "serve", "--mesh", "plain", "--port", "0", "--no-mdns", env=env, log=log):
        pass
    seen = modules(log.read_text(), "coordinator.coordinator", "coordinator.jobs.job_service")
    assert not {name for name in seen if name.startswith(APART)}


def test_a_throttled_worker_and_its_hosts_import_what_slows_them_down(tmp_path: Path) -> None:
    env, log = environment(tmp_path, PYTHONPROFILEIMPORTTIME="1"), tmp_path / "slow.log"
    with daemon(*words("slow"), "--throttle", "flops=1e9", env=env, log=log):
        pass
    seen = modules(log.read_text(), "mesh.simulation.throttled_worker", "mesh.simulation.throttled_engine")
    assert "mesh.simulation.loop" not in seen, "it has a real clock"
