"""mesh.nn's functions against torch's recorded answers (tests/golden/make_torch_reference.py)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.nn_cases import CASES, NnCase
from support.rounding import RECORDED, allowed, assert_rounds_alike, traced

import mesh
import mesh.numpy as mnp
from mesh import nn

TORCH = np.load(Path(__file__).parents[2] / "golden" / "torch_nn.npz")


def encoder_layer(x: Any, *weights: Any, pre_norm: bool) -> Any:
    """torch keeps query, key and value in one matrix."""
    joined, joined_bias, *rest = weights
    three = [nn.Linear(joined[at : at + 8], joined_bias[at : at + 8]) for at in (0, 8, 16)]
    attention = nn.Attention(*three, nn.Linear(*rest[:2]), heads=2, kv_heads=2)
    mlp = nn.MLP(nn.Linear(*rest[2:4]), nn.Linear(*rest[4:6]))
    block = nn.TransformerBlock(attention, nn.LayerNorm(*rest[6:8]), mlp, nn.LayerNorm(*rest[8:]), pre_norm=pre_norm)
    return block(x)


def grouped_attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """The heads of an Attention whose projections are the identity, put together as it has them."""
    same = nn.Linear(np.eye(48, dtype=np.float32))
    layer = nn.Attention(same, same, same, same, heads=6, kv_heads=k.shape[1], causal=causal)
    rows = layer._attended(*map(mnp.asarray, (q, k, v)), nn.causal_mask(np.arange(4), np.arange(4)) if causal else None)
    return mnp.moveaxis(rows.reshape(2, 4, 6, 8), 2, 1)


OTHERWISE = {
    "encoder_layer": encoder_layer,
    "grouped_attention": grouped_attention,
    "group_norm": lambda x, weight, bias, groups: nn.group_norm(x, groups, weight, bias),
}


def mine(case: NnCase, *arrays: Any) -> Any:
    function = OTHERWISE.get(case.function) or getattr(nn, case.function)
    return function(*arrays, **case.options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_functions_are_torchs(case: NnCase) -> None:
    found = mine(case, *case.arrays)
    assert found.shape == TORCH[case.label].shape and found.dtype == np.float32
    (bound,) = allowed(*traced(lambda *arrays: mine(case, *arrays), *case.arrays), RECORDED["torch_nn"])
    assert_rounds_alike(found, TORCH[case.label], bound)


def test_every_answer_is_asked_for() -> None:
    assert set(TORCH.files) == {case.label for case in CASES}


@pytest.mark.parametrize("name", ["conv", "conv_transpose", "max_pool", "avg_pool", "cross_entropy", "group_norm"])
def test_functions_trace(name: str) -> None:
    case = next(case for case in CASES if case.function == name)
    graph = mesh.trace(lambda *arrays: mine(case, *arrays), *case.arrays)
    assert next(iter(graph.output_types.values())).shape == TORCH[case.label].shape
