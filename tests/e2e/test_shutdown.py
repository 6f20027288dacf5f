"""SIGTERM and Ctrl-C, idle and in the middle of a job: work goes on elsewhere, exit 0 soon, nothing left behind.

Two seconds are promised for each process.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.endless import endless
from support.processes import site as sites
from support.processes.commands import (
    Daemon,
    asked,
    command,
    daemon,
    environment,
    jobs,
    node_states,
    wait_for,
)
from support.promised import within

import mesh.numpy as mnp
from mesh import trace
from mesh.commands import exit_codes
from wire.link.membership import COORDINATOR_FILE

EXIT_S = 2.0  # promised
HANGS_S = 120.0
X = np.full((512, 512), 0.01, np.float32)
SIGNALS = [signal.SIGTERM, signal.SIGINT]
FIRST, SECOND = ([each, pytest.param(other, marks=pytest.mark.long)] for each, other in (SIGNALS, SIGNALS[::-1]))


def long_chain(times: int) -> Callable[[mnp.Array], mnp.Array]:
    """That many matmuls, some milliseconds each."""

    def work(x: mnp.Array) -> mnp.Array:
        for _ in range(times):
            x = mnp.tanh(x @ x) * 0.5
        return x

    return work


class Site(sites.Site):
    def submit(self, begun: str = "began") -> str:
        """A job cut across both workers, detached; its id once its log says that a part of it runs."""
        words = ("submit", "long.wire", "--strategy", "pipeline", "--input", "x=x.npy", "--output", "out")
        job: str = self.json(*words, "--detach")["job"]
        wait_for(lambda: begun in self.log_of(job))
        return job


@contextmanager
def serving(folder: Path, work: Callable[[mnp.Array], mnp.Array]) -> Iterator[Site]:
    """A coordinator with the workers a and b, and the graph of a job for them."""
    folder.mkdir(exist_ok=True)
    trace(work, X).save(folder / "long.wire")
    np.save(folder / "x.npy", X)
    with sites.site(folder, "shutdown", ("a", "b"), Site) as made:
        yield made


def stop(each: Daemon, number: int) -> None:
    """Send a signal, and see that the process exits with 0 and takes everything of its own along."""
    process = psutil.Process(each.process.pid)
    children, folders = process.children(recursive=True), shared_folders(process)
    assert folders, "every node has a folder in shared memory"
    with within(EXIT_S, f"the exit of {each.ready.get('name', 'coordinator')} after the signal"):
        assert each.stop(number, within_s=HANGS_S) == 0
        assert not psutil.wait_procs(children, timeout=HANGS_S)[1], "an engine host was left behind"
    assert [folder for folder in folders if folder.exists()] == []
    assert "Traceback" not in each.log.read_text()


def shared_folders(process: psutil.Process) -> list[Path]:
    """The shared-memory folders a process holds the lock of."""
    held = (Path(file.path) for file in process.open_files())
    return [file.parent for file in held if file.name == "lock" and file.parent.name.startswith("graph-mesh-")]


def test_a_second_signal_ends_a_coordinator_at_once(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="shutdown")
    with daemon("coord", "serve", "--port", "0", "--no-mdns", env=env, log=tmp_path / "said") as each:
        children = psutil.Process(each.process.pid).children(recursive=True)
        each.process.send_signal(signal.SIGSTOP)
        for number in SIGNALS:  # both are there when it goes on
            each.process.send_signal(number)
        assert each.stop(signal.SIGCONT) in (exit_codes.INTERRUPTED, exit_codes.TERMINATED)
        assert not psutil.wait_procs(children, timeout=HANGS_S)[1], "a process was left behind"


def test_a_coordinator_that_cannot_take_its_file_away_leaves_nothing_else_behind(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="shutdown")
    with daemon("coord", "serve", "--port", "0", "--no-mdns", env=env, log=tmp_path / "said") as each:
        (file,) = tmp_path.rglob(COORDINATOR_FILE)
        file.unlink()
        file.mkdir()  # which no process takes for a file that it may remove
        process = psutil.Process(each.process.pid)
        children, folders = process.children(recursive=True), shared_folders(process)
        each.stop(signal.SIGTERM, within_s=HANGS_S)
        assert not psutil.wait_procs(children, timeout=HANGS_S)[1], "a process was left behind"
        assert folders and [folder for folder in folders if folder.exists()] == []


@pytest.mark.parametrize("number", FIRST)
def test_a_worker_in_the_middle_of_a_job_hands_its_parts_back_and_the_other_finishes(
    tmp_path: Path, number: int
) -> None:
    """On a fast machine a job may be over too early to show it; then a longer one does."""
    assert any(handed_back(tmp_path / str(times), times, number) for times in (500, 4_000, 16_000))


def handed_back(folder: Path, times: int, number: int) -> bool:
    """Whether the job was in the middle when the worker left."""
    with serving(folder, long_chain(times)) as site:
        job = site.submit("began a")
        stop(site.workers["a"], number)
        in_the_middle = site.state(job) == "running"
        done = site.ask("result", job, "--output", "out")
        assert done.returncode == 0, done.stderr
        wait_for(lambda: node_states(site.coordinator) == {"a": "left", "b": "healthy"})
        left = f"left: asked to stop by {signal.Signals(number).name}"
        in_the_middle = in_the_middle and left in site.log_of(job)
        (output,) = (folder / "out").iterdir()
        assert np.isfinite(np.load(output)).all()
        stop(site.workers["b"], number)  # idle
        stop(site.coordinator, number)
    return in_the_middle


@pytest.mark.parametrize("number", SECOND)
def test_a_coordinator_in_the_middle_of_a_job_frees_its_workers_for_the_next_one(tmp_path: Path, number: int) -> None:
    with serving(tmp_path, endless) as site:
        job = site.submit()
        words = ("submit", "long.wire", "--input", "x=x.npy", "--output", "out")
        attached = subprocess.Popen(
            command("coord", *words), env=site.env, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: len(jobs(site.coordinator)) == 2)
        stop(site.coordinator, number)
        told = attached.communicate(timeout=HANGS_S)[1]
        assert attached.returncode == exit_codes.UNREACHABLE, told
        assert "Traceback" not in told
        with sites.serving(tmp_path, site.env, port=site.coordinator.ready["port"]) as again:
            wait_for(lambda: node_states(again) == {"a": "healthy", "b": "healthy"})
            asked(again, lambda remote: remote.cancel(job))  # it goes on otherwise
            trace(lambda x: x + 1, X).save(tmp_path / "short.wire")
            words = ("submit", "short.wire", "--input", "x=x.npy", "--output", "again")
            done = site.ask(*words)
            assert done.returncode == 0, done.stderr
            for each in (*site.workers.values(), again):
                stop(each, number)
