"""A user's program on the coordinator's host: makes a call for every line on stdin, which names its strategy.

Each is answered by a line of JSON: whether the answer was right, who worked, for how long, and why so; or the error.
`LanCaller` is the test's end of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.compare import assert_as_promised
from support.lan.lan_mesh import LanMesh
from support.processes.commands import ROOT, environment
from support.processes.faults import tower

from mesh import Mesh, errors

WIDTH, DEPTH, ROWS = 256, 6, 128
WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Called:
    """What became of a call."""

    right: bool
    workers: tuple[str, ...] = ()
    seconds: float = 0.0
    reasons: tuple[str, ...] = ()
    error: str = ""


class LanCaller:
    """The program, started; it ends with its host."""

    def __init__(self, mesh: LanMesh, folder: Path) -> None:
        env = environment(folder / "coordinator") | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
        words = [sys.executable, "-m", "support.lan.lan_caller", mesh.mesh]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = mesh.host.start(*words, env=env, text=True, **pipes)

    def begin(self, strategy: str = "pipeline") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(strategy + "\n")
        self._process.stdin.flush()

    def end(self) -> Called:
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        return Called(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})

    def call(self, strategy: str = "pipeline") -> Called:
        self.begin(strategy)
        return self.end()


def main() -> None:
    rng = np.random.default_rng(0)
    layers = [(rng.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32) for _ in range(DEPTH)]
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    with Mesh.builder().mesh(sys.argv[1]).node("127.0.0.1").build() as mesh:
        expected = mesh.run(tower, layers, x, mode="off")
        held = mesh.put(layers)
        for line in sys.stdin:
            began_s = time.monotonic()
            try:
                strategy = line.strip()
                job = mesh.submit(tower, held, x, strategy=strategy, mode="on")
                answer = job.result(timeout_s=WITHIN_S)
                report = mesh.report()
                assert_as_promised(strategy, answer, expected, len(layers))
                said = {
                    "right": True,
                    "workers": sorted(report.workers),
                    "seconds": time.monotonic() - began_s,
                    "reasons": list(report.reasons),
                }
            except (AssertionError, errors.MeshError) as error:
                said = {"right": False, "error": str(error), "seconds": time.monotonic() - began_s}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
