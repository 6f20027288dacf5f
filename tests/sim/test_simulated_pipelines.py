"""Training through stages on simulated workers: whichever stage dies at whatever moment, no bit changes."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.cases.pipelines import MODELS, largest_difference

import mesh
from mesh import DataParallel, DistributedTrainer, Mesh, Pipeline, optim, tree
from mesh.errors import ExecuteFailed, InputError, PlacementError
from mesh.simulation.loop import VirtualLoop
from mesh.training import Callback, Checkpoints, StepReport
from mesh.training import fit_loop as run_module
from mesh.training.step import first_state, training_step
from mesh.training.step_config import Recipe

STEPS, TURNS = 4, 4
LOSS, PARAMS, (X, Y) = MODELS["layers"]
WEIGHTS = np.full(len(X), 1 / len(X), np.float32)
RECIPE = Recipe(LOSS, optim.adam(1e-2), accumulate=TURNS, clip=1.0, staged=True)
STEP = training_step(RECIPE, 1, False, False)
STATE = first_state(RECIPE, PARAMS, 1)


def bits(state: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in tree.leaves(state)]


def batch(step: int) -> tuple[Any, Any, Any]:
    return None, (np.roll(X, step, axis=0), Y), WEIGHTS


async def run(strategy: Pipeline, workers: int, victim: int | None, tick_s: float) -> tuple[Any, list[bytes], float]:
    """Losses and the state after some steps, one of whose workers dies; and how long they took."""
    builder = Mesh.builder().mesh("sim").simulate(workers)
    async with (
        await builder.build_async() as mesh,
        await mesh.session(STEP, STATE, *batch(0), strategy=strategy.text) as session,
    ):
        await session.step(*batch(0))
        await session.state()
        plan = session.running.plan  # type: ignore[attr-defined]
        nodes = list(dict.fromkeys(part.node for part in plan.parts))
        names = {share.node: share.name for share in plan.workers}
        began_s = asyncio.get_running_loop().time()
        steps = [session.step(*batch(step)) for step in range(1, STEPS)]
        if victim is not None:
            await asyncio.sleep(tick_s)
            mesh.simulation.kill(names[nodes[victim]])
        losses = [float((await step)["loss"]) for step in steps]
        took_s = asyncio.get_running_loop().time() - began_s
        return losses, bits(await session.state()), took_s


def simulated(strategy: Pipeline, workers: int, victim: int | None = None, tick_s: float = 0.0) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run(strategy, workers, victim, tick_s))


@cache
def undisturbed() -> tuple[Any, list[bytes]]:
    """What one worker makes: the bits of every pipeline whose weights change once a step."""
    with Mesh.builder().mesh("sim").simulate(1).build() as mesh, mesh.session(STEP, STATE, *batch(0)) as session:
        losses = [float(session.step(*batch(step)).result()["loss"]) for step in range(STEPS)]
        return losses[1:], bits(session.state())


KILLED: dict[str, tuple[Pipeline, int, int, tuple[int, ...]]] = {  # workers, stages, who dies in the short test
    "re-placed": (Pipeline(3, TURNS), 4, 3, (0, 1, 2)),
    "fewer stages": (Pipeline(3, TURNS), 3, 3, (1,)),
    "gpipe": (Pipeline(2, TURNS, "gpipe"), 2, 2, (0,)),
}
STEPS_S = 0.0075  # that the steps take


def check(way: str, victim: int, tick_s: float) -> None:
    strategy, workers, *_ = KILLED[way]
    losses, state, _ = simulated(strategy, workers, victim, tick_s)
    assert (losses, state) == undisturbed(), (way, victim, tick_s)


@pytest.mark.parametrize("way", KILLED)
def test_a_stage_that_dies_loses_nothing(way: str) -> None:
    """Workers die at moments spread over forward, backward and the change of weights."""
    _, _, stages, victims = KILLED[way]
    for victim in victims:
        check(way, victim, STEPS_S * (victim + 0.3) / stages)


@pytest.mark.long
@pytest.mark.parametrize("way", KILLED)
@pytest.mark.parametrize("tick", range(38))
def test_every_stage_may_die_at_every_tick(way: str, tick: int) -> None:
    for victim in range(KILLED[way][2]):
        check(way, victim, tick * 0.0002)


def test_columns_and_stale_weights_survive_a_death() -> None:
    """Sums of columns have another order; stale weights follow from the number of stages, which is the same again."""
    losses, _, _ = simulated(Pipeline(2, TURNS, data=2), 5, 2, 0.002)
    np.testing.assert_allclose(losses, undisturbed()[0], rtol=0, atol=1e-5)


# -- the trainer --------------------------------------------------------------------------------------------

ROWS = 19  # of 24 in batches of 9: neither batches nor micro-batches divide


def trainer(strategy: Any, **wishes: Any) -> DistributedTrainer:
    return DistributedTrainer(LOSS, PARAMS, optimizer=optim.adam(1e-2), strategy=strategy, **wishes)


def fitted(strategy: Any, workers: int, callbacks: Any = (), epochs: int = 2, **wishes: Any) -> tuple[list[float], Any]:
    own = trainer(strategy, **wishes)
    with Mesh.builder().mesh("sim").simulate(workers).build() as mesh:
        own.distribute(mesh)
        made = [each(mesh) for each in callbacks]
        return own.fit((X[:ROWS], Y[:ROWS]), epochs=epochs, batch_size=9, callbacks=made).losses, own.params


def alone(micro_batches: int, epochs: int = 2, **wishes: Any) -> tuple[list[float], Any]:
    """What this process finds with as many parts of a batch."""
    own = trainer("single", accumulate=micro_batches, **wishes)
    return own.fit((X[:ROWS], Y[:ROWS]), epochs=epochs, batch_size=9).losses, own.params


WAYS: dict[str, tuple[Pipeline, int, dict[str, Any]]] = {
    "1f1b": (Pipeline(3, TURNS), 3, {"clip": 0.5}),
    "columns": (Pipeline(2, 5, data=2), 4, {}),
    "half": (Pipeline(2, TURNS), 2, {"precision": "f16"}),
    "one stage on two workers": (Pipeline(1, TURNS, data=2), 2, {}),
    "one worker": (Pipeline(micro_batches=TURNS), 1, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_trainers_find_what_one_process_finds(way: str) -> None:
    strategy, workers, wishes = WAYS[way]
    losses, params = fitted(strategy, workers, **wishes)
    expected, weights = alone(strategy.micro_batches, **wishes)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    for one, other in zip(tree.leaves(params), tree.leaves(weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-3 if way == "half" else 1e-5)


def test_weights_that_change_after_each_micro_batch_learn_as_well() -> None:
    strategy = Pipeline(3, TURNS, "pipedream")
    losses, _ = fitted(strategy, 3)
    once, _ = fitted(Pipeline(3, TURNS), 3)
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert losses[-1] < once[-1], "four changes in place of one"


class Mischief(Callback):
    """Kills a worker at one step and starts it again at another; hears how many compute."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.workers = mesh, list[int]()

    def on_step(self, report: StepReport) -> None:
        if report.step == 2:
            self.mesh.simulation.kill("sim-1")
        if report.step == 9:
            self.mesh.simulation.start("sim-1")

        assert report.sent_bytes > 9 * X.itemsize * X.shape[1], "rows, and what stages send each other"

    def on_workers(self, workers: int) -> None:
        self.workers.append(workers)


def test_training_goes_on_with_fewer_stages_and_with_more_again() -> None:

    heard: list[Mischief] = []

    def mischief(mesh: Mesh) -> Mischief:
        heard.append(Mischief(mesh))
        return heard[-1]

    losses, params = fitted(Pipeline(3, TURNS), 3, [mischief], epochs=6)
    expected, weights = alone(TURNS, epochs=6)
    assert losses == expected and bits(params) == bits(weights)
    assert heard[0].workers[0] == 3 and 2 in heard[0].workers


def test_a_stage_that_dies_while_fewer_are_formed_makes_them_fewer_still(monkeypatch: pytest.MonkeyPatch) -> None:

    formed: list[str] = []

    def forming(mesh: Any, feed: Any, choice: Any, *given: Any) -> Any:
        formed.append(choice.strategy)
        made = form(mesh, feed, choice, *given)
        if len(formed) == 2:
            mesh.simulation.kill("sim-2")  # it was counted, and dies before there is a plan
        return made

    form = run_module.form_group
    monkeypatch.setattr(run_module, "form_group", forming)

    class Killing(Mischief):
        def on_step(self, report: StepReport) -> None:
            if report.step == 2:
                self.mesh.simulation.kill("sim-1")

    losses, params = fitted(Pipeline(3, TURNS), 3, [Killing], epochs=3)
    expected, weights = alone(TURNS, epochs=3)
    assert losses == expected and bits(params) == bits(weights)
    assert len(formed) >= 3 and "pipeline" in formed[1] and formed[2] == "single", formed


def test_fewer_stages_than_were_asked_for_are_refused_if_one_dies_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forming(mesh: Any, *given: Any) -> Any:
        made = form(mesh, *given)
        mesh.simulation.kill("sim-2")
        return made

    form = run_module.form_group
    monkeypatch.setattr(run_module, "form_group", forming)
    with pytest.raises(PlacementError, match=r"3 workers.*, and there are 2"):
        fitted(Pipeline(3, TURNS), 3)


def test_a_checkpoint_of_stages_is_one_of_any_training(tmp_path: Any) -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        own = trainer(Pipeline(3, TURNS)).distribute(mesh)
        own.fit((X, Y), epochs=2, batch_size=8, checkpoint=tmp_path, every=2)
    assert Checkpoints(tmp_path).steps()[0] == 6
    other = trainer("data", accumulate=TURNS)
    assert other.load(tmp_path) and other.step == 6
    assert bits(other.params) == bits(own.params)


def test_rows_that_are_no_number_are_skipped_by_all_stages() -> None:
    bad = X.copy()
    bad[3] = np.nan
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        for schedule in ("1f1b", "pipedream"):
            own = trainer(Pipeline(2, TURNS, schedule)).distribute(mesh)
            history = own.fit((bad, Y), batch_size=8, shuffle=False)
            assert history.skipped == [1] and np.isfinite(history.losses[1:]).all()
            assert all(np.isfinite(leaf).all() for leaf in tree.leaves(own.params))
        with pytest.raises(ExecuteFailed, match="3 steps in a row"):
            own.fit((bad[:8], Y[:8]), epochs=5, batch_size=8)


def test_what_stages_cannot_do_is_refused() -> None:
    for wishes in ({"deterministic": True}, {"compression": "f16"}, {"accumulate": 2}):
        with pytest.raises(InputError):
            trainer(Pipeline(), **wishes)
    with pytest.raises(InputError, match="norm"):
        trainer(Pipeline(schedule="pipedream"), clip=1.0)
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        with pytest.raises(PlacementError, match="needs 3 workers"):
            trainer(Pipeline(3, TURNS)).distribute(mesh).fit((X, Y))
        with pytest.raises(InputError, match="adds up"):
            trainer(Pipeline(1, TURNS, "pipedream", data=2)).distribute(mesh).fit((X, Y))


# -- gradients that stay ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "workers", "owners"),
    [
        (Pipeline(2, TURNS), 2, 1),
        (Pipeline(2, TURNS, "gpipe", data=2), 4, 2),
        (DataParallel(), 2, 2),
        (Pipeline(2, TURNS), 0, 0),
    ],
    ids=["stages", "columns", "data", "no mesh"],
)
def test_gradients_stay_with_whoever_has_the_params(strategy: Any, workers: int, owners: int) -> None:
    def loss(params: Any, x: Any, y: Any) -> Any:
        return LOSS(params, x, y).mean()

    first, second = (X[:9], Y[:9]), (X[9:16], Y[9:16])
    one, two = mesh.grad(loss)(PARAMS, *first), mesh.grad(loss)(PARAMS, *second)
    with contextlib.ExitStack() as stack:
        own = trainer(strategy)
        if workers:
            own.distribute(stack.enter_context(Mesh.builder().mesh("sim").simulate(workers).build()))
        found = stack.enter_context(own.forward_backward(first))
        assert found.loss == pytest.approx(float(loss(PARAMS, *first)), rel=1e-5)
        assert largest_difference(found.fetch(), one) < 1e-5
        found.add(second)
        assert largest_difference(found.fetch(), tree.map(np.add, one, two)) < 1e-5
        assert {len(names) for names in found.owners.values()} == ({owners} if workers else set())
        if isinstance(strategy, Pipeline) and workers:
            assert len(set(found.owners.values())) == 2, "each stage has its own"
            assert found.owners.keys() == {path for path, _ in tree.flatten_with_paths(PARAMS)[0]}
        assert bits(own.params) == bits(PARAMS)
        with pytest.raises(InputError, match="rows"):
            found.add((X, Y))
