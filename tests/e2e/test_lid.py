"""A lid closed and opened: SIGSTOP of a worker and its engine hosts, all that runs there, and SIGCONT."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from support.processes.commands import wait_for
from support.processes.worker_process import children

from mesh import Mesh
from mesh import numpy as mnp

WIDTH = 256
W = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
X = np.ones((4, WIDTH), np.float32)

pytestmark = [pytest.mark.long, pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for hosts in /proc")]


def layer(x: mnp.Array, w: mnp.Array) -> mnp.Array:
    return mnp.tanh(x @ w) @ w


@pytest.mark.parametrize("closed_s", [0.3, 3.0, 12.0])
def test_a_worker_whose_lid_was_closed_is_back_with_all_that_it_had(closed_s: float) -> None:
    with Mesh.builder().local(2, engine="cpu").build() as mesh:
        held = mesh.put(W)
        expected = mesh.run(layer, X, held, mode="off")
        np.testing.assert_allclose(mesh.run(layer, X, held, strategy="pipeline"), expected, rtol=1e-5)
        sleeper = mesh.nodes[0]
        hosts = children(sleeper.pid)
        assert hosts
        for pid in (sleeper.pid, *hosts):
            os.kill(pid, signal.SIGSTOP)
        job = mesh.submit(layer, X, held, strategy="pipeline")
        time.sleep(closed_s)
        if closed_s > 1.5:
            np.testing.assert_allclose(job.result(timeout_s=30.0), expected, rtol=1e-5)
            assert mesh.nodes[0].state == "dead"
        for pid in (*hosts, sleeper.pid):
            os.kill(pid, signal.SIGCONT)
        began_s = time.monotonic()
        np.testing.assert_allclose(job.result(timeout_s=30.0), expected, rtol=1e-5)
        wait_for(lambda: mesh.nodes[0].state == "healthy")
        print(f"back {time.monotonic() - began_s:.2f} s after the lid was opened")
        time.sleep(1.0)  # the ways between the two are measured
        np.testing.assert_allclose(mesh.run(layer, X, held, strategy="pipeline"), expected, rtol=1e-5)
        report = mesh.report()
        assert sleeper.name in report.workers, "it has work again"
        assert report.weight_bytes_moved == 0, "nothing is sent again"
        assert children(sleeper.pid) == hosts, "its engine hosts are those of before"
