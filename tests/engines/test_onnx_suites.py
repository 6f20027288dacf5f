"""The backend tests of the package `onnx`: every one gives what it says, or is listed and refused with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from numpy.typing import NDArray

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from support.cases.damaged_onnx import damaged
from support.cases.onnx_cases import OPEN, SUITES, Case, cases, graphs, judge, listed, reason_of

import mesh
from wire.errors import MeshError, Unsupported
from wire.ir.graph import WireGraph
from worker.cpu import evaluate


def on_cpu(graph: WireGraph, arguments: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return evaluate(graph, arguments)


def wrong(case: Case) -> str:
    """What is wrong with a case that should pass; nothing if it passes."""
    try:
        judge(case, on_cpu)
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {str(error).strip()[:300]}"
    return ""


@pytest.mark.parametrize("suite", SUITES)
def test_cases_that_are_not_listed_pass(suite: str) -> None:
    """Every other case with the same ops."""
    of_ops: dict[tuple[str, ...], list[Case]] = {}
    for case in cases(suite):
        if case.name not in listed():
            of_ops.setdefault(tuple(node.op_type for node in case.model.graph.node), []).append(case)
    pass_all(case for each in of_ops.values() for case in each[::2])


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
def test_every_case_that_is_not_listed_passes(suite: str) -> None:
    pass_all(case for case in cases(suite) if case.name not in listed())


def pass_all(chosen: Iterable[Case]) -> None:
    faults = [fault for case in chosen if (fault := wrong(case))]
    assert not faults, f"{len(faults)} wrong:\n" + "\n".join(faults)


@pytest.mark.parametrize("suite", SUITES)
def test_every_listed_case_is_refused_with_the_reason_listed(suite: str) -> None:
    for case in cases(suite):
        if case.name in listed():
            with pytest.raises(Unsupported) as caught:
                for _ in graphs(case):
                    pass
            assert reason_of(caught.value) == listed()[case.name], case.name


def test_listed_cases_exist_and_enough_are_not_listed() -> None:
    names = {case.name for suite in SUITES for case in cases(suite)}
    assert not listed().keys() - names
    nodes = {case.name for case in cases("node")}
    assert len(nodes) == 1884
    assert len(nodes - listed().keys() - OPEN) >= 1630


def traced_or_refused(seeds: range) -> None:
    """A damaged model may still mean something; if it does not, it is an error of ours, which says where."""
    for seed in seeds:
        what, proto, named = damaged(seed)
        try:
            model = mesh.load(proto)
            model.graph(model.given([{spec.name: named[spec.name] for spec in model.inputs}]))
        except MeshError:
            continue
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def test_damaged_models_are_traced_or_refused() -> None:
    traced_or_refused(range(300))


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 21000, 2000))
def test_many_damaged_models_are_traced_or_refused(first: int) -> None:
    traced_or_refused(range(first, first + 2000))
