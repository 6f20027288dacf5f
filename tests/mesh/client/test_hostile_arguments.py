"""What a mesh, its strategies, trainers and builders cannot be asked is named where it is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mesh
from mesh import Mesh, errors, optim
from mesh.backends.config import MeshConfig
from mesh.training import Checkpoints, DistributedTrainer, TopK

X, Y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
PARAMS = {"w": np.zeros((4, 1), np.float32)}
WRONG: Any = 3  # of another type than what is asked for


def loss(params: Any, x: Any, y: Any) -> Any:
    return ((x @ params["w"] - y) ** 2).mean()


def trained(**given: Any) -> Any:
    return DistributedTrainer(loss, PARAMS, optimizer=optim.sgd(0.1)).fit((X, Y), **given)


@pytest.fixture(scope="module")
def alone() -> Iterator[Mesh]:
    with Mesh(MeshConfig()) as made:
        yield made


OF_MESHES: list[tuple[str, Callable[[Mesh], Any]]] = [
    ("no function", lambda m: m.run(WRONG, X)),
    ("no function", lambda m: m.run(None, X)),
    ("no function", lambda m: m.compile(WRONG)),
    ("no function", lambda m: m.submit(WRONG)),
    ("no function", lambda m: mesh.trace(WRONG)),
    ("of jobs", lambda m: list(m.as_completed(WRONG))),
    ("is no job", lambda m: list(m.as_completed([WRONG]))),
    ("the name of a graph", lambda m: m.compile(np.add, name=WRONG)),
    ("cache is True or False", lambda m: m.compile(np.add, cache="x")),
    ("build_dir a folder", lambda m: m.compile(np.add, build_dir=WRONG)),
    *[
        (f"{name}= counts steps", lambda m, given={name: value}: m.session(lambda s: (s + 1, s.sum()), X, **given))
        for name in ("every", "ahead")
        for value in ("x", 0, -1, 0.5, math.nan, 10**30, True)
    ],
    ("a layer goes by its name", lambda m: mesh.DeviceMap().layer(WRONG, "a")),
    ("no range of layers", lambda m: mesh.DeviceMap().layers(WRONG, "a")),
    ("rows, made by layer()", lambda m: mesh.DeviceMap(rows=WRONG)),
    ("rows, made by layer()", lambda m: mesh.DeviceMap(rows=("a",))),
    ("schedule=[] is not known", lambda m: mesh.Pipeline(2, 8, [])),
    ("what ranks run", lambda m: mesh.shard_map(WRONG, GRID, P(), P())),
    ("tries_max", lambda m: mesh.auto_sharding(np.add, GRID, tries_max="x")),
    ("tries_max", lambda m: mesh.auto_sharding(np.add, GRID, tries_max=-1)),
    ("memory_bytes", lambda m: mesh.auto_sharding(np.add, GRID, memory_bytes=math.nan)),
    ("no rates", lambda m: mesh.auto_sharding(np.add, GRID, rates=(0, 0))),
    ("what watches a mesh", lambda m: m.watch(WRONG)),
    ("an engine is a name", lambda m: Mesh.builder().local(1, WRONG)),
    *[("a fraction is", lambda m, bad=bad: Mesh.builder().audit(bad)) for bad in ("x", None, [], True, math.nan, 2)],
    *[("wait_s is a", lambda m, bad=bad: Mesh.builder().discover(bad)) for bad in ("x", None, [], math.nan)],
    ("min_nodes is an int", lambda m: Mesh.builder().discover(1.0, "x")),
    ("plan_ahead is True or False", lambda m: Mesh.builder().plan_ahead(WRONG)),
    ("simulated workers", lambda m: Mesh.builder().simulate("x")),
    ("simulated workers", lambda m: Mesh.builder().simulate(0)),
    ("a number of seconds", lambda m: Mesh.builder().node_timeout("x")),
    ("a number of seconds", lambda m: Mesh.builder().heartbeat([])),
    ("positive number of seconds", lambda m: Mesh.builder().collective_timeout("x")),
    ("name is a text", lambda m: Mesh.builder().mesh(WRONG)),
    ("not an address", lambda m: Mesh.builder().node(WRONG)),
]
GRID, P = mesh.Grid((2, 2), ("dp", "tp")), mesh.PartitionSpec


@pytest.mark.parametrize(("said", "call"), OF_MESHES)
def test_what_a_mesh_cannot_be_asked(said: str, call: Callable[[Mesh], Any], alone: Mesh) -> None:
    with pytest.raises(errors.MeshError) as caught:
        call(alone)
    assert said in str(caught.value)
    assert alone.run(lambda x: x + 1, X).sum() == 2 * X.size, "it goes on"


def total(x: Any) -> Any:
    return x.sum()


OF_TRANSFORMS: list[tuple[str, Callable[[], Any]]] = [
    *[
        ("is a function, not 3", lambda made=made: made(WRONG)(X))
        for made in (mesh.grad, mesh.value_and_grad, mesh.jacobian, mesh.hessian, mesh.vmap, mesh.remat)
    ],
    *[("is a function, not 3", lambda made=made: made(WRONG, (X,), (X,))) for made in (mesh.jvp, mesh.vjp)],
    ("the function of custom_vjp is a function", lambda: mesh.custom_vjp(WRONG, total, total)),
    ("the forward pass of custom_vjp is a function", lambda: mesh.custom_vjp(total, WRONG, total)),
    ("the backward pass of custom_vjp is a function", lambda: mesh.custom_vjp(total, total, WRONG)),
    ("the tangent of custom_jvp is a function", lambda: mesh.custom_jvp(total, WRONG)),
    ("a branch of cond is a function", lambda: mesh.cond(True, total, X.sum(), X)),
    ("the test of while_loop is a function", lambda: mesh.while_loop(True, total, X)),
    ("the body of while_loop is a function", lambda: mesh.while_loop(total, WRONG, X)),
    ("the body of fori_loop is a function", lambda: mesh.fori_loop(0, 3, X, total)),
    ("what scan repeats is a function", lambda: mesh.scan(X, 0.0, X)),
    ("argnums is an int, not 1.0", lambda: mesh.grad(total, argnums=1.0)),
    ("argnums is an int, not 'x'", lambda: mesh.jacobian(total, argnums=(0, "x"))),
    ("as argnums a list is given, not 'x'", lambda: mesh.hessian(total, argnums="x")),
    ("argnums is an int, not None", lambda: mesh.value_and_grad(total, argnums=None)),
]


@pytest.mark.parametrize(("said", "call"), OF_TRANSFORMS)
def test_what_a_transform_cannot_be_asked(said: str, call: Callable[[], Any]) -> None:
    with pytest.raises(errors.InputError) as caught:
        call()
    assert said in str(caught.value)


def test_argnums_may_be_integers_of_numpy() -> None:
    np.testing.assert_array_equal(mesh.grad(total, argnums=np.int64(0))(X), np.ones_like(X))


OF_TRAINERS: list[tuple[str, Callable[[], Any]]] = [
    ("nothing to train", lambda: DistributedTrainer(loss, None)),
    ("nothing to train", lambda: DistributedTrainer(loss, {})),
    ("only floats can be trained", lambda: DistributedTrainer(loss, "x")),
    *[("deterministic", lambda bad=bad: DistributedTrainer(loss, PARAMS, deterministic=bad)) for bad in ("x", 0.5, -1)],
    *[("the seed", lambda bad=bad: DistributedTrainer(loss, PARAMS, seed=bad)) for bad in ("x", 0.5, 10**40, None)],
    *[("TopK", lambda bad=bad: TopK(bad)) for bad in ("x", 0, 2, math.nan, True)],
    ("of callbacks", lambda: trained(callbacks=WRONG)),
    ("less than min_nodes", lambda: trained(min_nodes=3, max_nodes=2)),
    ("copies='zz' is not known", lambda: trained(copies="zz")),
    ("copies=3 is not known", lambda: trained(copies=WRONG)),
    ("no rows", lambda: DistributedTrainer(loss, PARAMS).fit([(X[:0], Y[:0])])),
    ("in a folder", lambda: trained(checkpoint=WRONG)),
    ("in a folder", lambda: DistributedTrainer(loss, PARAMS).save(WRONG)),
    ("in a folder", lambda: DistributedTrainer(loss, PARAMS).load(WRONG)),
    ("how many checkpoints", lambda: Checkpoints("x", keep="x")),
    ("copies='zz' is not known", lambda: DistributedTrainer(loss, PARAMS).forward_backward((X, Y), copies="zz")),
    *[
        ("a learning rate", lambda make=make, bad=bad: make(bad))
        for make in (optim.sgd, optim.adam, optim.adamw, optim.lion)
        for bad in ("x", -1, math.nan, math.inf, None, [], True)
    ],
    ("b1", lambda: optim.adam(1e-3, b1=2)),
    ("b2", lambda: optim.lion(1e-3, b2=-0.1)),
    ("eps", lambda: optim.adam(1e-3, eps=math.nan)),
    ("momentum", lambda: optim.sgd(0.1, momentum="x")),
    ("weight decay", lambda: optim.adamw(0.1, weight_decay=math.inf)),
]


@pytest.mark.parametrize(("said", "call"), OF_TRAINERS)
def test_what_a_trainer_cannot_be_asked(said: str, call: Callable[[], Any]) -> None:
    with pytest.raises(errors.InputError) as caught:
        call()
    assert said in str(caught.value)
