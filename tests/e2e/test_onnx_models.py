"""The light models of the package `onnx`, cut over three real workers, equal onnxruntime within 1e-3.

Each runs as it is shipped, where all weights of a layer are one number, and with random weights.  What onnxruntime
gives was recorded by tests/support/cases/onnx_runtime_cases.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from support.cases import light_models
from support.cases.onnx_runtime_cases import LIGHT

import mesh
from mesh import Mesh

pytestmark = pytest.mark.long
ATTEMPTS_MAX = 30
RECORDED = dict(np.load(LIGHT))


@pytest.fixture(scope="module")
def workers() -> Iterator[Mesh]:
    with Mesh.builder().mesh("light").local(3).node_timeout(120).build() as built:
        yield built


def outputs(workers: Mesh, model: Any, given: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What three workers give; on a busy machine one may be thought stuck for a while: then another call is made."""
    for _ in range(ATTEMPTS_MAX):
        found = workers.run(model, given, strategy="pipeline")
        if len(workers.report().workers) == 3:
            return list(found.values()) if isinstance(found, dict) else [found]
    raise AssertionError("three workers were never there together")


def check(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> None:
    for actual, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-3, atol=1e-3 * min(1.0, float(np.abs(right).max())))


@pytest.mark.parametrize("name", light_models.NAMES)
def test_shipped_model_gives_what_is_shipped_with_it(workers: Mesh, name: str) -> None:
    given = light_models.dummy_input(light_models.model(name))
    found = outputs(workers, mesh.load(light_models.path_of(name)), given)
    for actual, right in zip(found, light_models.stored_outputs(name), strict=True):
        assert np.abs(actual - right).max() <= 1e-3


@pytest.mark.parametrize("name", light_models.NAMES)
def test_shipped_model_equals_onnxruntime_before_its_softmax(workers: Mesh, name: str) -> None:
    proto = light_models.without_softmax(light_models.model(name))
    given = light_models.inputs(proto, seed=1)
    check(outputs(workers, mesh.load(proto), given), [RECORDED[name]])


@pytest.mark.parametrize("name", [name for name in light_models.NAMES if name not in light_models.LARGE])
def test_model_with_random_weights_equals_onnxruntime(workers: Mesh, name: str) -> None:
    proto = light_models.weighted(name, seed=2)
    given = light_models.inputs(proto, seed=3)
    check(outputs(workers, mesh.load(proto), given), [RECORDED[f"{name} weighted"]])
