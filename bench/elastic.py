"""Elastic training: what workers that are killed and come back cost, beside what torchrun, Ray and Dask need.

    python bench/elastic.py [--workers 8] [--seconds 40] [--every 5 10] [--torch PYTHON] [--rpc PYTHON] [--seed 0]

Worker processes of paced compute (`mesh-worker --throttle`, so that cores are not the limit) train data-parallel with
deterministic shards.  First nobody dies; then one worker gets SIGKILL at regular intervals, and is started again at
once.  Printed are the steps committed beside those of the run without faults, how long each fault stopped progress, how
many steps were lost, and whether the weights are to the bit those of as many undisturbed steps in this process.
It ends with 1 if a goal was missed.  Peers are measured with the scripts of `--peers` by a Python that has them, else
the published figures are shown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mesh import DistributedTrainer, Mesh, nn, optim, tree
from mesh.backends.local_workers import environment
from mesh.training import Callback, StepReport

SIZES, DATA = (64, 128, 128, 10), 4096
ROWS_PER_SHARD = 4
STEP_S = 0.2  # of a step of all workers, by their pace
GOALS = {5.0: 0.75, 10.0: 0.85}  # committed steps over those of the run without faults, by the time between faults
LOST_MAX = 1.0  # steps per fault
WARM_S = 3.0
PEERS = Path(__file__).parents[2] / "shared" / "peers"
PUBLISHED = (
    ("torchrun", "a worker: 3.2 s until steps resume; a node: 49 s"),
    ("ray", "a node: 15 s"),
    ("dask", "a worker: 0.8 to 1.8 s"),
)


def loss(params: Any, x: Any, y: Any) -> Any:
    for weights, bias in params[:-1]:
        x = nn.relu(x @ weights + bias)
    weights, bias = params[-1]
    return nn.cross_entropy(x @ weights + bias, y, reduction="none")


def made_trainer(shards: int) -> DistributedTrainer:
    rng = np.random.default_rng(0)
    params = [
        (rng.normal(0, n**-0.5, (n, m)).astype(np.float32), np.zeros(m, np.float32))
        for n, m in itertools.pairwise(SIZES)
    ]
    return DistributedTrainer(loss, params, optimizer=optim.adam(1e-3), deterministic=shards)


def made_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(DATA, SIZES[0])).astype(np.float32)
    return x, np.argmax(x @ rng.normal(size=(SIZES[0], SIZES[-1])), axis=1).astype(np.int32)


class Enough(Exception):
    """The time is over."""


class Clock(Callback):
    """When each step was committed; ends the run after a time."""

    def __init__(self, seconds: float) -> None:
        self.times: list[float] = []
        self.workers: list[tuple[float, int]] = []
        self._seconds = seconds

    def on_step(self, report: StepReport) -> None:
        self.times.append(time.monotonic())
        if self.times[-1] > self.began_s + self._seconds:
            raise Enough

    def on_workers(self, workers: int) -> None:
        self.workers.append((time.monotonic(), workers))

    @property
    def began_s(self) -> float:
        """Where measuring begins: what the first steps take is left out."""
        return self.times[0] + WARM_S

    @property
    def committed(self) -> int:
        return sum(at_s > self.began_s for at_s in self.times)


@dataclass
class Fleet:
    """The worker processes."""

    folder: Path
    throttle: str
    ports: list[int]
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Fleet:
        self._processes = [self._start(number) for number in range(len(self.ports))]
        for process in self._processes:
            assert process.stdout is not None and process.stdout.readline(), "a worker did not start"
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def kill(self, number: int) -> None:
        """End a worker as a power cut does, and start it again."""
        self._processes[number].send_signal(signal.SIGKILL)
        self._processes[number].wait()
        self._processes[number] = self._start(number)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        name = f"w{number}"
        command = [sys.executable, "-P", "-m", "mesh.commands.worker", "--local", "--quiet", "--name", name]
        command += ["--mesh", "elastic", "--device", "cpu", "--port", str(self.ports[number])]
        command += ["--state-dir", str(self.folder / name), "--cache-dir", str(self.folder / f"{name}-cache")]
        command += ["--throttle", self.throttle] if self.throttle else []
        log = (self.folder / f"{name}.log").open("ab")
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment(), cwd=self.folder
        )


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@dataclass
class Outcome:
    """A run: the times of its commits and faults, and what it came to."""

    clock: Clock
    faults: list[float]
    events: list[Mapping[str, Any]]
    weights: Any
    steps: int

    def stopped_s(self) -> list[float]:
        """After each fault, the longest time without a commit until the next one, or the end."""
        times, found = self.clock.times, []
        for at_s, until_s in itertools.pairwise([*self.faults, times[-1]]):
            last = max((each for each in times if each <= at_s), default=at_s)
            between = [last, *(each for each in times if at_s < each <= until_s)]
            if len(between) > 1:
                found.append(max(b - a for a, b in itertools.pairwise(between)))
        return found

    @property
    def lost(self) -> int:
        """Steps that some worker began and that were not committed, or that were done again."""
        words = [(each["generation"], each["text"]) for each in self.events if each["kind"] == "began"]
        return len({(generation, text.rpartition(" ")[2]) for generation, text in words}) - self.steps


def trained(fleet: Fleet, shards: int, seconds: float, every_s: float, seed: int) -> Outcome:
    """Train for so long, with a fault every so often (0: none)."""
    trainer, clock, faults, over = made_trainer(shards), Clock(seconds + WARM_S), list[float](), threading.Event()
    chance, events = random.Random(seed), list[Mapping[str, Any]]()

    def strike() -> None:
        while not clock.times:
            if over.wait(0.01):
                return
        due_s = clock.began_s + every_s / 2
        while not over.wait(max(due_s - time.monotonic(), 0.0)):
            faults.append(time.monotonic())
            fleet.kill(chance.randrange(len(fleet.ports)))
            due_s += every_s

    builder = Mesh.builder().mesh("elastic")
    for port in fleet.ports:
        builder = builder.node(f"127.0.0.1:{port}")
    with builder.build() as mesh:
        mesh.watch(events.append)
        striking = threading.Thread(target=strike)
        if every_s:
            striking.start()
        try:
            rows = ROWS_PER_SHARD * shards
            trainer.distribute(mesh).fit(made_data(), epochs=1 << 30, batch_size=rows, callbacks=[clock])
        except Enough:
            pass
        finally:
            over.set()
            if every_s:
                striking.join()
    return Outcome(clock, faults, events, trainer.params, trainer.step)


def undisturbed(shards: int, steps: int) -> Any:
    trainer = made_trainer(shards)
    trainer.fit(made_data(), epochs=1 << 30, batch_size=ROWS_PER_SHARD * shards, steps=steps)
    return trainer.params


def report(outcome: Outcome, fault_free: Outcome, every_s: float, shards: int) -> bool:
    """Print what came of the faults; whether the goals were met."""
    ratio = outcome.clock.committed / fault_free.clock.committed
    goal = GOALS.get(every_s, min(GOALS.values()))
    stopped = sorted(outcome.stopped_s())
    lost = outcome.lost / max(len(outcome.faults), 1)
    expected = undisturbed(shards, outcome.steps)
    equal = all(map(np.array_equal, tree.leaves(outcome.weights), tree.leaves(expected)))
    print(f"one of the workers killed every {every_s:g} s: {len(outcome.faults)} faults")
    print(f"  committed steps over fault-free    {ratio:.3f} ({outcome.clock.committed} / "
          f"{fault_free.clock.committed})  goal {goal:g}: {'met' if ratio >= goal else 'missed'}")  # fmt: skip
    if stopped:
        print(f"  a fault stopped progress for       p50 {statistics.median(stopped):.2f} s  max {stopped[-1]:.2f} s")
    print(f"  steps begun and lost, or redone    {lost:.2f} per fault  goal {LOST_MAX:g}: "
          f"{'met' if lost <= LOST_MAX else 'missed'}")  # fmt: skip
    print(f"  weights after {outcome.steps} steps equal to the bit: {'yes' if equal else 'NO'}", flush=True)
    return ratio >= goal and lost <= LOST_MAX and equal


def peers(torch: str, rpc: str, folder: Path) -> None:
    """Run the scripts that measure faults of others, or say what was published."""
    scripts = (
        ("torchrun", torch, "fault_torchrun.py", ["local"]), ("ray", rpc, "fault_ray.py", ["node"]),
        ("dask", rpc, "fault_dask.py", ["nanny"]),
    )  # fmt: skip
    for (name, python, script, arguments), (_, published) in zip(scripts, PUBLISHED, strict=True):
        if not python or not (folder / script).exists():
            print(f"{name}: not run here; published {published}")
            continue
        found = subprocess.run([python, script, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        for line in found.stdout.splitlines():
            if not line.startswith("{"):
                continue
            figure = json.loads(line)
            if figure["value"] is not None and figure["unit"] == "s":
                print(f"{name}: {figure['what']} {figure['value']:.3g} s ({figure['note']})")
        if found.returncode:
            print(f"{name}: its script ended with {found.returncode}; published {published}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8 if (os.cpu_count() or 1) > 2 else 4)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--every", type=float, nargs="*", default=[5.0, 10.0])
    parser.add_argument("--shards", type=int, default=0, help="of a batch; 0: what n and n - 1 workers share evenly")
    parser.add_argument("--torch", default="", help="a Python that has torch")
    parser.add_argument("--rpc", default="", help="a Python that has Ray and Dask")
    parser.add_argument("--peers", type=Path, default=PEERS)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    shards = asked.shards or asked.workers * (asked.workers - 1)
    flops = 6 * ROWS_PER_SHARD * shards * sum(n * m for n, m in itertools.pairwise(SIZES)) / asked.workers / STEP_S
    print(f"{asked.workers} workers of {flops:.2g} flop/s, {shards} shards, {os.cpu_count()} cores, load {load()}")
    met = []
    with tempfile.TemporaryDirectory(prefix="graph-mesh-elastic-") as made:
        folder, throttle = Path(made), f"flops={flops:.0f}"
        with Fleet(folder, throttle, free_ports(asked.workers)) as fleet:
            fault_free = trained(fleet, shards, asked.seconds, 0.0, asked.seed)
            rate = fault_free.clock.committed / asked.seconds
            print(f"without faults: {fault_free.clock.committed} steps, {rate:.2f} per second", flush=True)
            for every_s in asked.every:
                outcome = trained(fleet, shards, asked.seconds, every_s, asked.seed)
                met.append(report(outcome, fault_free, every_s, shards))
    print(f"load {load()}")
    peers(asked.torch, asked.rpc, asked.peers)
    return 0 if all(met) else 1


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
