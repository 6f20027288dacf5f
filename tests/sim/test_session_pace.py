"""Sessions follow the pace of devices: one that becomes three times slower gets less work, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import DataParallel, DistributedTrainer, Mesh, optim, tree, value_and_grad
from mesh.training import Callback, StepReport

SOON = 60  # steps within which the work has moved
RNG = np.random.default_rng(5)
X = RNG.normal(size=(960, 16)).astype(np.float32)
Y = np.sin(X[:, :4])
FIRST = {"w": RNG.normal(0, 0.3, (16, 4)).astype(np.float32)}
GFLOPS = 1e-4  # at which a step takes some hundredths of a second, and a trial two


def loss(params: Any, x: Any, y: Any) -> Any:
    return mnp.mean((mnp.tanh(x @ params["w"]) - y) ** 2, axis=1)


def trained(state: Any, x: Any, y: Any) -> Any:
    found, gradient = value_and_grad(lambda params: mnp.mean(loss(params, x, y)))(state)
    return tree.map(lambda w, g: w - 0.1 * g, state, gradient), found


class Pace(Callback):
    """Slows a worker after some steps; remembers what the mesh had planned by each of the others."""

    def __init__(self, mesh: Mesh, name: str, after: int) -> None:
        self._mesh, self._name, self._after = mesh, name, after
        self.reports: list[StepReport] = []

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)
        if report.step == self._after:
            self._mesh.simulation.slow(self._name, 3.0)


def fitted(workers: int, slow: bool) -> tuple[Any, list[str]]:
    """The weights after some steps, and what was planned on the way."""
    strategy = DataParallel(by_speed=False)  # test_shares_by_speed.py has the other
    trainer = DistributedTrainer(loss, FIRST, optimizer=optim.sgd(0.1), strategy=strategy, deterministic=True)
    with Mesh.builder().mesh("sim").simulate(workers, gflops=GFLOPS).build() as mesh:
        planned: list[str] = []
        mesh.watch(lambda event: planned.append(event["text"]) if event["kind"] == "planned" else None)
        callbacks = [Pace(mesh, "sim-1", 10)] if slow else []
        trainer.distribute(mesh).fit((X, Y), epochs=4, batch_size=48, callbacks=callbacks)
        return trainer.params["w"], planned


def test_training_goes_on_without_a_worker_that_became_slow_and_comes_to_the_same() -> None:
    undisturbed, _ = fitted(3, slow=False)
    weights, planned = fitted(3, slow=True)
    moved = [text for text in planned if text.startswith("a session moves")]
    assert len(moved) == 1 and "2 of " in moved[0] and "sim-1" not in moved[0].partition("(")[2].partition(")")[0]
    assert weights.tobytes() == undisturbed.tobytes()


@pytest.mark.parametrize("strategy", ["auto", "data"])
def test_a_session_moves_away_from_a_worker_that_became_slow(strategy: str) -> None:
    with (
        Mesh.builder().mesh("sim").simulate(3, gflops=GFLOPS).build() as mesh,
        mesh.session(trained, FIRST, X[:96], Y[:96], strategy=strategy, copies="none") as session,
    ):
        losses = [float(session.step(X[:96], Y[:96]).result()) for _ in range(20)]
        used = {part.node for part in session.running.plan.parts}
        names = {node.name: node for node in mesh.nodes}
        first = next(name for name in sorted(names) if names[name].id in used)
        well_s = took(mesh, session)
        mesh.simulation.slow(first, 3.0)
        slow_s = took(mesh, session)
        for _ in range(SOON):
            losses.append(float(session.step(X[:96], Y[:96]).result()))
        moved_s = took(mesh, session)
    alone = FIRST
    for found in losses[:20]:
        alone, wanted = trained(alone, X[:96], Y[:96])
        assert found == pytest.approx(float(wanted), rel=1e-4)
    assert slow_s > 1.8 * well_s and moved_s < 0.75 * slow_s
    assert losses == sorted(losses, reverse=True)


def took(mesh: Mesh, session: Any) -> float:
    """Virtual seconds of a step."""
    began_s = mesh.simulation.now_s
    session.step(X[:96], Y[:96]).result()
    return mesh.simulation.now_s - began_s
