"""mesh.shard: what it asks for in graphs, and that it changes no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import Grid
from mesh import PartitionSpec as P
from wire.errors import InputError
from wire.sharding.cost import cost_of
from wire.sharding.partition import partition
from worker.cpu import evaluate

GRID = Grid((2, 2), ("dp", "tp"))
X = np.arange(20, dtype=np.float32).reshape(5, 4)


def _asked(graph: mesh.WireGraph) -> list[str]:
    return [node.attrs["spec"] for node in graph.nodes if node.op == "constraint"]


def test_an_array_outside_of_a_function_is_itself() -> None:
    with mesh.on_grid(GRID):
        x = mesh.shard(X, P("dp", "tp"))
        assert isinstance(x, mesh.Array) and x.shape == (5, 4)
        np.testing.assert_array_equal(np.asarray(x), X)
        np.testing.assert_array_equal(np.asarray(mesh.shard(x * 2, P(("dp", "tp"))) + 1), X * 2 + 1)


def test_a_traced_function_asks() -> None:
    graph = mesh.trace(lambda x: mesh.shard(mnp.exp(mesh.shard(x, P("dp"), GRID)), P(None, ("tp", "dp")), GRID), X)
    assert _asked(graph) == ["dp -", "- tp+dp"]


def test_specs_stand_for_all_leaves_below_and_none_for_no_wish() -> None:
    def fn(state: Any) -> Any:
        return mesh.shard(state, {"w": P("tp"), "b": None}, GRID)

    graph = mesh.trace(fn, {"w": [X, X[:2]], "b": X})
    assert _asked(graph) == ["tp -", "tp -"]
    np.testing.assert_array_equal(np.asarray(mesh.shard({"w": X}, P(), GRID)["w"]), X)


def test_derivatives_ask_for_the_same_and_a_batch_is_whole() -> None:
    def loss(x: Any) -> Any:
        return mnp.sum(mesh.shard(mnp.sin(x), P("dp", "tp"), GRID))

    assert _asked(mesh.trace(mesh.grad(loss), X)) == ["dp tp"]
    assert _asked(mesh.trace(lambda x: mesh.jvp(loss, (x,), (x,)), X)) == ["dp tp", "dp tp"]
    assert _asked(mesh.trace(mesh.vmap(loss), X[None])) == ["- dp tp"]


def test_a_program_of_one_device_is_that_of_the_grid() -> None:
    def step(w: Any, x: Any) -> Any:
        with mesh.on_grid(GRID):
            return mesh.value_and_grad(
                lambda w: mnp.mean(mesh.nn.relu(mesh.shard(x, P("dp")) @ mesh.shard(w, P(None, "tp"))) ** 2)
            )(w)

    w = np.cos(np.arange(12, dtype=np.float32)).reshape(4, 3)
    graph = mesh.trace(step, w, X)
    sharded = partition(graph)
    inputs = {"w": w, "x": X}
    for found, wanted in zip(evaluate(sharded, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert cost_of(sharded).collectives["all_reduce"] == 2


def test_the_old_name_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"mesh\.shard"):
        np.testing.assert_array_equal(np.asarray(mesh.reshard(X, P("dp"), GRID)), X)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match="shard needs a grid"):
        mesh.shard(X, P("dp"))
    with pytest.raises(InputError, match="no axis 'pp'"):
        mesh.shard(X, P("pp"), GRID)
    with pytest.raises(InputError, match="3 dimensions, and the tensor 'x' has 2"):
        mesh.shard(X, P("dp", None, "tp"), GRID)
    with pytest.raises(InputError, match="no PartitionSpec"):
        mesh.shard(X, "dp", GRID)
    with pytest.raises(InputError, match="is about whole tensors"):
        mesh.shard_map(lambda x: mesh.shard(x, P(), GRID), GRID, P(), P())(X)
