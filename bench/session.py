"""Steps per second of a session whose step does next to nothing: what a step costs beyond its work.

    python bench/session.py [--steps 2000]

One worker and two; one step at a time, and several under way; without copies, and with a buddy after every 10 steps.
Beside it, in the same run: the same function by `mesh.compile`, which sends the state there and back with every call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import mesh.numpy as mnp
from mesh import Mesh

STATE = {"w": np.zeros((64, 64), np.float32), "steps": np.int32(0)}
X = np.ones(64, np.float32)
GOAL_MS = 1.0


def step(state: Any, x: Any) -> Any:
    """One worker's work."""
    w = state["w"] * 0.5 + x
    return {"w": w, "steps": state["steps"] + 1}, w[0, 0]


def chain(state: Any, x: Any) -> Any:
    """Two workers' work: the second waits for the first."""
    first = mnp.tanh(state["first"] + x)
    second = mnp.tanh(state["second"] + first)
    return {"first": first, "second": second}, second[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    with Mesh.builder().local(1, engine="cpu").build() as mesh:
        compiled = mesh.compile(step, STATE, X)
        report("mesh.compile, one worker", lambda count: _calls(compiled, count), steps)
        for name, options in (("no copies", {"copies": "none"}), ("checkpoints", {"copies": "checkpoint"})):
            with mesh.session(step, STATE, X, **options) as session:
                measure(f"one worker, {name}", session, steps)
    with Mesh.builder().local(2, engine="cpu").build() as mesh:
        with mesh.session(step, STATE, X, copies="buddy", strategy="single") as session:
            measure("one of two workers, buddy", session, steps)
        state = {"first": X * 0, "second": X * 0}
        for copies in ("none", "buddy"):
            with mesh.session(chain, state, X, copies=copies, strategy="pipeline") as session:
                measure(f"pipeline of two workers, {copies}", session, steps)


def measure(what: str, session: Any, steps: int) -> None:
    report(f"{what}, one at a time", lambda count: _one_at_a_time(session, count), steps)
    report(f"{what}, all asked at once", lambda count: _at_once(session, count), steps)


def _calls(compiled: Callable[..., Any], count: int) -> None:
    state: Any = STATE
    for _ in range(count):
        state, _ = compiled(state, X)


def _one_at_a_time(session: Any, count: int) -> None:
    for _ in range(count):
        session.step(X).result()


def _at_once(session: Any, count: int) -> None:
    for each in [session.step(X) for _ in range(count)]:
        each.result()


def report(what: str, work: Callable[[int], None], steps: int) -> None:
    """The median of five runs, after one that is not counted."""
    work(steps // 10 + 1)
    took_ms = []
    for _ in range(5):
        began_s = time.perf_counter()
        work(steps // 5 + 1)
        took_ms.append((time.perf_counter() - began_s) * 1e3 / (steps // 5 + 1))
    middle, worst = statistics.median(took_ms), max(took_ms)
    print(f"{what:52} {middle:6.3f} ms a step (worst {worst:6.3f}), {1e3 / middle:6.0f} steps/s, goal {GOAL_MS:g} ms")


if __name__ == "__main__":
    main()
