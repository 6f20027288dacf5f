"""The cost model beside measured steps, and what `auto` chooses beside everything else.

    python bench/predict.py [--runs 5] [--only MESH]

Five programs on four meshes of worker processes whose computing and links are slowed down (`mesh-worker --throttle`),
so that the machine's own speed matters little.  Of each of the 20 cases the plan of `auto` is predicted, after a few
calls from which the model learns, and measured: the median of `--runs` calls or steps.  Then for some of them every
strategy that there is a plan for is tried, interleaved: `auto` should be within 10 % of the best, or within the spread
of the best one's runs.  It ends with 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from elastic import free_ports

import mesh.numpy as mnp
from mesh import Mesh, tree, value_and_grad
from mesh.backends.local_workers import environment
from mesh.errors import MeshError

OFF_MAX, BEHIND_MAX = 2.0, 1.1
WARM = 4  # calls before the one that is predicted
STRATEGIES = ("single", "pipeline", "data", "tensor", "fully-sharded")
RNG = np.random.default_rng(0)

MESHES: dict[str, Sequence[str]] = {
    "three alike": ("flops=1e8,rate=400Mbit/s",) * 3,
    "unlike": ("flops=2e8,rate=400Mbit/s", "flops=1e8,rate=400Mbit/s", "flops=2e7,rate=400Mbit/s"),
    "far apart": ("flops=1e8,rate=20Mbit/s,delay=20ms",) * 3,
    "one far away": ("flops=1e8,rate=400Mbit/s", "flops=1e8,rate=400Mbit/s", "flops=1e8,rate=1Mbit/s,delay=80ms"),
}


def weights(*sizes: int) -> list[Any]:
    return [RNG.normal(0, n**-0.5, (n, m)).astype(np.float32) for n, m in itertools.pairwise(sizes)]


def rows(count: int, width: int) -> Any:
    return RNG.normal(size=(count, width)).astype(np.float32)


def tower(params: Any, x: Any) -> Any:
    for w in params:
        x = mnp.tanh(x @ w)
    return x


def total(params: Any, x: Any) -> Any:
    return mnp.sum(tower(params, x), axis=0)


def branches(params: Any, x: Any) -> Any:
    found = [tower(branch, x) for branch in params]
    return sum(found[1:], found[0])


def trained(state: Any, x: Any, y: Any) -> Any:
    loss, gradients = value_and_grad(lambda params: mnp.mean((tower(params, x) - y) ** 2))(state)
    return tree.map(lambda w, g: w - 0.01 * g, state, gradients), loss


@dataclass(frozen=True, slots=True)
class Case:
    """A program: what is held, and what comes with every call.  With `carried` it is a session's step."""

    fn: Callable[..., Any]
    held: Any
    given: tuple[Any, ...]
    carried: bool = False


CASES: dict[str, Case] = {
    "many rows": Case(total, weights(128, 128, 128, 128), (rows(512, 128),)),
    "wide, one row": Case(tower, weights(1024, 2048, 1024), (rows(2, 1024),)),
    "rows there and back": Case(tower, weights(256, 256), (rows(512, 256),)),
    "branches": Case(branches, [weights(192, 192, 192) for _ in range(3)], (rows(128, 192),)),
    "training": Case(trained, weights(128, 128, 128), (rows(256, 128), rows(256, 128)), carried=True),
}
TRIED = (
    ("three alike", "many rows"), ("three alike", "wide, one row"), ("three alike", "training"),
    ("unlike", "many rows"), ("unlike", "branches"), ("far apart", "rows there and back"),
    ("one far away", "many rows"), ("one far away", "training"),
)  # fmt: skip


# -- workers ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def meshed(throttles: Sequence[str]) -> Iterator[Mesh]:
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder, ports = Path(made), free_ports(len(throttles))
        processes = []
        for number, (throttle, port) in enumerate(zip(throttles, ports, strict=True)):
            command = [sys.executable, "-P", "-m", "mesh.commands.worker", "--local", "--quiet", "--mesh", "predict"]
            command += ["--name", f"w{number}", "--device", "cpu", "--port", str(port), "--throttle", throttle]
            command += ["--state-dir", str(folder / f"w{number}"), "--cache-dir", str(folder / f"c{number}")]
            log = stack.enter_context((folder / f"w{number}.log").open("wb"))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            processes.append(subprocess.Popen(command, **pipes, env=environment(), cwd=folder))
            stack.callback(_end, processes[-1])
        for process in processes:
            assert process.stdout is not None and process.stdout.readline(), "a worker did not start"
        builder = Mesh.builder().mesh("predict")
        for port in ports:
            builder = builder.node(f"127.0.0.1:{port}")
        with builder.build() as built:
            time.sleep(LINKS_S)
            yield built


LINKS_S = 8.0  # until links are measured


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# -- calls and steps --------------------------------------------------------------------------------------


class Runner:
    """One case by one strategy: `predicted_s` of a step now, and `run` for one that is timed."""

    def __init__(self, built: Mesh, case: Case, strategy: str, stack: contextlib.ExitStack) -> None:
        self._mesh, self._case, self._strategy, self._stack = built, case, strategy, stack
        self._held = None if case.carried else built.put(case.held)
        self._session: Any = None
        self.began()

    def began(self) -> None:
        """Plan anew, by what is known now."""
        case = self._case
        if case.carried:
            if self._session is not None:
                self._session.close()
            opened = self._mesh.session(case.fn, case.held, *case.given, copies="none", strategy=self._strategy)
            self._session = self._stack.enter_context(contextlib.closing(opened))
            self._session.step(*case.given).result()

    @property
    def plan(self) -> tuple[float, str]:
        """Seconds that are predicted of a step, and what it is called."""
        if self._case.carried:
            plan = self._session.running.plan
            return plan.seconds, plan.how or plan.strategy
        seen = self._mesh.plan(self._case.fn, self._held, *self._case.given, strategy=self._strategy)
        return seen.seconds, seen.data["how"] or seen.data["strategy"]

    def run(self) -> float:
        began_s = time.perf_counter()
        if self._case.carried:
            self._session.step(*self._case.given).result()
        else:
            self._mesh.run(self._case.fn, self._held, *self._case.given, strategy=self._strategy)
        return time.perf_counter() - began_s


def predicted(built: Mesh, name: str, case: Case, runs: int) -> float:
    """Print and return how many times off the prediction is."""
    with contextlib.ExitStack() as stack:
        runner = Runner(built, case, "auto", stack)
        for _ in range(WARM):
            runner.run()
        runner.began()
        said_s, how = runner.plan
        took_s = statistics.median(runner.run() for _ in range(runs))
    off = max(said_s / took_s, took_s / said_s)
    print(
        f"{name:36} {how:36} predicted {said_s * 1e3:8.1f} ms  measured {took_s * 1e3:8.1f} ms  "
        f"ratio {took_s / said_s:5.2f}{'' if off <= OFF_MAX else '  MISSED'}",
        flush=True,
    )
    return off


def tried(built: Mesh, name: str, case: Case, runs: int) -> bool:
    """Print and return whether `auto` is as good as the best of all."""
    took: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        runners: dict[str, Runner] = {}
        for strategy in ("auto", *STRATEGIES):
            with contextlib.suppress(MeshError):
                runners[strategy] = Runner(built, case, strategy, stack)
                runners[strategy].run()
        for _ in range(runs):
            for strategy, runner in runners.items():
                took.setdefault(strategy, []).append(runner.run())
        how = runners["auto"].plan[1]
    return print_comparison(name, how, took)


def print_comparison(name: str, how: str, took: Mapping[str, Sequence[float]]) -> bool:
    median = {strategy: statistics.median(runs) for strategy, runs in took.items()}
    best = min((each for each in median if each != "auto"), key=lambda each: median[each])
    good = median["auto"] <= max(BEHIND_MAX * median[best], max(took[best]))
    others = "  ".join(f"{strategy} {seconds * 1e3:.0f}" for strategy, seconds in median.items())
    missed = "" if good else "  MISSED"
    print(f"{name:36} auto is {how}: {median['auto'] / median[best]:.2f} of {best}{missed}; ms: {others}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=MESHES, default="")
    chosen = parser.parse_args()
    off, good = [], []
    for where, throttles in MESHES.items():
        if chosen.only in ("", where):
            with meshed(throttles) as built:
                off += [predicted(built, f"{where}: {what}", case, chosen.runs) for what, case in CASES.items()]
                mine = [what for other, what in TRIED if other == where]
                good += [tried(built, f"{where}: {what}", CASES[what], chosen.runs) for what in mine]
    print(f"predicted within {OFF_MAX:g} x: {sum(each <= OFF_MAX for each in off)} of {len(off)}, worst {max(off):.2f}")
    print(f"auto as good as the best: {sum(good)} of {len(good)}")
    return int(max(off) > OFF_MAX or not all(good))


if __name__ == "__main__":
    sys.exit(main())
