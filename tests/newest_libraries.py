"""The tests of links with the newest aiohttp that pip can install: `script/test --newest`.

pyproject.toml bounds aiohttp above, because `wire/link/websocket_carrier.py` looks at attributes that it does not
document.  This says whether the bound may be raised: what it installs lies in a folder of its own, before the
environment's own on the path of Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "aiohttp"
TESTS = (
    "tests/wire/link/test_aiohttp.py",
    "tests/wire/link/test_websocket_buffers.py",
    "tests/e2e/test_transport.py",
    "tests/e2e/test_trusted_links.py",
    "tests/e2e/test_hostile_connections.py",
)


def version(env: dict[str, str]) -> str:
    """The version that a child process imports."""
    code = f"import {LIBRARY}; print({LIBRARY}.__version__)"
    command = (sys.executable, "-c", code)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Install the newest and run TESTS with it; their exit status."""
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "--upgrade", "--target", folder, LIBRARY], check=True)
        env = {**os.environ, "PYTHONPATH": folder}
        newest = version(env)
        print(f"{LIBRARY} {newest}, where the environment has {version(dict(os.environ))}", flush=True)
        command = (sys.executable, "-m", "pytest", "-q", *arguments, *TESTS)
        code = subprocess.run(command, env=env, cwd=ROOT, check=False).returncode
    print(f"{LIBRARY} {newest}: {'passed' if code == 0 else 'FAILED'}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
