"""Workers killed, stopped and continued at random under concurrent calls: every answer right, no call lost or stuck."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from support.meanwhile import meanwhile
from support.processes.faults import WIDTH, tower, weights

from mesh import Mesh

WORKERS = 5
KILLED_MAX = 3
ROWS = (1, 7, 32, 64)


@contextmanager
def mischief(mesh: Mesh, rng: random.Random, batches: list[int]) -> Iterator[None]:
    """Signals to random workers, one every third of a second or so, until the block ends; all run again then.

    `batches` are the calls that are over.  On a machine that is slow somebody else is well all the same, whoever was
    stopped comes back late; and no call is there for three deaths, which would make it poison."""
    alive = {node.name: node.pid for node in mesh.nodes}
    kills = [-2, -2]  # how many batches were over then

    def somebody_else(name: str) -> bool:
        return any(node.state == "healthy" and node.name in alive.keys() - {name} for node in mesh.nodes)

    def play(over: threading.Event) -> None:
        while not over.wait(rng.uniform(0.05, 0.6)):
            name = rng.choice(sorted(alive))
            while not somebody_else(name) and not over.wait(0.05):
                pass
            if rng.random() < 0.25 and len(alive) > WORKERS - KILLED_MAX and len(batches) > kills[-2] + 1:
                kills.append(len(batches))
                os.kill(alive.pop(name), signal.SIGKILL)
            elif rng.random() < 0.5:
                os.kill(alive[name], signal.SIGSTOP)
                over.wait(rng.uniform(0.1, 1.6))
                os.kill(alive[name], signal.SIGCONT)

    with meanwhile(play):
        yield


@pytest.mark.parametrize(
    ("seed", "seconds"), [(1, 4.0), *(pytest.param(seed, 20.0, marks=pytest.mark.long) for seed in range(2, 8))]
)
def test_calls_survive_any_mischief(seed: int, seconds: float) -> None:
    rng = random.Random(seed)
    layers = weights(seed)
    x = np.random.default_rng(seed).standard_normal((max(ROWS), WIDTH)).astype(np.float32)
    with Mesh.builder().mesh(f"chaos-{seed}").local(WORKERS, "cpu").build() as mesh:
        expected = {rows: mesh.run(tower, layers, x[:rows], mode="off") for rows in ROWS}
        held = mesh.put(layers)
        answered = 0
        batches: list[int] = []
        with mischief(mesh, rng, batches):
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s or answered <= 6:
                strategies = [rng.choice(("pipeline", "auto", "single")) for _ in range(6)]
                asked = [(rng.choice(ROWS), strategy) for strategy in strategies]
                jobs = [(rows, mesh.submit(tower, held, x[:rows], strategy=strategy)) for rows, strategy in asked]
                for rows, job in jobs:
                    if rng.random() < 0.05:
                        job.cancel()
                        continue
                    assert job.result(timeout_s=120.0).tobytes() == expected[rows].tobytes()
                    answered += 1
                batches.append(len(jobs))
        assert answered > 6
