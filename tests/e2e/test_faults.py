"""kill -9 and SIGSTOP of a worker's daemon at every phase of a call, with real processes.

Always the right answer, never a hang.  `python tests/e2e/test_faults.py ROUNDS` runs any number of rounds and prints
the times from the signal to the first part running on a survivor.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.processes.commands import PATIENT_S, wait_for
from support.processes.faults import PHASES, WIDTH, EventTap, Round, settled, strike, tower, weights
from support.processes.footprint import shared_files

from mesh import Mesh
from wire.timeouts import DEFAULT_TIMEOUTS

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
TIMEOUTS_S = {
    "kill": PATIENT_S,
    "stop": DEFAULT_TIMEOUTS.node_timeout_s,
}  # by silence only those are found that were stopped
EACH_ONCE = [  # the long suite has both signals in each phase
    pytest.param(kind, phase, marks=[] if (place + number) % 2 == 0 else pytest.mark.long)
    for number, kind in enumerate(SIGNALS)
    for place, phase in enumerate(PHASES)
]
ROUNDS_DEFAULT = 1
ROUNDS_LONG = 50


def works(mesh: Mesh, call: Callable[[], Any], expected: Any, worker: str) -> bool:
    """Whether a worker has a part of a call, which is right whoever computes it."""
    np.testing.assert_array_equal(call(), expected)
    return worker in mesh.report().workers


def rounds(kind: str, phase: str, count: int) -> Iterator[Round]:
    """Make `count` rounds on meshes of three workers; asserts the right answer of every call."""
    for number in range(count):
        with Mesh.builder().local(3, engine="cpu").node_timeout(TIMEOUTS_S[kind]).build() as mesh:
            tap = EventTap(mesh)
            layers = weights(number)
            x = np.random.default_rng(number).standard_normal((64, WIDTH)).astype(np.float32)
            expected = mesh.run(tower, layers, x, mode="off")
            held = mesh.put(layers)
            if phase != "ship":  # weights and links are there already; a graph of another batch size must be compiled
                mesh.run(tower, held, x[:32], strategy="pipeline")
            victims = mesh.plan(tower, held, x, strategy="pipeline").workers
            victim = victims[number % len(victims)]
            call = partial(mesh.submit, tower, held, x, strategy="pipeline")
            outcome, result = strike(mesh, tap, phase, SIGNALS[kind], call, victim)
            np.testing.assert_array_equal(result, expected)
            if kind == "stop":
                settled(mesh, tap, victim)
                again = partial(mesh.run, tower, held, x, strategy="pipeline")
                wait_for(partial(works, mesh, again, expected, victim))  # a worker that came back gets work
            yield outcome


@pytest.mark.parametrize(("kind", "phase"), EACH_ONCE)
def test_a_lost_worker_costs_time_and_nothing_else(kind: str, phase: str) -> None:
    assert len(list(rounds(kind, phase, ROUNDS_DEFAULT))) == ROUNDS_DEFAULT


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="shared memory is looked at in /dev/shm")
def test_what_was_on_its_way_to_a_killed_worker_is_not_left_in_shared_memory() -> None:
    x = np.ones(1 << 22, np.float32)
    with Mesh.builder().local(2, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        called = mesh.compile(lambda x: (x * 2).sum(), x, strategy="single")
        assert called(x) == 2 * x.size
        before = shared_files([os.getpid()])
        (victim,) = mesh.report().workers
        pid = next(node.pid for node in mesh.nodes if node.name == victim)
        os.kill(pid, signal.SIGSTOP)
        job = mesh.submit(lambda x: (x * 2).sum(), x, strategy="single")
        wait_for(lambda: shared_files([os.getpid()]) > before)  # the input, which the worker does not take
        os.kill(pid, signal.SIGKILL)
        assert job.result() == 2 * x.size
        wait_for(lambda: shared_files([os.getpid()]) == before)


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", SIGNALS)
def test_many_lost_workers(kind: str, phase: str) -> None:
    assert len(list(rounds(kind, phase, ROUNDS_LONG))) == ROUNDS_LONG


def main(count: int) -> None:
    for kind in SIGNALS:
        for phase in PHASES:
            done = list(rounds(kind, phase, count))
            resumed = [outcome.resumed_s for outcome in done if outcome.resumed_s is not None]
            worst = (
                f"median {statistics.median(resumed):.3f} s, worst {max(resumed):.3f} s"
                if resumed
                else "no redo needed"
            )
            total = max(outcome.total_s for outcome in done)
            right = f"{len(done)} rounds right, {len(resumed)} redone"
            print(f"{kind} at {phase}: {right}, resumed {worst}; ended by {total:.2f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS_DEFAULT)
