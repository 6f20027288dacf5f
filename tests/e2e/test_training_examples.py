"""The training examples on real worker processes: they assert their own numbers."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_three_workers_fit_a_sine() -> None:
    assert example("fit_sine")["main"]() < 1e-3


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_digits_are_learnt_although_a_worker_is_killed() -> None:
    pytest.importorskip("sklearn")
    assert example("digits")["main"]() > 0.93
