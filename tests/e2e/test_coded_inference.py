"""The example of coded inference: real workers, two of which are killed in the middle."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "coded_inference.py"


def test_the_example_runs_and_asserts_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "largest relative error" in capsys.readouterr().out
