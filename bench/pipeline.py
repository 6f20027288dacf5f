"""Training through a pipeline of workers: throughput over what its schedule allows.

    python bench/pipeline.py [--stages 3] [--micro-batches 8] [--steps 15] [--rows 8192] [--width 512] [--layers 6]

An MLP of equal layers on `min(3, cores - 1)` worker processes with one thread each.  The bound of a step is the bubble
formula on what the stages took in the same run: (m + S - 1) times what the slowest stage computes for a micro-batch,
forward and backward, and the slowest stage's other parts, which change the weights.  All of it is by the workers' own
clocks.  Beside it: what the same step takes on one of these workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

import mesh.numpy as mnp
from mesh import DistributedTrainer, Mesh, Pipeline, Single, nn, optim
from mesh.training.data import Cursor, data_of
from mesh.training.fit_loop import AHEAD
from mesh.training.trainer import initial_state
from mesh.training.worker_group import Choice, Feed, form_group
from wire.policy.pipeline_schedules import SCHEDULES
from wire.policy.strategies import Strategy

CLASSES, WARM = 10, 5
GOAL = 0.8


def loss(params: Any, x: Any, y: Any) -> Any:
    for weights, bias in params[:-1]:
        x = mnp.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return nn.cross_entropy((x @ weights + bias)[:, :CLASSES], y, reduction="none")


def first_params(width: int, layers: int) -> Any:
    rng = np.random.default_rng(0)
    return [
        (rng.normal(0, width**-0.5, (width, width)).astype(np.float32), np.zeros(width, np.float32))
        for _ in range(layers)
    ]


def measured(mesh: Mesh, strategy: Strategy, asked: argparse.Namespace) -> tuple[float, Any, Sequence[Any]]:
    """Seconds of a step, the plan, and what each worker took for its parts of each step."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(asked.rows, asked.width)).astype(np.float32)
    y = rng.integers(0, CLASSES, asked.rows).astype(np.int32)
    trainer = DistributedTrainer(
        loss, first_params(asked.width, asked.layers), optimizer=optim.sgd(0.05, momentum=0.9), strategy=Pipeline(
            micro_batches=asked.micro_batches, schedule=strategy.schedule if isinstance(strategy, Pipeline) else "1f1b"
        )
    )  # fmt: skip
    data = data_of((x, y), asked.rows, False, 0, False)
    rows = next(iter(data.epoch(Cursor())))
    state = initial_state(trainer.recipe, first_params(asked.width, asked.layers))
    formed = form_group(mesh, Feed(trainer.recipe, data), Choice(1, strategy.text), state, rows, "none", 10)
    try:
        under_way = deque(formed.step(rows) for _ in range(AHEAD))
        times = []
        for _ in range(WARM + asked.steps):
            under_way.popleft().result()
            times.append(time.perf_counter())
            under_way.append(formed.step(rows))
        while under_way:
            under_way.popleft().result()
        return (times[-1] - times[WARM]) / (len(times) - WARM - 1), formed.plan, formed.spans
    finally:
        formed.close()


def stage_times(plan: Any, spans: Sequence[Any], micro_batches: int) -> list[tuple[str, float, float]]:
    """Of each stage the worker, what it computes for a micro-batch, and what besides for a step, in ms: means."""
    names = {worker.node: worker.name for worker in plan.workers}
    found = []
    for node in dict.fromkeys(part.node for part in plan.parts):
        mine = [part for part in plan.parts if part.node == node]
        count: dict[bytes, int] = {}
        for part in mine:
            count[part.graph.hash] = count.get(part.graph.hash, 0) + 1
        looped = [at for at, part in enumerate(mine) if count[part.graph.hash] == micro_batches]
        taken = [span.parts_s for span in spans if span.worker == names[node] and span.step >= WARM]
        loops_ms = statistics.fmean(sum(each[at] for at in looped) for each in taken) * 1e3
        all_ms = statistics.fmean(map(sum, taken)) * 1e3
        found.append((names[node], loops_ms / micro_batches, all_ms - loops_ms))
    return found


def main() -> None:
    cores = os.cpu_count() or 2
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=max(2, min(3, cores - 1)))
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    asked = parser.parse_args()
    turns = asked.micro_batches
    print(f"load {os.getloadavg()[0]:.1f} on {cores} cores; {asked.layers} layers of {asked.width}, {asked.rows} rows")
    with Mesh.builder().local(asked.stages, engine="cpu").build() as mesh:
        alone_s, _, _ = measured(mesh, Single(), asked)
        print(f"one worker: {alone_s * 1e3:.1f} ms per step", flush=True)
        for schedule in SCHEDULES:
            step_s, plan, spans = measured(mesh, Pipeline(asked.stages, turns, schedule), asked)
            stages = stage_times(plan, spans, turns)
            each_ms, rest_ms = max(each for _, each, _ in stages), max(rest for _, _, rest in stages)
            bound_ms = (turns + asked.stages - 1) * each_ms + rest_ms
            ratio = bound_ms / (step_s * 1e3)
            took = ", ".join(f"{each:.2f} + {rest:.2f}" for _, each, rest in stages)
            print(
                f"{schedule:9} {asked.stages} stages, {turns} micro-batches: {step_s * 1e3:.1f} ms per step, "
                f"{1 / step_s:.1f} steps/s, bound {bound_ms:.1f} ms, throughput / bound {ratio:.2f} (goal {GOAL}), "
                f"{alone_s / step_s:.2f} x one worker; a micro-batch + the rest, by stage in ms: {took}",
                flush=True,
            )


if __name__ == "__main__":
    main()
