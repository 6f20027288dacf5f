"""Large graphs for the planner, of about as many nodes as are asked for: what repeats, what does not, and chains.

`LARGE` has them by name.  A graph follows from its size alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import mesh
from mesh.nn import TransformerBlock
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph

from .random_graphs import big_graph

PRODUCT = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
LANES = 40  # of the irregular graph: results that may be read next
WIDTHS = (16, 64, 128, 256)
BLOCK_NODES, BLOCK_NODES_TRAINED = 60, 220  # of a transformer's block, about


def transformer(nodes: int, trained: bool = False) -> WireGraph:
    """Causal blocks one after the other; `trained` takes the gradients of all weights as well."""
    count = max(nodes // (BLOCK_NODES_TRAINED if trained else BLOCK_NODES), 1)
    key = mesh.numpy.random.key(0)
    blocks = [TransformerBlock.init(key, 32, 4, hidden=128, causal=True)] * count

    def forward(blocks: list[TransformerBlock], x: mesh.Array) -> mesh.Array:
        for block in blocks:
            x = block(x)
        return x

    def loss(blocks: list[TransformerBlock], x: mesh.Array) -> mesh.Array:
        y = forward(blocks, x)
        return (y * y).mean()

    return mesh.trace(mesh.grad(loss) if trained else forward, blocks, np.ones((4, 16, 32), np.float32))


def irregular(nodes: int) -> WireGraph:
    """Products, sums and functions of results picked at random among the latest, in many sizes: nothing repeats."""
    rng, builder = np.random.default_rng(0), GraphBuilder()
    lanes = [
        builder.input(f"x{lane}", (int(rng.choice(WIDTHS)), WIDTHS[lane % len(WIDTHS)]), F32) for lane in range(LANES)
    ]
    while len(builder.nodes) < nodes - 1:  # a product comes with its weight
        lane = int(rng.integers(LANES))
        x = lanes[lane]
        shape = builder.types[x].shape
        others = [other for other in lanes if other != x and builder.types[other].shape == shape]
        kind = rng.random()
        if kind < 0.2:
            width = int(rng.choice(WIDTHS))
            weight = builder.param(f"w{len(builder.nodes)}", (shape[1], width), F32)
            lanes[lane] = builder.add("dot", x, weight, **PRODUCT)
        elif kind < 0.6 and others:
            lanes[lane] = builder.add("add", x, others[int(rng.integers(len(others)))])
        else:
            lanes[lane] = builder.add(str(rng.choice(["tanh", "sin", "exp2", "abs"])), x)
    return builder.build(lanes, name="irregular")


def chain(nodes: int) -> WireGraph:
    """One product after the other, each read by the next only."""
    builder = GraphBuilder()
    x = builder.input("x", (64, 64), F32)
    while len(builder.nodes) < nodes - 1:  # a product comes with its weight
        x = builder.add(
            "tanh", builder.add("dot", x, builder.param(f"w{len(builder.nodes)}", (64, 64), F32), **PRODUCT)
        )
    return builder.build([x], name="chain")


LARGE: dict[str, Callable[[int], WireGraph]] = {
    "tower": big_graph,
    "transformer": transformer,
    "trained transformer": lambda nodes: transformer(nodes, trained=True),
    "irregular": irregular,
    "chain": chain,
}
