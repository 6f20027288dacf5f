"""What a person at the terminal sees of a worker that falls silent and comes back: by `nodes`, and in serve's log."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from support.endless import endless
from support.processes.commands import (
    RUN_S,
    Daemon,
    asked,
    command,
    daemon,
    environment,
    job_log,
    node_states,
    run,
    wait_for,
)
from support.processes.site import WORKER

from mesh import trace

NODE_TIMEOUT_S = 4.5  # suspect after 1.5 s of silence, dead after 3: ten times what a watch looks at
SLOWER = 3  # a worker is suspect for so many times as long as the first command took; one is begun that often
STOPS_MAX = 3
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def test_a_stopped_worker_is_suspect_then_gone_then_back_and_serve_says_so(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="watched")
    log = tmp_path / "coord.log"
    timeout_s = max(NODE_TIMEOUT_S, 3 * SLOWER * command_s(env))  # as below
    serve = ("coord", "serve", "--port", "0", "--no-mdns", "--node-timeout", f"{timeout_s:.3f}")
    with daemon(*serve, env=env, log=log) as coordinator:
        assert not 7100 <= coordinator.ready["port"] <= 7131
        worker = (*WORKER, "--peer", coordinator.address)
        with daemon(*worker, "--name", "kitchen", env=env, log=tmp_path / "worker.log") as kitchen:
            wait_for(lambda: "kitchen joined" in log.read_text())
            shown = run("coord", "nodes", env=env)  # no address: its own coordinator is found by what it wrote down
            assert shown.returncode == 0, shown.stderr
            assert "kitchen" in shown.stdout
            watch = command("coord", "nodes", "--watch", "--json")
            with subprocess.Popen(watch, env=env, stdout=subprocess.PIPE, text=True) as watching:
                assert watching.stdout is not None
                (first,) = json.loads(watching.stdout.readline())
                assert first["state"] == "healthy"
                kitchen.process.send_signal(signal.SIGSTOP)
                changes = [json.loads(watching.stdout.readline()) for _ in range(2)]
                kitchen.process.send_signal(signal.SIGCONT)
                changes.append(json.loads(watching.stdout.readline()))
                watching.send_signal(signal.SIGINT)
                assert watching.wait(RUN_S) == 0
            assert [(each["was"], each["state"]) for each in changes] == [
                ("healthy", "suspect"), ("suspect", "dead"), ("dead", "healthy")
            ]  # fmt: skip
            wait_for(lambda: "kitchen is back" in log.read_text())
            before = len(log.read_text())
            assert kitchen.stop(signal.SIGTERM) == 0
        wait_for(lambda: "kitchen is gone: " in log.read_text()[before:])
        assert "WARNING" not in log.read_text()[before:], "it left as it was told to"
    said = log.read_text()
    assert "[worker coordinator]" not in said
    assert "kitchen is suspect: silent for" in said
    assert "kitchen is gone: silent for" in said
    assert "no work was in flight" in said
    assert "no node answers" not in said, "who judges the worker says that it is gone"
    lost = run("coord", "nodes", env=env)
    assert "no coordinator of mesh 'watched' on this machine" in lost.stderr


def test_work_goes_on_elsewhere_where_a_worker_falls_silent_or_is_killed_and_serve_says_so(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="at-work")
    log = tmp_path / "coord.log"
    every_s = command_s(env)
    timeout_s = max(NODE_TIMEOUT_S, 3 * SLOWER * every_s)  # a worker is suspect for a third of it
    with ExitStack() as stack:
        serve = ("coord", "serve", "--port", "0", "--no-mdns", "--node-timeout", f"{timeout_s:.3f}")
        coordinator = stack.enter_context(daemon(*serve, env=env, log=log))
        worker = (*WORKER, "--peer", coordinator.address)

        def start(name: str) -> Daemon:
            file = tmp_path / f"{name}.log"
            return stack.enter_context(daemon(*worker, "--name", name, env=env, log=file))

        workers = {name: start(name) for name in ("attic", "cellar")}
        wait_for(lambda: list(node_states(coordinator).values()) == ["healthy"] * 2)
        job = asked(coordinator, lambda remote: remote.submit(trace(endless, X), {"x": X}, {}, detach=True))
        wait_for(lambda: " began" in job_log(coordinator, job))
        (silent,) = re.findall(r" planned: 1 of 2 workers \((\w+)\)", job_log(coordinator, job))
        (killed,) = workers.keys() - {silent}

        assert any(shown_as_suspect(coordinator, workers[silent], silent, every_s) for _ in range(STOPS_MAX))
        wait_for(lambda: f"the work of {silent} goes on: " in log.read_text())
        workers[silent].process.send_signal(signal.SIGCONT)
        wait_for(lambda: f"{silent} is back" in log.read_text())
        workers[killed].stop(signal.SIGKILL)
        wait_for(lambda: f"the work of {killed} goes on: " in log.read_text())
        start(killed)
        wait_for(lambda: f"{killed} is back" in log.read_text())
    said = log.read_text()
    for line in (
        rf"{silent} is suspect: silent for \d",
        rf"{silent} is gone: silent for \d[^;\n]*",
        rf"the work of {silent} goes on: 1 of 1 workers? \({killed}\)",
        rf"{killed} is gone: the connection [^;\n]*",
        rf"the work of {killed} goes on: 1 of 1 workers? \({silent}\)",
    ):
        assert re.search(line, said), (line, said)


def command_s(env: Mapping[str, str]) -> float:
    """What a command takes here that asks for nodes, from its start: the machine may have much else to do.  It is not
    forked, as those of `shown_as_suspect` are not."""
    began_s = time.monotonic()
    done = subprocess.run(command("coord", "nodes"), env=env, capture_output=True, timeout=RUN_S, check=False)
    assert done.returncode != 0, "there is no coordinator yet"
    return time.monotonic() - began_s


def shown_as_suspect(coordinator: Daemon, worker: Daemon, name: str, every_s: float) -> bool:
    """Whether a `nodes` showed a stopped worker as suspect, of those that were begun until it was dead.  It goes on
    where none came in time."""
    asking = []
    worker.process.send_signal(signal.SIGSTOP)
    deadline_s = time.monotonic() + RUN_S
    while node_states(coordinator)[name] != "dead":
        assert time.monotonic() < deadline_s, "it is never dead"
        asking.append(
            subprocess.Popen(command("coord", "nodes"), env=coordinator.env, stdout=subprocess.PIPE, text=True)
        )
        time.sleep(every_s)
    tables = [each.communicate(timeout=RUN_S)[0] for each in asking]
    shown = [state for table in tables for state in re.findall(rf"^{name} +(\w+)", table, re.MULTILINE)]
    assert set(shown) <= {"healthy", "suspect", "dead"} and len(shown) == len(asking)
    if "suspect" in shown:
        return True
    worker.process.send_signal(signal.SIGCONT)
    wait_for(lambda: node_states(coordinator)[name] == "healthy")
    return False
