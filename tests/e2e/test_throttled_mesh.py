"""Three workers as slow as they are told to be, in parts and on links, so that time is asleep and not this machine's:
whether they work at once, whether a call takes what was predicted, and what is told of one that fails meanwhile."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from support.by_numpy import by_numpy
from support.processes.commands import PATIENT_S, daemon, environment
from support.promised import slowness

import mesh.numpy as mnp
from mesh import Mesh

NAMES = ("a", "b", "c")
HANGS_S = 120.0
CALLS = 4
SQUARES = [np.full((64, 64), 0.01 * scale, np.float32) for scale in (1, 2, 3)]


def apart(squares: list[Any]) -> list[Any]:
    """As many pieces of equal work as there are workers, 0.26 s each or more, none of which needs another."""
    return [mnp.tanh(x @ x) for x in squares]


def in_turn(squares: list[Any]) -> Any:
    """The same work in a chain: 16 KiB, 33 ms, travel between two workers."""
    x = squares[0]
    for square in squares:
        x = mnp.tanh(x @ square)
    return x


@pytest.fixture(scope="module")
def throttled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("throttled")
    slow = min(slowness(), 8.0)  # what a call costs besides its work is as much more of it, on a slow machine
    throttle = f"flops={2e6 / slow:.0f},rate={4000 / slow:.0f}kbit/s,delay={2 * slow:.1f}ms"
    words = ("worker", "--device", "cpu", "--mesh", "throttled", "--no-mdns", "--throttle", throttle)
    builder = Mesh.builder().mesh("throttled").node_timeout(PATIENT_S)
    with ExitStack() as stack:
        for name in NAMES:
            env = environment(folder / name)
            started = daemon(*words, "--name", name, env=env, log=folder / f"{name}.log")
            builder = builder.node(stack.enter_context(started).address)
        yield stack.enter_context(builder.build())


def least_s(mesh: Mesh, work: Any, strategy: str, workers: int) -> float:
    """How long a call takes that nothing else on this machine disturbs, where so many workers have a part in it."""
    took_s = []
    while len(took_s) < CALLS:
        began_s = time.monotonic()
        mesh.run(work, SQUARES, strategy=strategy)
        if len(mesh.report().workers) == workers:
            took_s.append(time.monotonic() - began_s)
    return min(took_s)


def test_workers_are_called_at_once(throttled: Mesh) -> None:
    """The call takes as long as one worker's part, and not as long as all of theirs."""
    together_s = least_s(throttled, apart, "auto", 3)
    parts_s = [part.compute_s for worker in throttled.report().workers.values() for part in worker.parts]
    assert len(parts_s) == 3
    assert together_s < 0.7 * sum(parts_s)
    assert together_s < 0.7 * least_s(throttled, apart, "single", 1)


@pytest.mark.parametrize(
    ("work", "strategy", "workers"), [(apart, "single", 1), (apart, "auto", 3), (in_turn, "pipeline", 3)]
)
def test_a_call_takes_what_was_predicted_within_a_factor_of_two(
    throttled: Mesh, work: Any, strategy: str, workers: int
) -> None:
    took_s = least_s(throttled, work, strategy, workers)
    predicted_s = throttled.plan(work, SQUARES, strategy=strategy).seconds
    assert 0.5 <= predicted_s / took_s <= 2.0


@pytest.mark.long
def test_a_job_of_a_minute_ends_with_its_answer(throttled: Mesh) -> None:
    def minute(x: Any) -> Any:
        for _ in range(230):
            x = mnp.tanh(x @ x) + x
        return x

    began_s = time.monotonic()
    found = throttled.run(minute, SQUARES[0], strategy="single")
    assert time.monotonic() - began_s > 60.0
    report = throttled.report()
    assert len(report.generations) == 1, "it was not taken for stuck"
    np.testing.assert_array_equal(found, by_numpy(minute, SQUARES[0]))


def test_of_three_workers_the_report_names_the_one_that_died_and_what_the_others_did(throttled: Mesh) -> None:
    """The last test here: one worker is killed in the middle of its part."""
    pids = {node.name: node.pid for node in throttled.nodes}
    events: queue.Queue[Mapping[str, Any]] = queue.Queue()
    throttled.watch(events.put)
    job = throttled.submit(apart, SQUARES, strategy="auto")
    victim = ""
    while not victim:
        event = events.get(timeout=HANGS_S)
        victim = event["node"] if event["kind"] == "began" else ""
    os.kill(pids[victim], signal.SIGKILL)
    for found, square in zip(job.result(timeout_s=HANGS_S), SQUARES, strict=True):
        np.testing.assert_allclose(found, np.tanh(square @ square), rtol=1e-5)
    report = throttled.report()
    others = sorted({*NAMES} - {victim})
    assert [(event.node, event.kind) for event in report.events if event.kind == "dead"] == [(victim, "dead")]
    assert sorted(report.workers) == others and all(report.workers[name].parts for name in others)
    assert {node.name: node.state for node in throttled.nodes} == {victim: "dead", **dict.fromkeys(others, "healthy")}
