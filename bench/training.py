"""Data-parallel training, beside torch's DistributedDataParallel over gloo, in turn in the same run.

    python bench/training.py [--model mlp] [--workers 1 2 4] [--steps 250] [--rounds 3] [--torch PYTHON]
    python bench/training.py --unlike [--steps 250] [--rounds 3]

mlp: 784-512-512-10 with SGD and momentum, 512 rows per step in all.  gpt: 4 layers, width 256, 4 heads, 128 tokens of
256, 16 rows per step in all, AdamW; 6 steps unless `--steps` says otherwise.  Both with one thread per process, data
that lie on the workers, and new processes and workers in every round.  torch alone, without DDP, is its figure for one
process.

Printed are medians over rounds of steps/s, and medians of the rounds' ratios, since absolute figures drift with the
machine; on stderr each round's, and what share of the processors the host of a virtual machine gave to others.  Of
either side only stretches of 25 steps (gpt: one) count in which that was 3 % at most; where these are less than half of
the steps the run is repeated, three times at most, and its stretches are added to them.  Efficiency is steps/s with n
workers over n times steps/s with the first number asked for.  The last round also says where the time of ours went, per
step: by worker (MESH_PROFILE=1), and the processor time of engine hosts, of their daemons and of this process, which is
the client and the coordinator.  What hosts spend beyond computing goes into calls and into what they exchange, what the
others spend into messages.  Last comes the work of a step in this process.

With `--unlike` two workers train the mlp whose speeds are 3 to 1 (`mesh-worker --throttle flops=`), with even shares
and with shares by speed.  The fast one alone stands beside, and the ideal: all work over the sum of both speeds, and
nothing to be exchanged.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

SIZES, MLP_ROWS, MLP_DATA = (784, 512, 512, 10), 512, 8192
LAYERS, WIDTH, HEADS, LENGTH, TOKENS, GPT_ROWS = 4, 256, 4, 128, 256, 16
WARM = {"mlp": 10, "gpt": 2}
STEPS = {"mlp": 250, "gpt": 6}
STRETCH = {"mlp": 25, "gpt": 1}  # steps
STOLEN_MAX, TAKEN_MAX = 0.03, 3  # of the processors in a stretch that counts; how often a run is made
Figures = dict[int, float]  # steps/s by number of workers
Mark = tuple[int, float, float, float]  # steps done, seconds, and what `machine_s` says


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(WARM), default="mlp")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", default="", help="a Python that has torch")
    parser.add_argument("--unlike", action="store_true", help="two workers, one three times as fast as the other")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.steps = asked.steps or STEPS[asked.model]
    if asked.rank >= 0:
        ddp_rank(asked)
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if asked.unlike:
        unlike(asked)
        return
    rounds: list[tuple[Figures, Figures]] = []
    sides: dict[str, Callable[[int], list[Mark]]] = {"mesh": lambda workers: ours(asked.model, workers, asked.steps)}
    if asked.torch:
        sides["DDP"] = lambda workers: ddp(asked, workers)
    for number in range(asked.rounds):
        if number == asked.rounds - 1:
            os.environ["MESH_PROFILE"] = "1"
        rounds.append(({}, {}))
        for workers in asked.workers:
            for side, (name, measure) in zip(rounds[-1], sides.items(), strict=False):
                what = f"round {number + 1}, {workers} workers, {name}"
                side[workers] = undisturbed(what, asked.steps, partial(measure, workers))
    show(asked, rounds)
    del os.environ["MESH_PROFILE"]
    alone = rate(stretches(ours(asked.model, 0, asked.steps)))
    print(f"the work of a step takes {1e3 / alone:.1f} ms in this process")


class Clock:
    """Marks the time when the warm-up is over and after every stretch of steps since."""

    def __init__(self, model: str) -> None:
        self.marks: list[Mark] = []
        self._warm, self._stretch = WARM[model], STRETCH[model]

    def did(self, steps: int) -> None:
        """So many are done in all."""
        if steps >= self._warm and (steps - self._warm) % self._stretch == 0:
            self.marks.append((steps, time.perf_counter(), *machine_s()))


def machine_s() -> tuple[float, float]:
    """Seconds of all processors since the machine began, and those that its host gave to others (0 if unknown)."""
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return time.monotonic(), 0.0
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return sum(ticks) * tick_s, ticks[7] * tick_s


def undisturbed(what: str, steps: int, measure: Callable[[], list[Mark]]) -> float:
    """Steps/s of the stretches that count, of as many runs as that takes; if there are none, of the best stretch."""
    found: list[tuple[float, int, float]] = []  # stolen, steps, seconds
    for _ in range(TAKEN_MAX):
        made = stretches(measure())
        found += made
        counted = [each for each in found if each[0] <= STOLEN_MAX] or [min(found)]
        of_run = f"{rate(made):.2f} steps/s, {max(each[0] for each in made):.1%} stolen at most"
        count, pace = sum(each[1] for each in counted), rate(counted)
        print(f"{what}: {of_run}; {pace:.2f} of the {count} steps that count", file=sys.stderr, flush=True)
        if 2 * count >= steps and counted[0][0] <= STOLEN_MAX:
            break
    return rate(counted)


def stretches(marks: Sequence[Mark]) -> list[tuple[float, int, float]]:
    """Between marks: the share of the processors that the machine did not have, the steps and the seconds."""
    return [
        ((after[3] - before[3]) / max(after[2] - before[2], 1e-9), after[0] - before[0], after[1] - before[1])
        for before, after in itertools.pairwise(marks)
    ]


def rate(stretches: Sequence[tuple[float, int, float]]) -> float:
    """Steps/s of all of them."""
    return sum(each[1] for each in stretches) / sum(each[2] for each in stretches)


def show(asked: argparse.Namespace, rounds: list[tuple[Figures, Figures]]) -> None:
    print(f"{asked.model}, {asked.steps} steps, {asked.rounds} rounds: steps/s (efficiency)")
    print(f"{'workers':>8}{'mesh':>18}" + f"{'DDP':>18}{'mesh/DDP':>10}{'efficiencies':>14}" * bool(asked.torch))
    for workers in asked.workers:
        line = f"{workers:>8}"
        for side in (0, 1)[: 1 + bool(asked.torch)]:
            steps = statistics.median(each[side][workers] for each in rounds)
            line += f"{steps:>11.2f} ({efficiency(asked, rounds, side, workers):.2f})"
        if asked.torch:
            ratio = statistics.median(ours[workers] / theirs[workers] for ours, theirs in rounds)
            better = efficiency(asked, rounds, 0, workers) / efficiency(asked, rounds, 1, workers)
            line += f"{ratio:>9.2f}x{better:>13.2f}x"
        print(line)
    print("goals: mesh/DDP >= 0.7 and efficiency >= DDP's with 2 and 4 workers", flush=True)


def efficiency(asked: argparse.Namespace, rounds: list[tuple[Figures, Figures]], side: int, workers: int) -> float:
    first = asked.workers[0]
    return statistics.median(each[side][workers] / each[side][first] for each in rounds) * first / workers


# -- ours ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained: one loss per row, first params, the data and how many rows a step has."""

    loss: Callable[..., Any]
    params: Any
    data: Any
    optimizer: Any
    rows: int


def mlp() -> Task:
    from mesh import nn, optim

    def loss(params: Any, x: Any, y: Any) -> Any:
        for weights, bias in params[:-1]:
            x = nn.relu(x @ weights + bias)
        weights, bias = params[-1]
        return nn.cross_entropy(x @ weights + bias, y, reduction="none")

    rng = np.random.default_rng(0)
    params = [
        (rng.normal(0, n**-0.5, (n, m)).astype(np.float32), np.zeros(m, np.float32))
        for n, m in itertools.pairwise(SIZES)
    ]
    x = rng.normal(size=(MLP_DATA, SIZES[0])).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(SIZES[0], SIZES[-1])), axis=1).astype(np.int32)
    return Task(loss, params, (x, y), optim.sgd(0.05, momentum=0.9), MLP_ROWS)


def gpt() -> Task:
    from mesh import nn, optim, random

    keys = random.split(random.key(0), LAYERS + 3)
    gelu = partial(nn.gelu, approximate=True)
    blocks = [
        nn.TransformerBlock.init(
            keys[each], WIDTH, HEADS, causal=True,
            mlp=type("Mlp", (), {"init": staticmethod(partial(nn.MLP.init, activation=gelu))}),
        )
        for each in range(LAYERS)
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    tables = [rng.normal(0, 0.02, shape).astype(np.float32) for shape in ((TOKENS, WIDTH), (LENGTH, WIDTH))]
    head = nn.Linear.init(keys[-1], WIDTH, TOKENS)

    def loss(params: Any, tokens: Any) -> Any:
        (words, places), blocks, norm, head = params
        x = nn.embedding(tokens[:, :-1], words) + places
        for block in blocks:
            x = block(x)
        return nn.cross_entropy(head(norm(x)), tokens[:, 1:], reduction="none").mean(axis=1)

    tokens = rng.integers(0, TOKENS, (8 * GPT_ROWS, LENGTH + 1)).astype(np.int32)
    params = (tables, blocks, nn.LayerNorm.init(WIDTH), head)
    return Task(loss, params, tokens, optim.adamw(1e-3), GPT_ROWS)


TASKS: dict[str, Callable[[], Task]] = {"mlp": mlp, "gpt": gpt}


def ours(model: str, workers: int, steps: int) -> list[Mark]:
    """What a run of whole workers takes; with 0, of this process."""
    from mesh import DistributedTrainer, Mesh
    from mesh.training import Callback, StepReport

    clock, spent = Clock(model), list[dict[str, float]]()
    task, warm, measured = TASKS[model](), WARM[model], bool(workers and os.environ.get("MESH_PROFILE"))

    class Watch(Callback):
        def on_step(self, report: StepReport) -> None:
            if measured and report.step in (warm + 1, warm + steps):
                spent.append(processor_s())
            clock.did(report.step)

    trainer = DistributedTrainer(task.loss, task.params, optimizer=task.optimizer)

    def fit(data: Any) -> list[Mark]:
        trainer.fit(data, epochs=10_000, batch_size=task.rows, steps=steps + warm, callbacks=[Watch()])
        return clock.marks

    if not workers:
        return fit(task.data)
    if measured:
        print(f"{model} on {workers} workers:", file=sys.stderr, flush=True)
    with Mesh.builder().local(workers, engine="native", threads=1).node_timeout(20).build() as mesh:
        trainer.distribute(mesh)
        found = fit(mesh.put(task.data))
    if measured:
        each = {role: 1e3 * (spent[1][role] - spent[0][role]) / (steps - 1) for role in spent[0]}
        print("processor ms: " + ", ".join(f"{role} {ms:.2f}" for role, ms in each.items()), file=sys.stderr)
    return found


def processor_s() -> dict[str, float]:
    """Seconds of processor time so far: of all engine hosts, of all daemons, and of this process."""
    import psutil

    me = psutil.Process()
    found = {"hosts": 0.0, "daemons": 0.0, "this process": sum(me.cpu_times()[:2])}
    for daemon in me.children():
        found["daemons"] += sum(daemon.cpu_times()[:2])
        found["hosts"] += sum(sum(host.cpu_times()[:2]) for host in daemon.children())
    return found


# -- workers of unlike speed --------------------------------------------------------------------------------


FAST, SLOW = 1.5e10, 5e9  # flops/s


def unlike(asked: argparse.Namespace) -> None:
    from mesh import DataParallel

    ways = {
        "the fast one alone": ((FAST,), DataParallel(by_speed=False)),
        "even shares": ((FAST, SLOW), DataParallel(by_speed=False)),
        "by speed": ((FAST, SLOW), DataParallel()),
    }
    rounds = [{way: paced(*given, asked.steps) for way, given in ways.items()} for _ in range(asked.rounds)]
    found = {way: statistics.median(each[way][0] for each in rounds) for way in ways}
    found["ideal"] = (FAST + SLOW) / step_flops()
    print(f"mlp, {asked.steps} steps, {asked.rounds} rounds, {FAST:.3g} and {SLOW:.3g} flops/s: steps/s")
    for way, steps in found.items():
        print(f"{way:>20}{steps:>8.2f}")
    print(rounds[-1]["by speed"][1])
    print(
        f"by speed / even: {found['by speed'] / found['even shares']:.2f} (goal: 1.5), "
        f"by speed / ideal: {found['by speed'] / found['ideal']:.2f} (goal: 0.8)",
        flush=True,
    )


def paced(speeds: Sequence[float], strategy: Any, steps: int) -> tuple[float, str]:
    """Steps/s of workers that compute so fast, and which shares they had in the end, as the plan has it."""
    from predict import meshed

    from mesh import DistributedTrainer
    from mesh.training import Callback, StepReport

    task, warm = mlp(), WARM["mlp"]
    times, said = list[float](), list[str]()

    class Clock(Callback):
        def on_step(self, report: StepReport) -> None:
            times.append(time.perf_counter())

    trainer = DistributedTrainer(task.loss, task.params, optimizer=task.optimizer, strategy=strategy)
    with meshed([f"flops={speed:.3g}" for speed in speeds]) as mesh:
        mesh.watch(lambda event: said.append(event["text"]) if event["kind"] == "planned" else None)
        data = mesh.put(task.data)
        trainer.distribute(mesh).fit(data, epochs=10_000, batch_size=task.rows, steps=steps + warm, callbacks=[Clock()])
    shares = next((reason for text in reversed(said) for reason in text.split("; ") if "by speed" in reason), "")
    return (len(times) - warm) / (times[-1] - times[warm - 1]), shares


def step_flops() -> int:
    """Of a whole step, as the op table counts them."""
    from mesh import trace
    from mesh.training.data import Cursor, Rows, Shares, padded
    from mesh.training.step import training_step
    from mesh.training.step_config import Recipe
    from mesh.training.trainer import initial_state

    task = mlp()
    recipe = Recipe(task.loss, task.optimizer)
    rows = Rows(tuple(leaf[: task.rows] for leaf in task.data), task.rows, Cursor())
    given = padded(rows, Shares.of(recipe, 1, task.rows))
    return trace(training_step(recipe, 1, False, False), initial_state(recipe, task.params), None, *given).flops


# -- torch ---------------------------------------------------------------------------------------------------


def ddp(asked: argparse.Namespace, workers: int) -> list[Mark]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [asked.torch, str(HERE), "--model", asked.model, "--steps", str(asked.steps), "--port", str(port)]
    ranks = [
        subprocess.Popen([*command, "--workers", str(workers), "--rank", str(rank)], stdout=subprocess.PIPE)
        for rank in range(workers)
    ]
    printed, codes = ranks[0].communicate()[0], [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(f"a process of DDP ended with {codes}")
    return [tuple(mark) for mark in json.loads(printed.splitlines()[-1])]


def ddp_rank(asked: argparse.Namespace) -> None:
    """One process of torch's, which prints its marks if it is the first."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    (world,), rank, warm = asked.workers, asked.rank, WARM[asked.model]
    net, step_loss, rows, optimizer = {"mlp": torch_mlp, "gpt": torch_gpt}[asked.model]()
    if world > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(asked.port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=world)
        net = DistributedDataParallel(net)
    adapt, share, clock = optimizer(net.parameters()), rows // world, Clock(asked.model)
    for step in range(asked.steps + warm):
        adapt.zero_grad(set_to_none=True)
        step_loss(net, step * rows + rank * share, share).backward()
        adapt.step()
        clock.did(step + 1)
    if rank == 0:
        print(json.dumps(clock.marks), flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def torch_mlp() -> Any:
    import torch
    from torch import nn

    layers: list[Any] = []
    for n, m in itertools.pairwise(SIZES):
        layers += [nn.Linear(n, m), nn.ReLU()]
    x = torch.randn(MLP_DATA, SIZES[0])
    y = torch.randn(SIZES[-1], SIZES[0]).matmul(x.T).argmax(0)

    def loss(net: Any, start: int, count: int) -> Any:
        at = slice(start % MLP_DATA, start % MLP_DATA + count)
        return nn.functional.cross_entropy(net(x[at]), y[at])

    return nn.Sequential(*layers[:-1]), loss, MLP_ROWS, lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9)


def torch_gpt() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as f

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.u, self.d = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            rows = x.shape[0]
            parts = self.qkv(self.n1(x)).chunk(3, -1)
            q, k, v = (z.view(rows, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for z in parts)
            found = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, LENGTH, WIDTH)
            x = x + self.o(found)
            return x + self.d(f.gelu(self.u(self.n2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, TOKENS)

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    tokens = torch.randint(0, TOKENS, (8 * GPT_ROWS, LENGTH + 1))

    def loss(net: Any, start: int, count: int) -> Any:
        rows = tokens[start % len(tokens) : start % len(tokens) + count]
        return f.cross_entropy(net(rows[:, :-1]).reshape(-1, TOKENS), rows[:, 1:].reshape(-1))

    return Gpt(), loss, GPT_ROWS, lambda params: torch.optim.AdamW(params, lr=1e-3)


if __name__ == "__main__":
    main()
