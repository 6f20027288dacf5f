"""The importer gives what onnxruntime gives, as recorded by tests/support/onnx_runtime_cases.py."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from support.onnx_runtime_cases import OPS, OPSET, TRIED, VERSIONS, model_of, named, values

import mesh
from worker.cpu import evaluate

RECORDED = dict(np.load(OPS))


def check(number: int, version: int) -> None:
    op, attributes, given = TRIED[number]
    proto = model_of(op, attributes, values(given))
    proto.opset_import[0].version = version
    model = mesh.load(proto)
    checked = model.given([named(given)])
    for place, actual in enumerate(evaluate(model.graph(checked), model.dynamic(checked))):
        right = RECORDED[f"{number}.{place}"]
        assert actual.dtype == right.dtype
        assert actual.shape == right.shape
        if right.dtype.kind == "f":
            largest = float(np.abs(right).max(initial=0))
            np.testing.assert_allclose(actual, right, rtol=1e-4, atol=1e-5 + 1e-6 * largest)
        else:
            np.testing.assert_array_equal(actual, right)


@pytest.mark.parametrize("number", range(len(TRIED)), ids=[f"{op}-{place}" for place, (op, _, _) in enumerate(TRIED)])
def test_op_gives_what_onnxruntime_gives(number: int) -> None:
    check(number, OPSET)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_op_gives_the_same_in_other_opsets(version: int) -> None:
    chosen = [number for each, number in RECORDED["accepted"].tolist() if each == version]
    assert len(chosen) > 100
    for number in chosen:
        check(number, version)
