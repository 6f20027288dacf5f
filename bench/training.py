"""Data-parallel training, beside torch's DistributedDataParallel over gloo in the same run.

    python bench/training.py [--workers 1 2] [--steps 60] [--torch PYTHON] [--peer ../shared/peers/train_ddp_torch.py]

An MLP 784-512-512-10 with SGD and momentum, 512 rows per step in all, one thread per worker; data lie on the workers.
Efficiency is steps/s with n workers over n times steps/s with one.  Before them, the work of a step in this process:
what a step of one worker takes beyond it is the mesh's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from mesh import DistributedTrainer, Mesh, nn, optim
from mesh.training import Callback, StepReport

SIZES, ROWS, DATA = (784, 512, 512, 10), 512, 8192
WARM = 10


def loss(params: Any, x: Any, y: Any) -> Any:
    for weights, bias in params[:-1]:
        x = nn.relu(x @ weights + bias)
    weights, bias = params[-1]
    return nn.cross_entropy(x @ weights + bias, y, reduction="none")


def first_params() -> Any:
    rng = np.random.default_rng(0)
    return [
        (rng.normal(0, n**-0.5, (n, m)).astype(np.float32), np.zeros(m, np.float32))
        for n, m in itertools.pairwise(SIZES)
    ]


class Clock(Callback):
    """When the steps after the first few were done."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sent_bytes = 0

    def on_step(self, report: StepReport) -> None:
        self.times.append(time.perf_counter())
        self.sent_bytes = report.sent_bytes

    @property
    def steps_per_s(self) -> float:
        return (len(self.times) - WARM - 1) / (self.times[-1] - self.times[WARM])


def measured(workers: int, steps: int) -> tuple[float, int]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(DATA, SIZES[0])).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(SIZES[0], SIZES[-1])), axis=1).astype(np.int32)
    trainer = DistributedTrainer(loss, first_params(), optimizer=optim.sgd(0.05, momentum=0.9))
    clock = Clock()

    def fit(data: Any) -> None:
        trainer.fit(data, epochs=1000, batch_size=ROWS, steps=steps + WARM, callbacks=[clock])

    if not workers:
        fit((x, y))
        return clock.steps_per_s, 0
    with Mesh.builder().local(workers, engine="cpu").build() as mesh:
        trainer.distribute(mesh)
        fit(mesh.put((x, y)))
    return clock.steps_per_s, clock.sent_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--torch", help="a Python that has torch")
    parser.add_argument("--peer", default=str(Path(__file__).parents[2] / "shared" / "peers" / "train_ddp_torch.py"))
    asked = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    alone, _ = measured(0, asked.steps)
    print(f"the work of a step takes {1e3 / alone:.1f} ms in this process, {alone:.1f} steps/s")
    one = 0.0
    for workers in asked.workers:
        steps_per_s, sent = measured(workers, asked.steps)
        one = one or steps_per_s
        share = steps_per_s / one / workers * asked.workers[0]
        print(
            f"mesh, {workers} workers: {steps_per_s:.1f} steps/s, efficiency {share:.2f}, {sent} bytes/step", flush=True
        )
    if asked.torch:
        worlds = map(str, asked.workers)
        subprocess.run([asked.torch, asked.peer, *worlds], check=True, cwd=Path(asked.peer).parent)


if __name__ == "__main__":
    main()
