"""mesh.nn's functions against torch's recorded answers (tests/golden/make_torch_reference.py)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.nn_cases import CASES, NnCase

import mesh
from mesh import nn

TORCH = np.load(Path(__file__).parents[1] / "golden" / "torch_nn.npz")


def mine(case: NnCase, *arrays: Any) -> Any:
    options = dict(case.options)
    if "groups" in options and case.function == "group_norm":
        return nn.group_norm(arrays[0], options["groups"], *arrays[1:])
    return getattr(nn, case.function)(*arrays, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_functions_are_torchs(case: NnCase) -> None:
    found = mine(case, *case.arrays)
    assert found.shape == TORCH[case.label].shape and found.dtype == np.float32
    np.testing.assert_allclose(np.asarray(found), TORCH[case.label], rtol=2e-5, atol=3e-6)


def test_every_answer_is_asked_for() -> None:
    assert set(TORCH.files) == {case.label for case in CASES}


@pytest.mark.parametrize("name", ["conv", "conv_transpose", "max_pool", "avg_pool", "cross_entropy", "group_norm"])
def test_functions_trace(name: str) -> None:
    case = next(case for case in CASES if case.function == name)
    graph = mesh.trace(lambda *arrays: mine(case, *arrays), *case.arrays)
    assert next(iter(graph.output_types.values())).shape == TORCH[case.label].shape
