"""Tensor-parallel layers: what a Linear computes, with one reduction where the two kinds follow each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.nn import AllToShardedLinear, Linear, ShardedToAllLinear
from wire.errors import InputError, ShapeError
from wire.ir.graph import WireGraph
from wire.sharding.cost import cost_of
from wire.sharding.partition import partition
from worker.cpu import evaluate

GRID = mesh.Grid(4, "tp")
KEYS = mesh.random.split(mesh.random.key(3), 4)
RNG = np.random.default_rng(1)


def partitioned(fn: Callable[..., Any], *args: Any) -> WireGraph:
    """`fn` for ranks, after a check that it gives what it gives on one device."""
    graph = mesh.trace(fn, *args)
    found = partition(graph)
    inputs = dict(zip(graph.input_types, [np.asarray(leaf) for leaf in mesh.tree.leaves(args)], strict=True))
    for one, other in zip(evaluate(found, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)
    return found


def mlp(width: int, hidden: int) -> tuple[tuple[Linear, Linear], tuple[AllToShardedLinear, ShardedToAllLinear]]:
    plain = Linear.init(KEYS[0], width, hidden), Linear.init(KEYS[1], hidden, width)
    up = AllToShardedLinear.of(plain[0], grid=GRID, axis="tp")
    return plain, (up, ShardedToAllLinear.of(plain[1], grid=GRID, axis="tp"))


def applied(layers: Any, x: Any) -> Any:
    return layers[1](mesh.nn.gelu(layers[0](x)))


@pytest.mark.parametrize("hidden", [64, 61, 6, 3], ids=lambda hidden: f"hidden-{hidden}")
def test_columns_then_rows_is_the_plain_pair_with_one_reduction(hidden: int) -> None:
    plain, split = mlp(32, hidden)
    x = RNG.standard_normal((8, 32)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(applied(split, x)), np.asarray(applied(plain, x)), rtol=1e-5, atol=1e-5)
    found = partitioned(applied, split, x)
    assert cost_of(found).collectives == {"all_reduce": 1}
    body = next(node.attrs["body"] for node in found.nodes if node.op == "spmd")
    assert (-(-hidden // 4), 32) in [kind.shape for kind in body.input_types.values()]


def test_their_gradients_are_those_of_the_plain_pair_with_two_reductions() -> None:
    plain, split = mlp(32, 64)
    x = RNG.standard_normal((8, 32)).astype(np.float32)

    def step(layers: Any, x: Any) -> Any:
        return mesh.value_and_grad(lambda layers, x: mnp.sum(applied(layers, x) ** 2), argnums=(0, 1))(layers, x)

    wanted, found = (mesh.tree.leaves(mesh.evaluate(step, layers, x)) for layers in (plain, split))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert cost_of(partitioned(step, split, x)).collectives == {"all_reduce": 2}


def attention(layers: Any, x: Any, heads: int) -> Any:
    qkv, output = layers
    q, k, v = (mesh.nn.attention.split_heads(each, heads) for each in qkv(x))
    return output(mesh.nn.attention.join_heads(mesh.nn.scaled_dot_product_attention(q, k, v)))


@pytest.mark.parametrize("heads", [4, 8])
def test_fused_query_key_and_value_are_split_by_heads(heads: int) -> None:
    plain = Linear.init(KEYS[0], 32, 96), Linear.init(KEYS[1], 32, 32)
    qkv = AllToShardedLinear.of(plain[0], grid=GRID, axis="tp", segments=3)
    split = qkv, ShardedToAllLinear.of(plain[1], grid=GRID, axis="tp")
    x = RNG.standard_normal((2, 6, 32)).astype(np.float32)

    def in_thirds(linear: Linear) -> Any:
        return lambda x: tuple([linear(x)[..., at : at + 32] for at in (0, 32, 64)])

    wanted = attention((in_thirds(plain[0]), plain[1]), x, heads)
    np.testing.assert_allclose(np.asarray(attention(split, x, heads)), np.asarray(wanted), rtol=1e-5, atol=1e-5)
    found = partitioned(lambda layers, x: attention(layers, x, heads), split, x)
    assert cost_of(found).collectives == {"all_reduce": 1}


def test_heads_that_do_not_divide_are_right_all_the_same() -> None:
    layers = (
        AllToShardedLinear.init(KEYS[0], 32, 96, grid=GRID, axis="tp", segments=3),
        ShardedToAllLinear.init(KEYS[1], 32, 32, grid=GRID, axis="tp"),
    )
    partitioned(lambda layers, x: attention(layers, x, 2), layers, RNG.standard_normal((2, 5, 32)).astype(np.float32))


def test_data_and_tensor_parallel_at_once() -> None:
    grid = mesh.Grid((2, 2), ("dp", "tp"))
    up = AllToShardedLinear.init(KEYS[0], 32, 64, grid=grid, axis="tp")
    down = ShardedToAllLinear.init(KEYS[1], 64, 32, grid=grid, axis="tp", bias=False)

    def fn(layers: Any, x: Any) -> Any:
        return mesh.nn.relu(applied(layers, mesh.shard(x, mesh.PartitionSpec("dp"), grid)))

    found = cost_of(partitioned(fn, (up, down), RNG.standard_normal((8, 32)).astype(np.float32)))
    assert found.collectives == {"all_reduce": 1}
    assert found.sent_bytes == 4 * 32 * 4


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="no axis 'pp'"):
        AllToShardedLinear.init(KEYS[0], 4, 8, grid=GRID, axis="pp")
    with pytest.raises(InputError, match="no axis 'pp'"):
        ShardedToAllLinear.init(KEYS[0], 4, 8, grid=GRID, axis="pp")
    with pytest.raises(ShapeError, match="8 features are not cut into 3 segments"):
        AllToShardedLinear.init(KEYS[0], 4, 8, grid=GRID, axis="tp", segments=3)
    with pytest.raises(ShapeError, match=r"expected x \(\.\.\., 4\), got \(2, 5\)"):
        AllToShardedLinear.init(KEYS[0], 4, 8, grid=GRID, axis="tp")(np.ones((2, 5), np.float32))
