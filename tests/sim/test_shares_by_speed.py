"""Data-parallel training on workers of unlike speed: each has rows by its speed, the weights are as of even shares."""

from __future__ import annotations

from collections.abc import Callable as Deed
from typing import Any

import numpy as np
import pytest
from support.cases.training import first_state

import mesh.numpy as mnp
from mesh import DataParallel, DistributedTrainer, Mesh, optim, tree
from mesh.training import Callback, StepReport

RNG = np.random.default_rng(7)
X = RNG.normal(size=(192, 8)).astype(np.float32)
Y = np.sin(X[:, :4])
BATCH, SHARDS = 48, 16
GFLOPS = 4e-4  # of the slow one: a step of 48 rows takes it about 0.4 s
STEPS = 12
EVEN = {"sim-0": BATCH // 2, "sim-1": BATCH // 2}
SOON = 40  # steps within which the work has moved


def loss(params: Any, x: Any, y: Any) -> Any:
    """One per row."""
    for layer in params[:-1]:
        x = mnp.tanh(x @ layer["w"] + layer["b"])
    return mnp.mean((x @ params[-1]["w"] + params[-1]["b"] - y) ** 2, axis=1)


class Watch(Callback):
    """The virtual time of every step, who has how many rows by then, and deeds after some steps."""

    def __init__(self, mesh: Mesh, deeds: dict[int, Deed[[], object]]) -> None:
        self.mesh, self.deeds = mesh, deeds
        self.times, self.shares, self.moves = list[float](), list[dict[str, int]](), list[str]()
        mesh.watch(self._heard)

    def on_step(self, report: StepReport) -> None:
        self.times.append(self.mesh.simulation.now_s)
        self.shares.append(dict(report.shares))
        if deed := self.deeds.pop(report.step, None):
            deed()

    def each_s(self, steps: int) -> float:
        """What one of the last steps took."""
        return (self.times[-1] - self.times[-1 - steps]) / steps

    def _heard(self, event: Any) -> None:
        if event["kind"] == "planned" and event["text"].startswith("a session moves"):
            self.moves.append(event["text"])


def fitted(
    *gflops: float, deterministic: int = 0, steps: int = STEPS, strategy: Any = None,
    deeds: Deed[[Mesh], dict[int, Deed[[], object]]] = lambda mesh: {},
) -> tuple[Any, Watch]:  # fmt: skip
    """The weights after so many steps, and what was seen on the way."""
    found = DistributedTrainer(
        loss, first_state()["layers"], optimizer=optim.adam(1e-2), deterministic=deterministic,
        strategy=strategy or DataParallel(),
    )  # fmt: skip
    with Mesh.builder().mesh("sim").simulate(len(gflops), gflops=gflops).build() as mesh:
        watch = Watch(mesh, deeds(mesh))
        found.distribute(mesh).fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=steps, callbacks=[watch])
    return np.concatenate([np.ravel(leaf) for leaf in tree.leaves(found.params)]), watch


def alone(deterministic: int = 0, steps: int = STEPS) -> Any:
    found = DistributedTrainer(
        loss, first_state()["layers"], optimizer=optim.adam(1e-2), deterministic=deterministic
    )  # fmt: skip
    found.fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=steps)
    return np.concatenate([np.ravel(leaf) for leaf in tree.leaves(found.params)])


def test_a_worker_three_times_as_fast_has_three_times_the_rows_and_a_step_is_nearly_as_fast_as_can_be() -> None:
    even, slowly = fitted(3 * GFLOPS, GFLOPS, strategy=DataParallel(by_speed=False))
    weights, watch = fitted(3 * GFLOPS, GFLOPS)
    np.testing.assert_allclose(weights, even, rtol=0, atol=1e-5)
    np.testing.assert_allclose(weights, alone(), rtol=0, atol=1e-5)
    assert watch.shares == watch.shares[:1] * STEPS and slowly.shares == [EVEN] * STEPS
    assert watch.shares[0]["sim-0"] + watch.shares[0]["sim-1"] == BATCH
    assert 3 <= watch.shares[0]["sim-0"] / watch.shares[0]["sim-1"] <= 5, "the update takes time, too"
    assert watch.each_s(8) < 0.6 * slowly.each_s(8), "ideally half: a quarter of the rows, where it had half"


@pytest.mark.parametrize("gflops", [(GFLOPS, 3 * GFLOPS), (3 * GFLOPS, 6 * GFLOPS, 2 * GFLOPS)])
def test_whole_shards_by_speed_give_the_same_bits(gflops: tuple[float, ...]) -> None:
    weights, watch = fitted(*gflops, deterministic=SHARDS)
    assert np.array_equal(weights, alone(SHARDS))
    assert sum(watch.shares[-1].values()) == BATCH and len(set(watch.shares[-1].values())) == len(gflops)


def test_one_that_becomes_slow_gets_less_and_as_much_again_once_it_is_well() -> None:
    weights, watch = fitted(
        GFLOPS, GFLOPS, deterministic=SHARDS, steps=240,
        deeds=lambda mesh: {
            10: lambda: mesh.simulation.slow("sim-1", 3.0),
            10 + SOON: lambda: mesh.simulation.slow("sim-1", 1.0),
        },
    )  # fmt: skip
    assert np.array_equal(weights, alone(SHARDS, 240)), "to the bit"
    slow = watch.shares[9 + SOON]
    assert watch.shares[9] == EVEN and slow["sim-0"] >= 2 * slow["sim-1"] > 0
    assert watch.shares[-1] == EVEN and len(watch.moves) == 2


def test_what_is_a_little_slower_at_times_moves_nothing() -> None:
    def flicker(mesh: Mesh) -> dict[int, Deed[[], object]]:
        def slow(times: float) -> Deed[[], object]:
            return lambda: mesh.simulation.slow("sim-1", times)

        return {step: slow((1.0, 1.25)[step // 3 % 2]) for step in range(3, 90, 3)}

    _, watch = fitted(GFLOPS, GFLOPS, steps=90, deeds=flicker)
    assert watch.moves == [] and watch.shares == [EVEN] * 90


def test_one_that_was_never_as_fast_as_it_measured_is_found_out() -> None:
    _, watch = fitted(
        GFLOPS, GFLOPS, steps=40, deeds=lambda mesh: {1: lambda: mesh.simulation.slow("sim-0", 2.0)}
    )  # fmt: skip
    assert watch.shares[0] == EVEN and watch.shares[-1]["sim-1"] > 1.5 * watch.shares[-1]["sim-0"]


def test_a_death_and_a_joiner_change_the_shares_and_no_bit() -> None:
    weights, watch = fitted(
        GFLOPS, 3 * GFLOPS, 2 * GFLOPS, deterministic=SHARDS, steps=60,
        deeds=lambda mesh: {
            10: lambda: mesh.simulation.kill("sim-1"),
            30: lambda: mesh.simulation.start("sim-1"),
        },
    )  # fmt: skip
    assert np.array_equal(weights, alone(SHARDS, 60))
    with_all, without = watch.shares[9], watch.shares[25]
    assert set(with_all) == {"sim-0", "sim-1", "sim-2"} and max(with_all, key=lambda name: with_all[name]) == "sim-1"
    assert set(without) == {"sim-0", "sim-2"} and without["sim-2"] > without["sim-0"]
    assert watch.shares[-1] == with_all


def test_one_that_would_only_hold_up_the_others_has_nothing() -> None:
    _, watch = fitted(GFLOPS * 100, GFLOPS * 100, GFLOPS)
    assert watch.shares[-1] == EVEN
    _, watch = fitted(GFLOPS * 100, GFLOPS, strategy=DataParallel(2))
    assert watch.shares[-1]["sim-1"] > 0, "two were asked for"


def test_shares_that_are_kept_are_by_the_speeds_of_when_training_began() -> None:
    def of(*gflops: float) -> tuple[list[float], float]:
        found = DistributedTrainer(loss, first_state()["layers"], optimizer=optim.sgd(0.1), compression="f16")
        with Mesh.builder().mesh("sim").simulate(len(gflops), gflops=gflops).build() as mesh:
            watch = Watch(mesh, {})
            history = found.distribute(mesh).fit((X, Y), epochs=4, batch_size=BATCH, callbacks=[watch])
        return history.losses, watch.each_s(8)

    (even, slowly_s), (losses, each_s) = of(GFLOPS, GFLOPS), of(3 * GFLOPS, GFLOPS)
    np.testing.assert_allclose(losses, even, rtol=0.02)
    assert each_s < 0.7 * slowly_s
