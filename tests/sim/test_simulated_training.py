"""Training on simulated workers: whatever befalls them, rows count once, and the weights are those undisturbed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.training import first_state, flat_params
from support.cases.training import loss_of_rows as loss

import mesh.numpy as mnp
from mesh import (
    DataParallel,
    DistributedTrainer,
    FullySharded,
    Mesh,
    Pipeline,
    Single,
    TensorParallel,
    optim,
    tree,
)
from mesh.client.mesh import Step
from mesh.errors import ExecuteFailed, InputError, NodeLost, PlacementError
from mesh.training import Callback, Checkpoints, StepReport, TopK

RNG = np.random.default_rng(3)
X = RNG.normal(size=(53, 8)).astype(np.float32)  # 53 rows: batches of 16 leave 5, which no number of workers divides
Y = np.sin(X[:, :4])


def mean_loss(params: Any, x: Any, y: Any) -> Any:
    return mnp.mean(loss(params, x, y))


def trainer(own: Any = loss, **wishes: Any) -> DistributedTrainer:
    return DistributedTrainer(own, first_state()["layers"], optimizer=optim.adam(1e-2), **wishes)


@cache
def undisturbed(deterministic: bool = False, epochs: int = 2) -> Any:
    alone = trainer(deterministic=deterministic)
    losses = alone.fit((X, Y), epochs=epochs, batch_size=16).losses
    return np.array(losses), flat_params(alone)


class Mischief(Callback):
    """Does something to the mesh after some steps; hears of everything."""

    def __init__(self, deeds: dict[int, Any]) -> None:
        self.deeds, self.workers, self.rows, self.reports = deeds, list[int](), 0, list[StepReport]()

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)
        self.rows += report.rows
        if deed := self.deeds.pop(report.step, None):
            deed()

    def on_workers(self, workers: int) -> None:
        self.workers.append(workers)
        if deed := self.deeds.pop("waiting", None) if workers == 0 else None:  # type: ignore[call-overload]
            deed()


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "two": (2, {}),
    "three": (3, {}),
    "mean": (3, {"own": mean_loss}),
    "accumulated": (2, {"accumulate": 3}),
    "buckets": (2, {"bucket_bytes": 100}),
    "single": (2, {"strategy": Single()}),
    "fully sharded": (3, {"strategy": FullySharded()}),
    "tensor": (3, {"strategy": TensorParallel()}),
    "sharded, accumulated": (2, {"strategy": FullySharded(), "accumulate": 2}),
}


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_the_same_for_any_number_of_workers_and_any_split(way: str) -> None:
    workers, wishes = WAYS[way]
    found = trainer(**wishes)
    with Mesh.builder().mesh("sim").simulate(workers).build() as mesh:
        history = found.distribute(mesh).fit((X, Y), epochs=2, batch_size=16)
    losses, weights = undisturbed()
    np.testing.assert_allclose(history.losses, losses, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flat_params(found), weights, rtol=0, atol=1e-5)


def test_rows_that_workers_hold_are_named_by_their_places() -> None:
    found, heard = trainer(), Mischief({})
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        found.distribute(mesh).fit(mesh.put((X, Y)), epochs=2, batch_size=16, callbacks=[heard])
    np.testing.assert_allclose(flat_params(found), undisturbed()[1], rtol=0, atol=1e-5)
    assert heard.workers == [2] and heard.rows == 2 * len(X)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_shards_give_the_same_bits_for_any_number_of_workers(workers: int) -> None:
    found = trainer(deterministic=True)
    with Mesh.builder().mesh("sim").simulate(workers).build() as mesh:
        history = found.distribute(mesh).fit((X, Y), epochs=2, batch_size=16)
    losses, weights = undisturbed(deterministic=True)
    assert np.array_equal(history.losses, losses) and np.array_equal(flat_params(found), weights)


def test_a_death_in_an_epoch_loses_no_row_and_changes_no_bit() -> None:

    found = trainer(deterministic=True)
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        heard = Mischief({3: lambda: mesh.simulation.kill("sim-1"), 8: lambda: mesh.simulation.start("sim-1")})
        history = found.distribute(mesh).fit((X, Y), epochs=4, batch_size=16, callbacks=[heard])
    losses, weights = undisturbed(deterministic=True, epochs=4)
    assert np.array_equal(history.losses, losses) and np.array_equal(flat_params(found), weights)
    assert heard.rows == 4 * len(X) and heard.workers[0] == 3 and 2 in heard.workers


def test_below_the_minimum_it_waits_with_a_checkpoint(tmp_path: Path) -> None:

    found = trainer()
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        kept = list[int]()

        def again() -> None:
            kept.extend(Checkpoints(tmp_path).steps())
            mesh.simulation.start("sim-2")

        heard = Mischief({2: lambda: mesh.simulation.kill("sim-1"), 4: lambda: mesh.simulation.kill("sim-2"),
                          "waiting": again})  # fmt: skip
        history = found.distribute(mesh).fit(
            (X, Y), epochs=3, batch_size=16, callbacks=[heard], min_nodes=2, checkpoint=tmp_path, every=1000
        )
    losses, weights = undisturbed(epochs=3)
    np.testing.assert_allclose(history.losses, losses, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flat_params(found), weights, rtol=0, atol=1e-5)
    assert heard.workers[0] == 3 and 0 in heard.workers[:-1] and heard.workers[-1] == 2 and kept and kept[0] >= 4


@pytest.mark.parametrize("way", ["deterministic", "fully sharded", "stages"])
def test_if_all_workers_die_it_waits_and_does_what_is_lost_again(way: str) -> None:

    wishes: dict[str, dict[str, Any]] = {
        "deterministic": {"deterministic": True},
        "fully sharded": {"strategy": FullySharded()},
        "stages": {"strategy": Pipeline(2, 4)},
    }
    found = trainer(**wishes[way])
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:

        def both(deed: Any) -> None:
            for name in ("sim-0", "sim-1"):
                deed(name)

        heard = Mischief({6: lambda: both(mesh.simulation.kill), "waiting": lambda: both(mesh.simulation.start)})
        history = found.distribute(mesh).fit((X, Y), epochs=3, batch_size=16, callbacks=[heard])
    losses, weights = undisturbed(epochs=3)
    assert [report.step for report in heard.reports] == list(range(1, 13)), "told once"
    np.testing.assert_allclose(history.losses, losses, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flat_params(found), weights, rtol=0, atol=1e-5)
    assert history.redone >= 6 and found.step == 12 and history.rows == 3 * len(X) and 0 in heard.workers


def test_what_is_lost_again_and_again_ends_in_its_error() -> None:

    found, alone = trainer(), trainer()
    with Mesh.builder().mesh("sim").simulate(1).build() as mesh:
        mesh.simulation._cluster.devices[0].slower = 1e6  # so that no step is ever done
        heard = Mischief({"waiting": lambda: mesh.simulation.start("sim-0")})
        heard.on_workers = lambda workers: mesh.simulation.kill("sim-0") if workers else mesh.simulation.start("sim-0")
        with pytest.raises(NodeLost, match="no worker is left"):
            found.distribute(mesh).fit((X, Y), batch_size=16, callbacks=[heard])
    assert found.step == 0 and np.array_equal(flat_params(found), flat_params(alone))


@pytest.mark.parametrize("after", [2, 5])
def test_ctrl_c_while_it_waits_for_a_step_neither_loses_nor_doubles_one(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = 0

    def pressed(step: Any, timeout_s: float | None = None) -> Any:
        nonlocal waited
        waited += 1
        if waited == after:
            raise KeyboardInterrupt
        return result(step, timeout_s)

    result = Step.result
    found = trainer()
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        monkeypatch.setattr(Step, "result", pressed)
        with pytest.raises(KeyboardInterrupt):
            found.distribute(mesh).fit((X, Y), epochs=2, batch_size=16)
        assert after <= found.step <= after + 4
        found.fit((X, Y), epochs=2 - found._cursor.epoch, batch_size=16)
    np.testing.assert_allclose(flat_params(found), undisturbed()[1], rtol=0, atol=1e-5)


def test_an_error_of_a_callback_is_no_loss_of_the_state() -> None:
    class Failing(Callback):
        def on_step(self, report: StepReport) -> None:
            raise NodeLost("of another mesh")

    with Mesh.builder().mesh("sim").simulate(1).build() as mesh, pytest.raises(NodeLost, match="another mesh"):
        trainer().distribute(mesh).fit((X, Y), batch_size=16, callbacks=[Failing()])


def test_a_checkpoint_goes_on_with_other_workers_and_another_strategy(tmp_path: Path) -> None:
    losses: list[float] = []
    for workers, strategy, steps in ((3, DataParallel(), 3), (2, FullySharded(), 2), (1, Single(), None)):
        found = trainer(strategy=strategy)
        with Mesh.builder().mesh("sim").simulate(workers).build() as mesh:
            fitted = found.distribute(mesh)
            losses += fitted.fit((X, Y), epochs=2, batch_size=16, steps=steps, checkpoint=tmp_path).losses
    np.testing.assert_allclose(losses, undisturbed()[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(flat_params(found), undisturbed()[1], rtol=0, atol=1e-5)


def test_no_more_than_the_maximum_take_part() -> None:
    heard = Mischief({})
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        trainer().distribute(mesh).fit((X, Y), epochs=1, batch_size=16, callbacks=[heard], max_nodes=2)
    assert heard.workers == [2]


def test_a_worker_that_always_finds_nan_is_named_and_changes_nothing() -> None:
    bad = X.copy()
    bad[12:16] = np.nan  # the last quarter of a batch: the last of two workers has it
    found = trainer()
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        with pytest.raises(ExecuteFailed, match="3 steps in a row") as raised:
            found.distribute(mesh).fit([(bad[:16], Y[:16])] * 6, epochs=1)
        assert raised.value.node in {node.name for node in mesh.nodes}
    assert np.array_equal(flat_params(found), flat_params(trainer())), "skipped on all"


def test_a_step_with_nan_is_skipped_on_all_and_the_rest_counts() -> None:
    bad = X[:16].copy()
    bad[3, 0] = np.inf
    good = (X[:16], Y[:16])
    found, expected = trainer(), trainer()
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        history = found.distribute(mesh).fit([good, (bad, Y[:16]), good], epochs=1)
    expected.fit([good, good], epochs=1)
    assert history.skipped == [2]
    np.testing.assert_allclose(flat_params(found), flat_params(expected), rtol=0, atol=1e-5)


@cache
@cache
def exchanging(**wishes: Any) -> tuple[float, int]:
    """The last loss of two workers, and what they exchange in a step."""
    found = DistributedTrainer(loss, first_state()["layers"], optimizer=optim.sgd(0.3), **wishes)
    heard = Mischief({})
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        found.distribute(mesh).fit(mesh.put((X, Y)), epochs=60, batch_size=53, shuffle=False, callbacks=[heard])
    return heard.reports[-1].loss, heard.reports[-1].sent_bytes - 4 * len(X)


@pytest.mark.parametrize("compression", ["f16", "int8", TopK(0.1)])
def test_compressed_gradients_reach_the_loss_of_whole_ones(compression: Any) -> None:
    (whole, whole_bytes), (small, small_bytes) = exchanging(), exchanging(compression=compression)
    assert small < 1.05 * whole
    assert small_bytes < 0.6 * whole_bytes


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_narrow_computations_reach_the_loss_of_wide_ones_and_send_half_the_bytes(precision: str) -> None:
    (wide, wide_bytes), (narrow, narrow_bytes) = exchanging(), exchanging(precision=precision)
    assert abs(narrow - wide) < 0.02 * wide
    assert narrow_bytes < 0.6 * wide_bytes


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_narrow_computations_learn_wide_weights(precision: str) -> None:
    found = trainer(precision=precision)
    losses = found.fit((X, Y), epochs=20, batch_size=16).losses
    assert {leaf.dtype for leaf in tree.leaves(found.params)} == {np.dtype(np.float32)}
    assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])


def test_a_scaled_loss_that_overflows_is_scaled_less() -> None:
    found = trainer(lambda params, x, y: loss(params, x, y) * 1e3, precision="f16")
    history = found.fit((X, Y), epochs=4, batch_size=16)
    assert history.skipped[:2] == [1, 2] and len(history.skipped) < 12, "f16 ends at 65504"
    assert not np.array_equal(flat_params(found), flat_params(trainer()))


def test_what_cannot_be_is_said() -> None:
    for wishes in (
        {"precision": "f8"},
        {"compression": "zip"},
        {"accumulate": 0},
        {"deterministic": 8, "accumulate": 2},
    ):
        with pytest.raises(InputError):
            trainer(**wishes)
    with pytest.raises(InputError, match="data parallelism"):
        trainer(strategy=FullySharded(), deterministic=True).fit((X, Y))
    with pytest.raises(InputError, match="number of rows"):
        trainer().fit((X, Y[:5]))
    assert DataParallel(2).ranks == 2


def test_a_worker_that_has_a_share_of_all_params_holds_less() -> None:
    params = [{"w": np.full((n, m), 0.01, np.float32), "b": np.zeros(m, np.float32)} for n, m in ((8, 301), (301, 4))]
    params.insert(1, {"w": np.full((301, 301), 0.01, np.float32), "b": np.zeros(301, np.float32)})
    held = {}
    for strategy in (DataParallel(), FullySharded()):
        found, seen = DistributedTrainer(loss, params, optimizer=optim.adam(1e-3), strategy=strategy), list[int]()
        with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
            sessions = mesh.simulation._cluster.coordinator.sessions

            def look(sessions: Any = sessions, seen: list[int] = seen) -> None:
                (session,) = sessions._open
                seen.extend(worker.memory_bytes for worker in session.plan.workers)

            heard = Mischief({3: look})
            found.distribute(mesh).fit((X, Y), epochs=2, batch_size=16, callbacks=[heard])
        held[strategy.word] = max(seen)
    assert held["fully-sharded"] < 0.6 * held["data"], held


def test_a_number_of_workers_that_was_asked_for_is_not_made_less_silently() -> None:
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        for strategy in (DataParallel(3), FullySharded(3)):
            with pytest.raises(PlacementError, match="3"):
                trainer(strategy=strategy).distribute(mesh).fit((X, Y))


def test_a_second_call_goes_on_with_the_next_epoch() -> None:
    found = trainer()
    losses = [*found.fit((X, Y), epochs=1, batch_size=16).losses, *found.fit((X, Y), epochs=1, batch_size=16).losses]
    assert np.array_equal(losses, undisturbed()[0]) and np.array_equal(flat_params(found), undisturbed()[1])


def test_a_profile_says_where_the_time_of_each_worker_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESH_PROFILE", "2")
    monkeypatch.setenv("MESH_TRACE", str(tmp_path / "trace.json"))
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        trainer().distribute(mesh).fit((X, Y), epochs=1, batch_size=16)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["sim-0", "4"], ["sim-1", "4"]]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [(event["pid"], event["name"]) for event in events if event["name"].startswith("step")]
    assert sorted(steps) == [(worker, f"step {step}") for worker in ("sim-0", "sim-1") for step in range(4)]
    assert all(event["dur"] >= 0 for event in events)
    least = sum(leaf.nbytes for leaf in tree.leaves(first_state()["layers"]))  # half of the gradients, there and back
    sent = [event["args"]["sent_bytes"] for event in events if event["name"].startswith("step")]
    assert all(least <= each < 2 * least for each in sent)  # with the loss, and what else all of them must know
