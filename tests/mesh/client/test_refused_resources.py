"""A mesh that the system has no processes or open files for: an error that says so, and nothing that stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource, sys
import mesh

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
try:
    with mesh.Mesh.builder().local(6, engine="cpu").build() as built:
        print("built", len(built.nodes))
except mesh.errors.MeshError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize("files", range(8, 64, 12))
def test_too_few_open_files_are_an_error_that_says_so(files: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("built 6", "ConfigError the system refuses what a mesh needs", "ConnectFailed ")), (
        done
    )
    assert done.stdout.startswith("built") or "Too many open files" in done.stdout
    assert "Traceback" not in done.stderr
