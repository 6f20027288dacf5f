"""Engine hosts of local workers killed and stopped under calls, real processes: the right answer, and nobody leaves.

`python tests/e2e/test_engine_hosts.py ROUNDS` prints how long calls took from the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.processes.commands import PATIENT_S, wait_for
from support.processes.faults import WIDTH, tower, weights
from support.processes.worker_process import children

from mesh import Mesh
from mesh.errors import NodeLost
from mesh.numpy import broadcast_to

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
ROUNDS_MAX = 20  # until a host is killed in the middle of a file
LARGE_BYTES, PART_BYTES = 160 << 20, 1 << 20
ANSWER_S = 120.0  # a machine under load; without, a killed host costs some 0.1 s and a stopped one 2.2 s


def rounds(kind: str, count: int) -> list[float]:
    """Calls with an engine host struck as they begin; seconds to the right answer of each."""
    took = []
    with Mesh.builder().local(3, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        layers = mesh.put(weights(1))
        x = np.random.default_rng(1).standard_normal((64, WIDTH)).astype(np.float32)
        expected = mesh.run(tower, weights(1), x, mode="off")
        for number in range(count):
            victims = mesh.plan(tower, layers, x, strategy="pipeline").workers
            pids = {node.name: node.pid for node in mesh.nodes}
            victim = pids[victims[number % len(victims)]]
            while len(hosts := children(victim)) != 1:  # it is being started again
                time.sleep(0.01)
            (host,) = hosts
            job = mesh.submit(tower, layers, x, strategy="pipeline")
            os.kill(host, SIGNALS[kind])
            began_s = time.monotonic()
            np.testing.assert_array_equal(job.result(timeout_s=ANSWER_S), expected)
            took.append(time.monotonic() - began_s)
            if kind == "stop":
                with contextlib.suppress(ProcessLookupError):  # silent for too long, it was ended by its daemon
                    os.kill(host, signal.SIGCONT)
        assert all(node.state not in ("dead", "left") for node in mesh.nodes), "a worker left"
    return took


def test_the_last_log_lines_of_a_killed_worker_come_with_the_error() -> None:
    x = np.ones((64, WIDTH), np.float32)
    with Mesh.builder().local(1, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        mesh.run(tower, weights(1), x)
        (node,) = mesh.nodes
        (host,) = children(node.pid)
        os.kill(host, signal.SIGSTOP)  # so that the call is not over before the worker is
        job = mesh.submit(tower, weights(1), x)
        os.kill(node.pid, signal.SIGKILL)
        with pytest.raises(NodeLost) as caught:
            job.result(timeout_s=ANSWER_S)
        assert any("ready on" in line for line in caught.value.log_lines)


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_struck_engine_host_costs_time_and_nothing_else(kind: str) -> None:
    assert len(rounds(kind, 2)) == 2


if __name__ == "__main__":
    for name in SIGNALS:
        done = rounds(name, int(sys.argv[1]) if len(sys.argv) > 1 else 2)
        print(f"{name}: {len(done)} right, median {statistics.median(done):.2f} s, worst {max(done):.2f} s", flush=True)


def large_files(processes: Collection[int]) -> dict[Path, int]:
    """Large files in the directories of shared memory of these processes, which hold a lock there, and their bytes."""
    opened = [Path(file.path) for process in processes for file in psutil.Process(process).open_files()]
    found = {}
    for folder in {path.parent for path in opened if path.parent.name.startswith("graph-mesh-")}:
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was taken meanwhile
                found[path] = path.stat().st_size
    return {path: size for path, size in found.items() if size >= PART_BYTES}


def kill_as_it_writes(worker: int, done: threading.Event) -> int:
    """Kill a worker's engine host once a new large file is there; the file's bytes then, 0 if none came."""
    known, (host,) = large_files([worker]), children(worker)
    while not done.is_set():
        for path, size in large_files([worker]).items():
            if path not in known:
                os.kill(host, signal.SIGKILL)
                return size
    return 0


def test_a_host_that_is_killed_as_it_writes_a_result_leaves_nothing_in_shared_memory() -> None:
    """As the system kills it where memory is full, which is often just then."""
    x = np.ones(1, np.float32)
    with Mesh.builder().local(1, engine="cpu").node_timeout(PATIENT_S).build() as mesh, ThreadPoolExecutor(1) as pool:
        mesh.run(lambda x: x + 1, x)
        (node,) = mesh.nodes
        for _ in range(ROUNDS_MAX):
            wait_for(lambda: len(children(node.pid)) == 1)  # the one before is in no list any more
            done = threading.Event()
            killing = pool.submit(kill_as_it_writes, node.pid, done)
            try:
                right = mesh.run(lambda x: broadcast_to(x, (LARGE_BYTES // 4,)) * 2, x)
                assert float(right[0]) == float(right[-1]) == 2.0
            finally:
                done.set()
            del right
            if 0 < killing.result() < LARGE_BYTES:
                break
        else:
            pytest.fail("no host was killed in the middle of a file")
        assert not large_files([os.getpid(), node.pid])
