"""The places that an engine host needs are found, whatever else lies where modules are looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worker.engine_host import sandbox

PATH_CHARS_MAX = 4095


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is Linux's")
def test_a_folder_that_cannot_be_looked_into_costs_no_host_its_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another user, or as here one whose files have names that are too long."""
    folder = tmp_path
    while (left := PATH_CHARS_MAX - len(str(folder)) - len("/y/")) > 250:
        folder /= "x" * min(left - 210, 200)
    folder.mkdir(parents=True)
    (folder / "module.py").touch()
    (folder / ("y" * left)).mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    assert folder / "module.py" in set(sandbox._interpreter())
