"""A laptop's worker by its system's bus: it leaves before the machine sleeps, and is back as it wakes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from support.processes.commands import daemon, environment, wait_for
from support.processes.fake_logind import MISSING, FakeLogind
from support.processes.site import WORKER

from mesh import Mesh
from mesh import numpy as mnp

W = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
X = np.ones((4, 128), np.float32)

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
WORKER = (*WORKER, "--mesh", "lid", "--name", "laptop")


def layer(x: mnp.Array, w: mnp.Array) -> mnp.Array:
    return mnp.tanh(x @ w)


def test_a_worker_leaves_before_its_machine_sleeps_and_is_back_as_it_wakes(tmp_path: Path) -> None:
    with FakeLogind(tmp_path) as logind:
        env = environment(tmp_path, DBUS_SYSTEM_BUS_ADDRESS=logind.address)
        with (
            daemon(*WORKER, env=env, log=tmp_path / "laptop.log") as laptop,
            Mesh.builder().mesh("lid").node(laptop.address).build() as mesh,
        ):
            assert logind.grant() == ("sleep", "mesh-worker", "Handing its work to other machines", "delay")
            held = mesh.put(W)
            expected = mesh.run(layer, X, held)
            for _ in range(3):
                assert logind.held
                logind.tell(True)
                wait_for(lambda: not logind.held)
                (node,) = mesh.nodes
                assert node.state == "left", "the coordinator knew before the machine slept"
                time.sleep(0.3)
                assert mesh.nodes[0].state == "left", "nobody has it meanwhile"
                logind.tell(False)
                logind.grant()
                began_s = time.monotonic()
                wait_for(lambda: mesh.nodes[0].state == "healthy")
                print(f"back after {time.monotonic() - began_s:.2f} s")
                np.testing.assert_array_equal(mesh.run(layer, X, held), expected)
                assert mesh.report().weight_bytes_moved == 0
            assert laptop.stop(signal.SIGTERM) == 0
        assert "leaving: its machine goes to sleep" not in laptop.log.read_text(), "the process stays"
        assert not logind.held, "whoever ends holds nothing up"


def test_a_sleep_that_is_over_at_once_leaves_the_new_lock_alone(tmp_path: Path) -> None:
    with FakeLogind(tmp_path) as logind:
        env = environment(tmp_path, DBUS_SYSTEM_BUS_ADDRESS=logind.address)
        with (
            daemon(*WORKER, env=env, log=tmp_path / "laptop.log") as laptop,
            Mesh.builder().mesh("lid").node(laptop.address).build() as mesh,
        ):
            logind.grant()
            told: list[str] = []
            mesh.watch(lambda event: told.append(event["kind"]))
            for begins in (True, False):
                logind.tell(begins)
            logind.grant()
            wait_for(lambda: "leaving" in told and mesh.nodes[0].state == "healthy")
            time.sleep(1.5)  # by then the sleep that was announced has been given up
            assert logind.held and mesh.nodes[0].state == "healthy"
