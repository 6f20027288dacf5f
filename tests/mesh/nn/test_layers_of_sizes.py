"""Layers that are given sizes, as torch's are: the error says how `init` makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mesh import nn, tree
from mesh.errors import InputError

X = np.ones((2, 8), np.float32)


@pytest.mark.parametrize(
    ("made", "init"),
    [
        (lambda: nn.Linear(8, 32)(X), "Linear.init(key, inputs, outputs)"),
        (lambda: nn.Conv(3, 8, 3)(X), "Conv.init(key, inputs, outputs, kernel)"),
        (lambda: nn.ConvTranspose(3, 8, 3)(X), "ConvTranspose.init(key, inputs, outputs, kernel)"),
        (lambda: nn.Embedding(100, 16), "Embedding.init(key, count, width)"),  # type: ignore[call-arg]
        (lambda: nn.LayerNorm(8), "LayerNorm.init(width)"),  # type: ignore[call-arg]
        (lambda: nn.RMSNorm(8)(X), "RMSNorm.init(width)"),
        (lambda: nn.GroupNorm(2, 8), "GroupNorm.init(channels, groups)"),  # type: ignore[call-arg]
        (lambda: nn.BatchNorm(8), "BatchNorm.init(channels)"),  # type: ignore[call-arg]
        (lambda: nn.MLP(8, 32)(X), "MLP.init(key, width, hidden)"),  # type: ignore[arg-type]
        (lambda: nn.Attention(8, 2), "Attention.init(key, width, heads)"),  # type: ignore[call-arg]
    ],
)
def test_a_layer_of_sizes_says_how_one_is_made(made: Callable[[], Any], init: str) -> None:
    with pytest.raises(InputError) as refused:
        made()
    assert f"A layer with first weights is {init}" in str(refused.value)


def test_a_tree_of_layers_has_any_leaves() -> None:
    sizes = tree.map(lambda leaf: leaf.ndim, nn.LayerNorm(np.ones(8), np.ones(8)))
    assert (sizes.weight, sizes.bias) == (1, 1)
