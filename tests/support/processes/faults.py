"""Killing and stopping workers at a chosen phase of a call, with real processes and real signals.

A round makes a call whose plan spans every worker, waits for the phase by the mesh's own events, sends the signal to
one worker, and takes the times from the events that follow.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mesh.numpy as mnp
from mesh import Mesh

# What the coordinator tells when a phase begins: the plan is known and graphs and weights leave (ship); they are
# there already, so only compiling is left (compile); the victim's first part started (run); it reported (gather).
PHASES: dict[str, str] = {"ship": "planned", "compile": "planned", "run": "began", "gather": "ran"}
HANGS_S = 120.0  # nothing here takes so long, however busy the machine
WIDTH = 256
DEPTH = 12


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds from the signal: until Suspect and Dead were told, until the first part on a survivor, until the end."""

    phase: str
    victim: str
    suspect_s: float | None
    dead_s: float | None
    resumed_s: float | None
    total_s: float


def weights(seed: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32) for _ in range(DEPTH)]


def tower(layers: list[Any], x: Any) -> Any:
    """A chain deep enough that every worker gets a part."""
    for layer in layers:
        x = mnp.tanh(x @ layer)
    return x


class EventTap:
    """The mesh's events, as a queue with arrival times."""

    def __init__(self, mesh: Mesh) -> None:
        self._events: queue.Queue[tuple[float, Mapping[str, Any]]] = queue.Queue()
        mesh.watch(lambda event: self._events.put((time.monotonic(), event)))

    def wait(
        self, wanted: Callable[[Mapping[str, Any]], bool], timeout_s: float
    ) -> tuple[float, Mapping[str, Any]] | None:
        """The next event that is wanted, dropping others; None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                at_s, event = self._events.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                return None
            if wanted(event):
                return at_s, event

    def drain(self) -> None:
        while not self._events.empty():
            self._events.get_nowait()


def strike(
    mesh: Mesh, tap: EventTap, phase: str, kind: signal.Signals, call: Callable[[], Any], victim: str = ""
) -> tuple[Round, Any]:
    """Start `call` (which returns a Job), send `kind` to `victim` when `phase` begins, and follow it to the end.

    Without a victim it is whoever gets to that phase first.  One that is named may be left out by the plan, which goes
    by what is measured: then it is struck when the call is over."""
    pids = {node.name: node.pid for node in mesh.nodes}
    tap.drain()
    job = call()
    told = PHASES[phase]
    anybody = told == "planned" or not victim
    found, began_s = None, time.monotonic()
    while found is None and not job.done():
        found = tap.wait(lambda event: event["kind"] == told and (anybody or event["node"] == victim), 0.05)
        assert time.monotonic() - began_s < HANGS_S, f"the phase {phase} never came"
    victim = victim or (found[1]["node"] if found else next(iter(pids)))
    struck_s = time.monotonic()
    os.kill(pids[victim], kind)
    times: dict[str, float] = {}

    def note(event: Mapping[str, Any]) -> bool:
        if event["node"] == victim and event["kind"] in ("suspect", "dead"):
            times.setdefault(event["kind"], time.monotonic() - struck_s)
        if event["kind"] == "began" and event["node"] != victim and "dead" in times:
            times.setdefault("resumed", time.monotonic() - struck_s)
        return "resumed" in times or job.done()

    while not job.done() and time.monotonic() - struck_s < HANGS_S:
        tap.wait(note, 0.05)
    result = job.result(timeout_s=HANGS_S)
    total_s = time.monotonic() - struck_s
    return Round(phase, victim, times.get("suspect"), times.get("dead"), times.get("resumed"), total_s), result


def settled(mesh: Mesh, tap: EventTap, victim: str) -> None:
    """Let a stopped worker run again and wait until it has rejoined."""
    pid = next(node.pid for node in mesh.nodes if node.name == victim)
    tap.drain()
    os.kill(pid, signal.SIGCONT)
    if next(node.state for node in mesh.nodes if node.name == victim) == "healthy":
        return  # it was never judged dead: the call was over before
    found = tap.wait(lambda event: event["kind"] in ("joined", "healthy") and event["node"] == victim, HANGS_S)
    assert found is not None, f"{victim} did not come back"
