"""Trainers of graphs, of layers on named workers, with gradients by hand, and on the mesh of an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import DeviceMap, DistributedTrainer, Mesh, Pipeline, optim
from mesh.training import Callback
from wire.errors import ConfigError, ExecuteFailed, InputError, ShapeError

RNG = np.random.default_rng(3)
PARAMS = {
    "first": {"w": RNG.normal(0, 0.5, (3, 8)).astype(np.float32), "b": np.zeros(8, np.float32)},
    "second": {"w": RNG.normal(0, 0.5, (8, 1)).astype(np.float32)},
}
X = RNG.normal(size=(20, 3)).astype(np.float32)
Y = np.sin(X.sum(axis=1, keepdims=True))


class Seen(Callback):
    """How many workers there were."""

    def __init__(self) -> None:
        self.workers: list[int] = []

    def on_workers(self, workers: int) -> None:
        self.workers.append(workers)


def model(params: Any, x: Any) -> Any:
    return mnp.tanh(x @ params["first"]["w"] + params["first"]["b"]) @ params["second"]["w"]


def loss(params: Any, x: Any, y: Any) -> Any:
    return mnp.mean((model(params, x) - y) ** 2, axis=-1)


def fitted(loss: Any, **options: Any) -> DistributedTrainer:
    trainer = DistributedTrainer(loss, PARAMS, optimizer=optim.adam(1e-2))
    trainer.distribute(options.pop("m", None)).fit((X, Y), epochs=2, batch_size=7, **options)
    return trainer


def assert_alike(one: Any, other: Any) -> None:
    for path, leaf in mesh.tree.flatten_with_paths(one)[0]:
        np.testing.assert_allclose(leaf, dict(mesh.tree.flatten_with_paths(other)[0])[path], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [20, 7, 4, 1])
def test_a_graph_of_any_number_of_rows_trains_as_its_function_does(rows: int) -> None:
    assert_alike(fitted(mesh.trace(loss, PARAMS, X[:rows], Y[:rows])).params, fitted(loss).params)


def test_a_graph_of_one_row_without_an_axis_for_rows_is_computed_for_each() -> None:
    graph = mesh.trace(lambda params, x, y: loss(params, x[None], y[None])[0], PARAMS, X[0], Y[0])
    assert_alike(fitted(graph).params, fitted(loss).params)


def test_a_graph_of_the_model_is_trained_to_targets_on_workers() -> None:
    graph = mesh.trace(model, PARAMS, X)
    with Mesh.builder().simulate(2).build() as m:
        trainer = DistributedTrainer(graph, PARAMS, optimizer=optim.adam(1e-2)).distribute(m)
        history = trainer.fit_distributed(X, Y, epochs=2, batch_size=7, callbacks=[seen := Seen()])
    assert seen.workers == [2]
    assert len(history.losses) == 6
    assert_alike(trainer.params, fitted(loss).params)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: DistributedTrainer(0.001, 100), InputError, r"a loss is a function.*optim.sgd\(0.001\)"),
        (
            lambda: DistributedTrainer(mesh.trace(model, PARAMS, X), {"w": X}),
            InputError,
            "no argument for the param 'w'",
        ),
        (lambda: DistributedTrainer(mesh.trace(lambda p: p["second"]["w"], PARAMS), PARAMS), InputError, "takes none"),
        (lambda: DistributedTrainer(mesh.trace(lambda p, x: (x, x), PARAMS, X), PARAMS), InputError, "has 2 and takes"),
        (lambda: DistributedTrainer(loss), InputError, "missing 1 required positional argument: 'params'"),
        (lambda: fitted(mesh.trace(lambda p, x: x, PARAMS, X)), InputError, "graph gives f32.*the targets are"),
        (lambda: fitted(mesh.trace(model, PARAMS, X.astype(np.float64))), InputError, "takes f64.*astype"),
        (lambda: fitted(mesh.trace(lambda p, x, y: mnp.mean(loss(p, x, y)), PARAMS, X, Y)), ShapeError, "the function"),
    ],
)
def test_what_no_graph_can_train_is_refused(make: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_batch_has_what_the_graph_takes_and_targets_at_most() -> None:
    for batch, count in (((X,), 1), ((X, Y, Y, Y), 4)):
        with pytest.raises(InputError, match=f"a batch of {count} arrays, and the graph takes 2"):
            DistributedTrainer(mesh.trace(loss, PARAMS, X, Y), PARAMS).fit(batch)


def test_the_graph_is_given_to_the_trainer_and_not_to_fit() -> None:
    with pytest.raises(InputError, match=r"Write DistributedTrainer\(graph, params\)"):
        DistributedTrainer(loss, PARAMS).fit_distributed(mesh.trace(model, PARAMS, X), X)


# -- layers where a map says


def test_layers_are_trained_where_the_map_says() -> None:
    with Mesh.builder().simulate(2).build() as m:
        names = [node.name for node in m.nodes]
        layers = DeviceMap().layer("first", names[0]).layer("second", names[1])
        trainer = DistributedTrainer(loss, PARAMS, optimizer=optim.adam(1e-2), strategy=layers).distribute(m)
        trainer.fit((X, Y), epochs=2, batch_size=7)
        with trainer.forward_backward((X, Y)) as found:
            assert found.owners == {"first/b": (names[0],), "first/w": (names[0],), "second/w": (names[1],)}
        assert_alike(trainer.params, fitted(loss).params)
        gap = DistributedTrainer(loss, PARAMS, strategy=DeviceMap().layer("first", names[0])).distribute(m)
        with pytest.raises(InputError, match="no layer for 'second/w'"):
            gap.fit((X, Y))
        for wrong, text in ((layers.layer("third", names[0]), "no param belongs to layer 'third'"),
                            (DeviceMap(), "no layer for 'first/w' and 2 more")):  # fmt: skip
            with pytest.raises(InputError, match=text):
                DistributedTrainer(loss, PARAMS, strategy=wrong).distribute(m).fit((X, Y))
        one = DistributedTrainer(lambda w, x: mnp.sum((x @ w) ** 2, -1), np.ones((3, 1), np.float32),
                                 strategy=DeviceMap().layer("", names[1])).distribute(m)  # fmt: skip
        with one.forward_backward((X,)) as gradients:
            assert gradients.owners == {"": (names[1],)}


# -- a step of the optimiser by hand


def test_a_step_with_gradients_changes_the_params_as_fit_does() -> None:
    with Mesh.builder().simulate(2).build() as m:
        for strategy in (Pipeline(2, 4), "data"):
            trainer = DistributedTrainer(loss, PARAMS, optimizer=optim.adam(1e-2), strategy=strategy).distribute(m)
            for _ in range(2):
                with trainer.forward_backward((X, Y)) as gradients:
                    trainer.step_with(gradients)
            expected = DistributedTrainer(loss, PARAMS, optimizer=optim.adam(1e-2))
            expected.fit((X, Y), epochs=2, batch_size=20, shuffle=False)
            assert trainer.step == expected.step == 2
            assert_alike(trainer.params, expected.params)


def test_a_step_takes_gradients_like_the_params_and_clips_them() -> None:
    trainer = DistributedTrainer(loss, PARAMS, optimizer=optim.sgd(1.0), clip=1.0)
    trainer.step_with(mesh.tree.map(lambda leaf: np.full_like(leaf, 2.0), PARAMS))
    moved = np.concatenate([(a - b).ravel() for a, b in zip(
        mesh.tree.leaves(PARAMS), mesh.tree.leaves(trainer.params), strict=True)])  # fmt: skip
    np.testing.assert_allclose(np.linalg.norm(moved), 1.0, rtol=1e-5)
    before = trainer.params
    wrong = {**PARAMS, "second": {"w": np.ones((2, 1), np.float32)}}
    for given, error, text in (
        ({"first": PARAMS["first"]}, InputError, "gradient of 'second/w' is missing"),
        (wrong, InputError, r"'second/w' has the shape \(2, 1\), not \(8, 1\)"),
        (3.0, InputError, "is missing"),
        (mesh.tree.map(lambda leaf: np.full_like(leaf, np.nan), PARAMS), ExecuteFailed, "NaN or Inf"),
    ):
        with pytest.raises(error, match=text):
            trainer.step_with(given)
    assert trainer.step == 1
    assert_alike(trainer.params, before)


# -- an event loop's mesh


def test_a_trainer_uses_the_mesh_of_an_event_loop_from_another_thread() -> None:
    async def program() -> Any:
        async with await Mesh.builder().local(1, engine="cpu").build_async() as m:
            trainer = DistributedTrainer(loss, PARAMS, optimizer=optim.adam(1e-2)).distribute(m)
            with pytest.raises(ConfigError, match=r"on its loop.*asyncio\.to_thread"):
                trainer.fit((X, Y))
            await asyncio.to_thread(trainer.fit, (X, Y), epochs=2, batch_size=7, callbacks=[seen := Seen()])
            assert seen.workers == [1]
        with pytest.raises(ConfigError, match="closed"):
            await asyncio.to_thread(trainer.fit, (X, Y))
        return trainer

    trainer = asyncio.run(program())
    assert_alike(trainer.params, fitted(loss).params)
    with pytest.raises(ConfigError, match="closed"):
        trainer.fit((X, Y))
