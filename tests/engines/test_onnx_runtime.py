"""The importer gives what onnxruntime gives, as recorded by tests/support/cases/onnx_runtime_cases.py."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from support.cases.onnx_runtime_cases import OPS, OPSET, TRIED, VERSIONS, model_of, named, values
from support.rounding import RECORDED as ORACLES
from support.rounding import allowed, assert_rounds_alike

import mesh
from worker.cpu import evaluate

RECORDED = dict(np.load(OPS))


def check(number: int, version: int) -> None:
    op, attributes, given = TRIED[number]
    proto = model_of(op, attributes, values(given))
    proto.opset_import[0].version = version
    model = mesh.load(proto)
    checked = model.given([named(given)])
    graph, arguments = model.graph(checked), model.dynamic(checked)
    bounds = allowed(graph, arguments, ORACLES["onnx_runtime_ops"])
    for place, actual in enumerate(evaluate(graph, arguments)):
        right = RECORDED[f"{number}.{place}"]
        assert actual.dtype == right.dtype
        assert_rounds_alike(actual, right, bounds[place])


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
