"""A daemon whose event loop is made to stand still says so: in its log with what ran, and to whoever lists workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.processes.commands import ROOT, Daemon, asked, environment, node_states, wait_for
from support.processes.site import Site, serving, working

from wire.system.loop_lag import WARNED_S

STOP_S = 1.2 * WARNED_S
PLANTED = f"""
import asyncio, signal, time

def planted_stop():
    until_s = time.thread_time() + {STOP_S}
    while time.thread_time() < until_s:
        pass

def run(runner, main, **more):
    async def stoppable():
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, planted_stop)
        return await main
    return was(runner, stoppable(), **more)

was, asyncio.Runner.run = asyncio.Runner.run, run
"""


def lags(coordinator: Daemon) -> list[float]:
    return [node.loop_lag_s for node in asked(coordinator, lambda remote: remote.nodes())]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="a signal makes a process stand still")
def test_a_worker_and_a_coordinator_that_stand_still_say_so(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(PLANTED)
    env = environment(tmp_path, MESH_NAME="lag", PYTHONPATH=os.pathsep.join([str(tmp_path / "planted"), str(ROOT)]))
    with serving(tmp_path, env) as coordinator, working(tmp_path, env, coordinator.address, ["w"]) as workers:
        env["MESH_ADDRESS"] = coordinator.address
        wait_for(lambda: node_states(coordinator) == {"w": "healthy"})
        site = Site(tmp_path, env, coordinator, workers)
        for daemon in (coordinator, workers["w"]):
            daemon.process.send_signal(signal.SIGUSR1)
            wait_for(lambda daemon=daemon: "planted_stop" in daemon.log.read_text())  # type: ignore[misc]
            assert "WARNING the event loop stood still for " in daemon.log.read_text()
        wait_for(lambda: lags(coordinator)[0] >= STOP_S)  # it is in the next heartbeat
        assert site.json("nodes")[0]["loop_lag_s"] >= STOP_S
        told = site.ask("nodes", "-v").stdout
        assert "longest stop" in told and "the coordinator's event loop stood still for at most " in told
        stopped, unit = told.split("stood still for at most ")[1].split()[:2]
        assert unit == "s" and float(stopped) >= STOP_S
