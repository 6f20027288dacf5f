"""Tensors of gigabytes go between a program, a coordinator and a worker, and no event loop stands still for them."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes.commands import asked, environment, node_states, wait_for
from support.processes.site import serving, working

from mesh import Mesh
from mesh.backends import remote
from wire.limits import GIB, MIB
from wire.system.loop_lag import recent_lag_s

SIZE_BYTES = 4 * GIB
NEED_BYTES = 5 * SIZE_BYTES  # the program's array, two files, and what the worker computes from and to
STOP_S_MAX = 0.4  # a hash of so much takes 8 s, to map it 1.6 s, and to free it 0.8 s


def test_addresses_of_large_values_are_computed_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    hash_array = remote.hash_array

    def hashed(array: Any) -> bytes:
        threads.append(threading.current_thread())
        return hash_array(array)

    monkeypatch.setattr(remote, "hash_array", hashed)
    offered: dict[bytes, Any] = {}
    large = np.ones(2 * MIB, np.uint8)
    values = asyncio.run(remote._named({"small": large[:4], "large": large}, offered))
    assert [value.blob for value in values] == [None, hash_array(large)] and [*offered] == [hash_array(large)]
    assert threads and threading.main_thread() not in threads


def available_bytes() -> int:
    """Memory that this machine has for a test."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        return 0
    return int(lines["MemAvailable"].split()[0]) << 10


@pytest.mark.long
@pytest.mark.skipif(available_bytes() < NEED_BYTES, reason="needs 20 GiB of memory, as Linux counts it")
def test_no_loop_stands_still_for_a_tensor_of_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(tmp_path, MESH_NAME="large")
    with serving(tmp_path, env) as coordinator, working(tmp_path, env, coordinator.address, ["w"]):
        wait_for(lambda: node_states(coordinator) == {"w": "healthy"})
        for name in env:
            if name.startswith(("XDG_", "MESH_")):
                monkeypatch.setenv(name, env[name])
        with Mesh.builder().mesh("large").node(coordinator.address).build() as mesh:
            assert float(mesh.run(lambda x: x + 1, np.float32(1), mode="on")) == 2.0
            time.sleep(60)  # until what happened at the start is forgotten
            worst = {"client": 0.0, "coordinator": 0.0, "worker": 0.0}
            done = threading.Event()

            def watch() -> None:
                while not done.wait(5):
                    census = asked(coordinator, lambda remote: remote.census(pairs=False))
                    seen = recent_lag_s(mesh._loop._loop), census.loop_lag_s, census.nodes[0].loop_lag_s
                    for (name, before_s), now_s in zip(tuple(worst.items()), seen, strict=True):
                        worst[name] = max(before_s, now_s)

            watching = threading.Thread(target=watch)
            watching.start()
            try:
                x = np.ones(SIZE_BYTES // 4, np.float32)
                result = mesh.run(lambda x: x + 1, x, mode="on")
                assert result.shape == x.shape and (result[:: 1 << 20] == 2).all()
                del x, result
                time.sleep(10)
            finally:
                done.set()
                watching.join()
            assert max(worst.values()) < STOP_S_MAX, worst
