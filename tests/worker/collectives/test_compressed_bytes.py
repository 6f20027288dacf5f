"""What ranks write into each other's ring buffers when they exchange gradients, counted where it is written."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from support.rank_parts import by_ranks

import mesh
from mesh import PartitionSpec as P
from mesh import optim
from mesh.training import TopK
from mesh.training.gradient_exchange import AXIS, summed
from mesh.training.step_config import Recipe
from worker.collectives.ring_buffer import RingWriter

RANKS, SIZE = 3, 12_000
GRADIENTS = np.random.default_rng(5).standard_normal((RANKS, SIZE)).astype(np.float32)


@cache
def exchanged(compression: Any) -> tuple[int, Any]:
    """The bytes of all ranks in one exchange, and the sum they made of their gradients."""
    recipe = Recipe(lambda params: params, optim.sgd(0.1), compression=compression)
    kept = SIZE if compression else 0

    def step(gradients: Any, memory: Any) -> Any:
        return summed(recipe, {"w": gradients[0]}, memory)[0]["w"]

    mapped = mesh.shard_map(step, mesh.Grid(RANKS, AXIS), (P(AXIS), P(AXIS)), P(), check=False)
    given = {"gradients": GRADIENTS, "memory": np.zeros((RANKS, kept), np.float32)}
    graph = mesh.trace(mapped, *given.values())
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        publish = RingWriter.publish
        patch.setattr(
            RingWriter, "publish", lambda box, envelope, size: (sizes.append(size), publish(box, envelope, size))[1]
        )
        names = [graph.nodes[index].attrs["name"] for index in graph.inputs]
        (total,) = by_ranks(graph, dict(zip(names, given.values(), strict=True)))
    return sum(sizes) // 2, total  # by_ranks runs everything twice


def test_whole_gradients_are_sent_once_scattered_and_once_gathered() -> None:
    sent, total = exchanged(None)
    assert sent == 2 * (RANKS - 1) * GRADIENTS[0].nbytes
    np.testing.assert_allclose(total, GRADIENTS.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("compression", "share"), [("f16", 0.5), ("int8", 0.26), (TopK(0.05), 0.2)])
def test_compressed_gradients_take_their_share_of_the_bytes(compression: Any, share: float) -> None:
    (sent, total), (whole, right) = exchanged(compression), exchanged(None)
    assert 0 < sent <= share * whole
    close = np.abs(total - right).max() < 0.02 * np.abs(right).max()
    assert close or isinstance(compression, TopK)
