"""Invariants: what must hold in every simulated mesh after every event (docs/simulation.md, "Invariants").

The machines of workers and coordinators are the real ones; here each is wrapped so that it is validated after every
event, and so that what only shows across nodes is checked too.  A broken invariant is an AssertionError, raised where
it happened and remembered, since a shell may go on after it; `verdict` raises the first again.
"""

from __future__ import annotations

from coordinator.calls import events as calls
from coordinator.calls.state import CoordinatorState
from wire.protocol.messages import PlanKey
from worker.state.events import Action, Event
from worker.state.worker_state import WorkerState


class InvariantChecker:
    """Checks every event of every state machine of one simulated mesh."""

    def __init__(self) -> None:
        self.events = 0
        self.broken: list[Exception] = []
        self._running: dict[tuple[PlanKey, int, int], str] = {}  # who runs a part of a step
        self._workers: dict[str, set[tuple[PlanKey, int, int]]] = {}
        self._epochs: dict[str, int] = {}  # the newest coordinator each worker obeyed

    def worker(self, name: str) -> type[WorkerState]:
        """The class of the state machine of worker `name`, with checks."""
        checker = self

        class Watched(WorkerState):
            def handle(self, event: Event, now: float) -> list[Action]:
                try:
                    actions = super().handle(event, now)
                    self.validate()
                    checker.saw_worker(name, self)
                except Exception as error:
                    checker.broken.append(error)
                    raise
                return actions

        return Watched

    def coordinator(self, wait_s: float) -> CoordinatorState:
        """A coordinator's state machine, with checks."""
        checker = self

        class Watched(CoordinatorState):
            def handle(self, event: calls.Event, now: float) -> list[calls.Action]:
                checker.events += 1
                try:
                    actions = super().handle(event, now)
                    self.validate()
                except Exception as error:
                    checker.broken.append(error)
                    raise
                return actions

        return Watched(wait_s)

    def verdict(self) -> None:
        """Raise the first broken invariant, if any was."""
        if self.broken:
            raise self.broken[0]

    def saw_worker(self, name: str, state: WorkerState) -> None:
        """Check that each task of a generation has one owner, and that no replaced coordinator is obeyed again."""
        self.events += 1
        if state.owner is not None:
            known = self._epochs.get(name, 0)
            assert state.owner.epoch >= known, f"{name} obeys epoch {state.owner.epoch} after {known}"
            self._epochs[name] = state.owner.epoch
        now = set(state.running)
        before = self._workers.get(name, set())
        for task in before - now:
            del self._running[task]
        for task in now - before:
            other = self._running.setdefault(task, name)
            assert other == name, f"{other} and {name} both run {task}"
        self._workers[name] = now

    def gone(self, name: str) -> None:
        """Forget what a process ran that died."""
        for task in self._workers.pop(name, ()):
            del self._running[task]
        self._epochs.pop(name, None)
