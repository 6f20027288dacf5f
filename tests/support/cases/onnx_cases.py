"""The backend tests of the package `onnx` as cases: a model, and what it gives for which inputs.

    for case in cases("node"): judge(case, evaluate)

The suites are "node", "simple", "pytorch-operator" and "pytorch-converted".  `listed()` are the cases that this
importer does not do, with the reason that it gives; `python tests/support/cases/onnx_cases.py` writes that list anew,
which is right only when what is supported was meant to change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import mesh
from mesh.models.model import Model
from wire.errors import Unsupported
from wire.ir.graph import WireGraph

LISTED = Path(__file__).parents[2] / "golden" / "onnx_unsupported.txt"
SUITES = ("node", "simple", "pytorch-operator", "pytorch-converted")

# Random ops with a seed: which numbers a seed gives is open, so types and shapes are compared.
OPEN = frozenset({"test_bernoulli_seed", "test_bernoulli_seed_expanded"})

Evaluate = Callable[[WireGraph, Mapping[str, NDArray[Any]]], Sequence[NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Case:
    """One test: `rounds` are inputs and expected outputs, as the package has them."""

    name: str
    model: Any
    rounds: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float


@cache
def cases(suite: str) -> tuple[Case, ...]:
    """Every test of a suite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose
        return tuple([_case(each) for each in load_model_tests(kind=suite)])


@cache
def listed() -> dict[str, str]:
    """The reason by the name of each test that is not supported."""
    found: dict[str, str] = {}
    reason = ""
    for line in LISTED.read_text().splitlines():
        if line.startswith("# "):
            reason = line.removeprefix("# ")
        elif line:
            found[line] = reason
    return found


def graphs(case: Case) -> Iterator[tuple[Model, WireGraph, dict[str, NDArray[Any]], list[Any]]]:
    """The model, the graph, its inputs and params, and what it gives, for each round; Unsupported if it is."""
    model = mesh.load(case.model)
    for inputs, outputs in case.rounds:
        named = {declared.name: array(value) for declared, value in zip(case.model.graph.input, inputs, strict=False)}
        given = model.given([{spec.name: named[spec.name] for spec in model.inputs}])
        graph = model.graph(given)
        params = {name: model.weights[name] for name in graph.param_types}
        yield model, graph, {**model.dynamic(given), **params}, outputs


def judge(case: Case, evaluate: Evaluate) -> None:
    """AssertionError unless every output is as the package says; Unsupported if the importer says so."""
    for _, graph, arguments, outputs in graphs(case):
        found = evaluate(graph, arguments)
        assert len(found) == len(outputs), f"{len(found)} outputs, expected {len(outputs)}"
        for actual, expected in zip(found, outputs, strict=True):
            compare(actual, array(expected), case)


def compare(actual: NDArray[Any], expected: NDArray[Any], case: Case) -> None:
    """As the package's own runner compares: bfloat16 to two of its steps.

    Besides, float32 may be off by one rounding of the largest value: what should be 0 is noise in the expected values.
    """
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if case.name in OPEN:
        return
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected)
        return
    rtol = max(case.rtol, 2**-6) if expected.dtype.name == "bfloat16" else case.rtol
    wide = expected.astype(np.float64)
    rounding = 2.0**-23 if expected.dtype == np.float32 else 0.0
    largest = float(np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0))
    np.testing.assert_allclose(actual.astype(np.float64), wide, rtol=rtol, atol=case.atol + rounding * largest)


def array(value: Any) -> NDArray[Any]:
    """A tensor of a case; Unsupported for what is none."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if value is None or isinstance(value, (list, dict)):
        raise Unsupported(f"a value of class {type(value).__name__}")
    return np.asarray(value)


def _case(test: Any) -> Case:
    if test.data_sets is not None:
        rounds = [(list(inputs), list(outputs)) for inputs, outputs in test.data_sets]
        return Case(test.name, test.model, tuple(rounds), test.rtol, test.atol)
    model = onnx.load(str(Path(test.model_dir) / "model.onnx"))
    rounds = [
        (_stored(folder, "input", model.graph.input), _stored(folder, "output", model.graph.output))
        for folder in sorted(Path(test.model_dir).glob("test_data_set*"))
    ]
    return Case(test.name, model, tuple(rounds), test.rtol, test.atol)


def _stored(folder: Path, what: str, declared: Sequence[Any]) -> list[Any]:
    found = []
    for place in range(len(list(folder.glob(f"{what}_*.pb")))):
        if declared[place].type.WhichOneof("value") != "tensor_type":
            found.append(None)
            continue
        tensor = onnx.TensorProto()
        tensor.ParseFromString((folder / f"{what}_{place}.pb").read_bytes())
        found.append(tensor)
    return found


def reason_of(error: Unsupported) -> str:
    """The first reason in an error, without the node's name."""
    lines = error.message.splitlines()
    return (lines[1] if len(lines) > 1 else lines[0]).rpartition(": ")[2]


def current() -> str:
    """The list as this version of the code has it."""
    by_reason: dict[str, list[str]] = {}
    for suite in SUITES:
        for case in cases(suite):
            try:
                for _ in graphs(case):
                    pass
            except Unsupported as error:
                by_reason.setdefault(reason_of(error), []).append(case.name)
    return "\n".join(
        f"# {reason}\n" + "".join(f"{name}\n" for name in sorted(names)) for reason, names in sorted(by_reason.items())
    )


if __name__ == "__main__":
    LISTED.write_text(current())
