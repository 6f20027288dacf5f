"""The engines beside their peers on the same work: numpy, torch, JAX, onnxruntime and tinygrad, in turn in one run.

    python bench/engines.py --peers PYTHON [--engine native] [--threads 1] [--rounds 9] [--write] [CASE ...]

PYTHON has what is to be compared: torch, jax, onnxruntime with onnx, tinygrad (with dawn-python for WebGPU); what it
has not is left out, and named.  Every library is a process of its own on the same cores, with as many threads; a round
is a call of each, and the first who is asked changes from round to round.  The others are suspended meanwhile: their
threads wait for work in loops, and would have the cores.  Printed are medians of milliseconds (of
processor time where there is one thread, so that other programs count less), and the median, the least and the largest
ratio of a round: our time over theirs.  Results are compared by their norms.  `--write` puts the table into
docs/benchmarks.md, with the date, the commit and the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
from engine_peers import CASES

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
PEERS_OF = {"native": ("numpy", "torch", "jax", "onnxruntime", "tinygrad"), "wgsl": ("tinygrad-webgpu", "numpy")}
APART_MAX = 1e-3  # of norms: the libraries round differently


class Library:
    """A process that computes cases."""

    def __init__(self, name: str, python: str, threads: int, label: str = "") -> None:
        self.name = label or name
        count = str(threads)
        limits = {f"{library}_NUM_THREADS": count for library in ("OMP", "OPENBLAS", "MKL")} | {"CPU_COUNT": count}
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
        self._process = subprocess.Popen(
            [python, str(HERE / "engine_peers.py"), name, count],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**environment, **limits, "PYTHONPATH": str(HERE.parent), "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        answer = self._answer()
        self.missing: str = answer.get("missing", "")
        self.version: str = answer.get("version", "")
        self.cases: list[str] = answer.get("cases", [])
        self._suspended = psutil.Process(self._process.pid)
        if not self.missing:
            self._suspended.suspend()

    def call(self, case: str) -> tuple[float, float | None]:
        """Seconds of a call, and the norm of the result where it is the first call."""
        assert self._process.stdin is not None
        self._suspended.resume()
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._suspended.suspend()
        return answer["seconds"], answer["norm"]

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended (exit code {self._process.wait()}); run bench/engine_peers.py by hand")
        return json.loads(line)

    def end(self) -> None:
        self._suspended.resume()
        self._process.stdin.close()
        self._process.wait(60)


@dataclass(frozen=True)
class Row:
    case: str
    ours_ms: float
    peer: str
    peer_ms: float
    ratios: tuple[float, float, float]  # the least, the median and the largest

    def cells(self) -> list[str]:
        least, median, largest = (f"{ratio:.2f}" for ratio in self.ratios)
        return [self.case, f"{self.ours_ms:.3g}", self.peer, f"{self.peer_ms:.3g}", f"**{median}**", least, largest]


def compare(case: str, ours: Library, peers: list[Library], rounds: int) -> list[Row]:
    libraries = [ours, *(peer for peer in peers if case in peer.cases)]
    norms = {library.name: library.call(case)[1] for library in libraries}
    expected = norms[ours.name]
    for name, norm in norms.items():
        if not abs(norm - expected) <= APART_MAX * expected:
            raise SystemExit(f"{case}: the results differ, norm {expected:g} of {ours.name}, {norm:g} of {name}")
    seconds: dict[str, list[float]] = {library.name: [] for library in libraries}
    for turn in range(rounds):
        first = turn % len(libraries)
        for library in (*libraries[first:], *libraries[:first]):
            seconds[library.name].append(library.call(case)[0])
    rows = []
    for peer in libraries[1:]:
        ratios = sorted(mine / theirs for mine, theirs in zip(seconds[ours.name], seconds[peer.name], strict=True))
        mine_ms, theirs_ms = (1e3 * statistics.median(seconds[name]) for name in (ours.name, peer.name))
        rows.append(Row(case, mine_ms, peer.name, theirs_ms, (ratios[0], statistics.median(ratios), ratios[-1])))
    return rows


def heading(engine: str, threads: int, libraries: list[Library]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    versions = ", ".join(f"{library.name} {library.version}" for library in libraries)
    return (
        f"{datetime.date.today().isoformat()}, commit {commit or 'unknown'}, {_processor()}, {os.cpu_count()} cores, "
        f"{threads} thread{'s' * (threads > 1)}, load {os.getloadavg()[0]:.1f} at the end. {versions}."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(rows: list[Row]) -> str:
    head = ["case", "ms", "beside", "ms", "ratio", "least", "largest"]
    lines = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(section: str, text: str) -> None:
    """Put the text between the section's marks of the page."""
    page = PAGE.read_text()
    begin, end = f"<!-- {section}: made by bench/engines.py -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    if not found:
        raise SystemExit(f"{PAGE} has no place for {section!r}")
    PAGE.write_text(f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--peers", required=True, metavar="PYTHON", help="an interpreter that has the peers")
    parser.add_argument("--engine", choices=PEERS_OF, default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    asked = parser.parse_args()
    if unknown := [case for case in asked.cases if case not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    ours = Library(asked.engine, sys.executable, asked.threads)
    if ours.missing:
        raise SystemExit(f"the engine {asked.engine} cannot be opened here: {ours.missing}")
    started = [Library(name, asked.peers, asked.threads) for name in PEERS_OF[asked.engine]]
    if asked.threads > 1 and asked.engine == "native":
        started.insert(0, Library(asked.engine, sys.executable, 1, label="one thread"))
    for library in started:
        if library.missing:
            print(f"{library.name} is left out: {library.missing}")
    peers = [library for library in started if not library.missing]
    rows = []
    for case in asked.cases:
        made = compare(case, ours, peers, asked.rounds)
        rows += made
        for row in made:
            print("  ".join(cell.replace("*", "").rjust(8) for cell in row.cells()), flush=True)
    title = heading(asked.engine, asked.threads, [ours, *peers])
    print(title)
    for library in (ours, *peers):
        library.end()
    if asked.write:
        write(f"{asked.engine} {asked.threads}", f"{title}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
