"""Commands import what they need: --version and --help next to nothing, what asks a coordinator no more than a link."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.source import ROOT

FLOOR = "import aiohttp, cryptography.x509, msgspec, numpy"  # what a link over TLS takes, whoever makes it
SHARE_MAX = 0.75  # of the floor: measured 0.25 to 0.4, and 1.9 when every command imported what some of them need
LARGE = ("aiohttp", "cryptography", "msgspec", "numpy", "ml_dtypes", "platformdirs", "rich", "zeroconf", "safetensors")
NEVER = ("mesh.nn", "mesh.models", "mesh.importers", "wgpu", "jax", "onnx", "torch", "safetensors", "scipy")
REST = (
    "mesh.client.plan_preview",
    "mesh.commands.diagnosis",
    "mesh.scripts",
    "aiohttp.web",
    "coordinator.coordinator",
    "worker",
    "zeroconf",
)

RUN = """
import json, os, sys
begun = os.times()
{what}
used = os.times()
print(json.dumps([sorted(sys.modules), used.user + used.system - begun.user - begun.system]), file=sys.stderr)
"""
PARSED = """
from mesh.commands import {command}
try:
    {command}.main({arguments!r})
except SystemExit as stop:
    assert stop.code == 0, stop.code
"""
ASKING = "import mesh.commands.coord, mesh.commands.remote_verbs, mesh.backends.remote, mesh.backends.enrolment"


def imported(what: str) -> tuple[set[str], float]:
    """The modules that are there after it, and the processor seconds that it took."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN.format(what=what)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names, seconds = json.loads(done.stderr.splitlines()[-1])
    return set(names), seconds


def of(names: set[str], packages: tuple[str, ...]) -> list[str]:
    return sorted(name for name in names if any(name == each or name.startswith(f"{each}.") for each in packages))


@pytest.mark.parametrize("command", ["coord", "worker"])
@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_what_says_a_line_imports_no_library(command: str, arguments: list[str]) -> None:
    names, _ = imported(PARSED.format(command=command, arguments=arguments))
    assert "mesh.commands.flags" in names
    assert not of(names, (*LARGE, *NEVER, *REST))


def test_what_asks_a_coordinator_imports_a_link_and_no_more() -> None:
    names, _ = imported(ASKING)
    assert {"mesh.backends.remote", "wire.link.websocket_carrier", "aiohttp"} <= names
    assert not of(names, (*NEVER, *REST))


def test_a_line_takes_less_than_the_libraries_of_a_link() -> None:
    """Processor time, in turns, and the least of each: whatever else this machine does only adds to it."""
    version = PARSED.format(command="coord", arguments=["--version"])
    times = [(imported(version)[1], imported(FLOOR)[1]) for _ in range(3)]
    line, floor = (min(each) for each in zip(*times, strict=True))
    assert line < SHARE_MAX * floor, f"{line:.2f} s, where the libraries take {floor:.2f} s"
