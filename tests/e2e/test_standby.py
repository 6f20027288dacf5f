"""A standby takes over from a coordinator that is killed or stands still: training goes on with the same bits, no job
is lost, and the coordinator of before steps down.

`python tests/e2e/test_standby.py KILLS`: so many kills of whoever serves, each started again as a standby.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support.processes import site as sites
from support.processes.commands import (
    COMES_TRUE_S,
    RUN_S,
    Daemon,
    asked,
    daemon,
    environment,
    jobs,
    node_states,
    run,
    wait_for,
)
from support.processes.durable import free_port
from support.processes.stopped_programs import program

from coordinator.standby.state import StandbyTimes
from mesh import trace
from mesh.backends.remote import Remote
from mesh.commands.exit_codes import REPLACED

MESH = "standby-mesh"
FIRST, SECOND = "coordinator", "second"


class Pair:
    """Two coordinators, each with a state folder of its own as on two machines, and workers.  `serving` has the one
    that does, and `standby` the other."""

    def __init__(self, folder: Path, stack: ExitStack, names: Sequence[str], more: Sequence[str] = ()) -> None:
        self.folder, self.names = folder, names
        self._stack, self._more = stack.enter_context(ExitStack()), more
        self.ports = {FIRST: free_port(), SECOND: free_port()}
        (folder / SECOND).mkdir()
        self.envs = {
            name: environment(folder / where, MESH_NAME=MESH) for name, where in ((FIRST, ""), (SECOND, SECOND))
        }
        self.serving = self._start(FIRST)
        at = self.serving.address
        self.workers = stack.enter_context(sites.working(folder, self.envs[FIRST], at, names))
        wait_for(lambda: node_states(self.serving) == dict.fromkeys(names, "healthy"))
        shutil.copytree(self._state(FIRST) / "@authority", self._state(SECOND) / "@authority")
        self.standby = self._start(SECOND, "--standby", at)
        wait_for(self.in_sync)

    def in_sync(self) -> bool:
        """Whether the standby may take over, as far as it knows."""
        file = self._state(SECOND) / f"@{SECOND}" / "standby.json"
        configuration: Any = json.loads(file.read_text())["record"]["configuration"] if file.exists() else None
        return configuration is not None and len(configuration["in_sync"]) == 2

    def ask(self, name: str, *arguments: str) -> str:
        """What a command says on the machine of a coordinator."""
        done = run("coord", *arguments, env={**self.envs[name], "MESH_ADDRESS": f"127.0.0.1:{self.ports[name]}"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def takes_over(self) -> Daemon:
        """The standby, once it serves."""
        standby = self.standby
        assert standby.process.stdout is not None
        standby.ready = json.loads(standby.process.stdout.readline())
        assert standby.ready["event"] == "ready"
        return standby

    def again(self) -> Daemon:
        """Start the first again, with the same words as before."""
        return self._start(FIRST)

    def _start(self, name: str, *more: str) -> Daemon:
        words = ("--name", name, "--port", str(self.ports[name]), *self._more, *more)
        log = self.folder / f"{name}.log"
        started: AbstractContextManager[Daemon] = daemon(*sites.SERVE, *words, env=self.envs[name], log=log)
        return self._stack.enter_context(started)

    def _state(self, name: str) -> Path:
        return Path(self.envs[name]["XDG_STATE_HOME"], "graph-mesh", MESH)


@contextmanager
def pair(folder: Path, *names: str, more: Sequence[str] = ()) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(folder, stack, names, more)


def large_job(remote: Remote) -> Coroutine[Any, Any, str]:
    """A detached job whose input is a file of the journal."""
    value = np.ones((64, 64), np.float32)
    graph = trace(lambda x: x * 3, value)
    return remote.submit(graph, dict.fromkeys(graph.input_types, value), {}, detach=True, job="kept")


ASKING = """
import asyncio, sys
from mesh import AsyncMesh, Mesh
async def ask():
    async with await Mesh.builder().node(sys.argv[1]).build_async() as m:
        while not any(known.endswith(sys.argv[2]) for known in m._backend._membership.coordinator):
            await asyncio.sleep(0.05)
        print(m._backend.address)
asyncio.run(ask())
"""


def coordinator_of(env: dict[str, str], address: str, port: int) -> str:
    """The address of the coordinator that serves a program which names this one, once it knows one at this port."""
    words = [sys.executable, "-c", ASKING, address, f":{port}"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_training_goes_on_with_the_standby_of_a_coordinator_that_ended(number: int, tmp_path: Path) -> None:
    """One that stands still is to all others like one whose machine was lost: no link ends, and nothing comes."""
    stays = number == signal.SIGSTOP
    more = ("--node-timeout", "4") if stays else ()
    with pair(tmp_path, "one", more=more) as site, program(site.envs[FIRST], "none", site.serving.address) as running:
        for _ in range(5):
            running.read()
        site.serving.process.send_signal(number)
        if not stays:
            site.serving.process.wait(COMES_TRUE_S)
        site.takes_over()
        running.read_on()
        running.end()
        assert len(running.said) > 5


def test_without_voters_it_takes_the_operators_word_and_no_job_is_lost(tmp_path: Path) -> None:
    """A program that names the coordinator of before finds the one that took over, whose address a program was told,
    also by a name that the coordinator does not say of itself."""
    with pair(tmp_path) as site:
        assert asked(site.serving, large_job) == "kept"
        before, by_name = site.serving.address, f"localhost:{site.ports[FIRST]}"
        for called in (by_name, before):
            assert coordinator_of(site.envs[FIRST], called, site.ports[SECOND]) == called
        site.ask(FIRST, "nodes")  # a command that ends before it is told of the standby again
        site.serving.stop(signal.SIGKILL)
        time.sleep(2 * StandbyTimes().patience_s)
        assert site.ask(SECOND, "promote", "--name", SECOND, "--json") == '{"name": "second", "serves": true}\n'
        second = site.takes_over()
        assert jobs(second) == {"kept": "queued"}
        assert "kept" in site.ask(FIRST, "status")
        for called in (by_name, before):
            assert coordinator_of(site.envs[FIRST], called, site.ports[SECOND]) == second.address
        with sites.working(tmp_path, site.envs[FIRST], second.address, ("one",)):
            wait_for(lambda: jobs(second) == {"kept": "done"})
        (answer,) = asked(second, lambda remote: remote.result("kept"))[0].values()
        assert (answer == 3.0).all()


@pytest.mark.long
def test_a_coordinator_that_stood_still_steps_down_and_is_the_standby_of_the_other(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = stack.enter_context(pair(tmp_path, "one", "two", "three", more=("--node-timeout", "4")))
        running = stack.enter_context(program(site.envs[FIRST], "buddy", site.serving.address))
        for _ in range(5):
            running.read()
        os.kill(site.serving.process.pid, signal.SIGSTOP)
        second = site.takes_over()
        os.kill(site.serving.process.pid, signal.SIGCONT)
        assert site.serving.process.wait(30.0) == REPLACED
        running.read_on()
        site.standby = site.again()
        wait_for(lambda: "entries of the journal of second are here" in (tmp_path / "coordinator.log").read_text())
        time.sleep(2.0)
        second.stop(signal.SIGKILL)
        site.takes_over()
        running.read_on()
        running.end()


def many(kills: int) -> list[float]:
    """Kill whoever serves so often; how long after each takeover training went on."""
    recoveries: list[float] = []
    while len(recoveries) < kills:
        with ExitStack() as stack:
            site = stack.enter_context(pair(Path(stack.enter_context(TemporaryDirectory())), "one", "two", "three"))
            running = stack.enter_context(program(site.envs[FIRST], "buddy", site.serving.address))
            for _ in range(8):
                running.read()
            site.serving.stop(signal.SIGKILL)
            killed_s = time.monotonic()
            site.takes_over()
            ready_s = time.monotonic()
            recoveries.append(running.read_on(ready_s) - ready_s)
            running.end()
        print(f"served {ready_s - killed_s:.2f} s after the kill, went on {recoveries[-1]:.2f} s later", flush=True)
    print(f"{kills} kills: median {statistics.median(recoveries):.2f} s, at most {max(recoveries):.2f} s")
    return recoveries


if __name__ == "__main__":
    many(int(sys.argv[1]))
