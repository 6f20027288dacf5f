"""A mesh that the system has no processes or open files for: an error that says so, and nothing that stays."""

from __future__ import annotations

import os
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
    refused = ("ConfigError the system refuses what a mesh needs", "ConfigError no folder can be made in ")
    assert done.stdout.startswith(("built 6", *refused, "ConnectFailed ")), done
    assert done.stdout.startswith("built") or "Too many open files" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="another user is this process's, as in a container")
def test_a_user_without_a_name_has_a_mesh(tmp_path: Path) -> None:
    script = """
import os, pwd
import mesh

def unnamed(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = unnamed
with mesh.Mesh.builder().local(1, engine="cpu").build() as built:
    print("built", len(built.nodes), built.run(lambda x: x + 1, 2))
"""
    names = ("LOGNAME", "USER", "LNAME", "USERNAME", "MESH_NAME")
    env = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=env
    )
    assert done.stdout.startswith("built 1 3"), done
