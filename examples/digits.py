"""Handwritten digits (8 x 8, scikit-learn's) learnt by three workers, one of which is killed on the way.

pip install scikit-learn; python examples/digits.py
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import numpy as np

import mesh
import mesh.numpy as mnp
from mesh import DistributedTrainer, Mesh, nn, optim, training

SIZES = (64, 128, 10)
TESTED = 5  # every fifth row is for testing


def first_params() -> Any:
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(SIZES)
    return [(rng.normal(0, (2 / n) ** 0.5, (n, m)).astype(np.float32), np.zeros(m, np.float32)) for n, m in pairs]


def scores(params: Any, x: Any) -> Any:
    for weights, bias in params[:-1]:
        x = nn.relu(x @ weights + bias)
    weights, bias = params[-1]
    return x @ weights + bias


def loss(params: Any, x: Any, labels: Any) -> Any:
    return nn.cross_entropy(scores(params, x), labels, reduction="none")


class Killing(training.Callback):
    """kill -9 for one worker, in the middle of an epoch; counts rows and steps."""

    def __init__(self, pid: int, at: int) -> None:
        self.pid, self.at = pid, at
        self.steps = self.rows = 0
        self.workers: list[int] = []

    def on_step(self, report: training.StepReport) -> None:
        self.steps += 1
        self.rows += report.rows
        if self.steps == self.at:
            os.kill(self.pid, signal.SIGKILL)

    def on_workers(self, workers: int) -> None:
        self.workers.append(workers)


def main() -> float:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        print("This example needs scikit-learn, which is not installed: pip install scikit-learn")
        raise SystemExit(0) from None
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32), labels.astype(np.int32)
    new = np.arange(len(x)) % TESTED == 0
    epochs, rows = 6, int(np.sum(~new))
    trainer = DistributedTrainer(loss, first_params(), optimizer=optim.adam(5e-3), strategy=mesh.DataParallel())
    with Mesh.builder().local(3, engine="cpu").node_timeout(20).build() as m:
        killing = Killing(m.nodes[1].pid, 40)
        data = m.put((x[~new], y[~new]))  # workers hold it: a step sends places
        history = trainer.distribute(m).fit(data, epochs=epochs, batch_size=64, callbacks=[killing], progress=True)
    found = np.argmax(np.asarray(mnp.asarray(scores(trainer.params, x[new]))), axis=1)
    accuracy = float(np.mean(found == y[new]))
    assert killing.rows == epochs * rows == history.rows, "every row once in every epoch"
    assert accuracy > 0.93, accuracy
    print(f"{accuracy:.1%} of {len(found)} new digits are right after {killing.steps} steps; workers {killing.workers}")
    return accuracy


if __name__ == "__main__":
    main()
