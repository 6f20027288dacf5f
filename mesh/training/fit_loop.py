"""Fit loop: one call of `fit`.  It feeds steps to whoever computes them, and takes note of those that are done.

A step counts once all workers have done it: only then do the cursor and the number of steps move on.  When workers come
or go, the steps in flight are waited for, and another group computes the next ones from the same state.  Where the
state died with its workers, the steps since it was fetched last are done again, and not reported again.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wire.errors import ConfigError, ExecuteFailed, InputError, MeshError, NodeLost, PlacementError
from wire.policy.strategies import Strategy

from ..client.mesh import Mesh
from .checkpoint import Checkpoints
from .data import Cursor, Rows
from .profiler import Profile
from .progress import Callback, History, StepReport
from .worker_group import (
    Choice,
    Feed,
    StepResult,
    WorkerGroup,
    bytes_of,
    choose,
    form_group,
    live_workers,
    without_ranks,
)

AHEAD = 4  # steps that are fed before the first of them is waited for
TAKEN = 2  # of them at once, so that threads wake each other half as often
LOOK_S = 0.25  # between two looks at who is there; on a simulated mesh before every step, so that all runs are alike
WAIT_S = 0.1
VETOES_MAX = 3
FETCH_S = 60.0  # the state is fetched so often, that no more is to be done again if all workers die
FETCH_SHARE = 0.02  # but takes no more than this of the time
LOSSES_MAX = 10  # in a row, without a step that was not done before


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What a call of `fit` asks for beside its data."""

    strategy: Strategy
    epochs: int  # the first that is not begun
    steps: int | None
    min_nodes: int
    max_nodes: int | None
    copies: str
    store: Checkpoints | None
    every: int
    callbacks: Sequence[Callback]


class _GroupLost(Exception):
    """The group's state died with its workers, or there are fewer workers than it needs; `why` is the error."""

    def __init__(self, why: NodeLost | PlacementError) -> None:
        super().__init__(str(why))
        self.why = why


@contextlib.contextmanager
def _group_errors() -> Iterator[None]:
    """Turn the loss of workers into _GroupLost; errors of callbacks are raised outside of this."""
    try:
        yield
    except (NodeLost, PlacementError) as error:
        raise _GroupLost(error) from error


class Run:
    """`state`, `cursor` and `number` are those after the last step of which the state was fetched."""

    def __init__(
        self, feed: Feed, mesh: Mesh | None, options: FitOptions, state: Any, cursor: Cursor, number: int
    ) -> None:
        self.state, self.cursor, self.number = state, cursor, number
        self._feed, self._mesh, self._options = feed, mesh, options
        self._group: WorkerGroup | None = None
        self._choice = Choice(1, "single")
        self._begun = False  # whether there was a group
        self._workers = self._counted = 0
        self._done = number  # steps that all workers have done
        self._in_flight: deque[tuple[StepResult, Rows]] = deque()
        self._fed: list[Cursor] = []  # after each step that was begun since the state was fetched, or is about to be
        self._history = History()
        self._profile = Profile()
        self._vetoes: list[list[int]] = []
        self._epoch_losses: list[float] = []
        self._look_s = 0.0 if mesh is not None and _is_simulated(mesh) else LOOK_S
        self._looked_s = self._fetched_s = time.monotonic()
        self._fetch_s = 0.0  # what the last fetch took
        self._first, self._reported, self._losses = number, number, 0

    def go(self) -> History:
        """Do all steps, and return what happened."""
        begun_s = time.monotonic()
        try:
            while not self._tried():
                self._go_back()
        finally:
            self._end()
        self._history.seconds = time.monotonic() - begun_s
        self._profile.tell()
        return self._history

    def _tried(self) -> bool:
        """Whether all steps are done; False if the state was lost."""
        try:
            self._do_all()
        except _GroupLost as lost:
            fewer = isinstance(lost.why, PlacementError)
            if self._mesh is None or self._losses >= LOSSES_MAX or (fewer and self._live() == self._counted):
                raise lost.why from None
            self._begun &= not fewer or self._reported > self._first  # else it is refused for what it asked for
            return False
        return True

    def _do_all(self) -> None:
        for rows in self._rows():
            self._ensure_group(rows)
            self._begin_step(rows)
            if self._due(len(self._in_flight)):
                self._settle()
                self._save()
            elif self._mesh is not None and time.monotonic() - self._fetched_s > self._fetch_after_s:
                self._settle()
        self._settle()
        if self._options.store is not None and self._options.store.step != self.number:
            self._save()

    def _go_back(self) -> None:
        """Do the steps since the state was fetched last again, on the workers that are there."""
        self._losses += 1
        self._in_flight.clear()
        self._fed.clear()
        self._history.redone += self._done - self.number
        self._done = self.number
        self._disband()

    @property
    def _fetch_after_s(self) -> float:
        return max(FETCH_S, self._fetch_s / FETCH_SHARE)

    # -- steps

    def _rows(self) -> Iterator[Rows]:
        cursor, fed, most = self.cursor, self.number - self._first, self._options.steps
        while cursor.epoch < self._options.epochs and (most is None or fed < most):
            begun = cursor
            for rows in self._feed.data.epoch(cursor):
                if most is not None and fed >= most:
                    return
                yield rows
                fed, cursor = fed + 1, rows.after
            if cursor == begun:  # nothing was left of it, since data before these had more batches
                if not begun.batch:
                    raise InputError(f"data gave no batch in epoch {begun.epoch}: they can be iterated once only")
                cursor = Cursor(begun.epoch + 1)

    def _begin_step(self, rows: Rows) -> None:
        assert self._group is not None
        self._fed.append(rows.after)
        with _group_errors():
            self._in_flight.append((self._group.step(rows), rows))
        if len(self._in_flight) >= AHEAD:
            while len(self._in_flight) > AHEAD - TAKEN:
                self._take()

    def _take(self) -> None:
        """Wait for the oldest step in flight, and take note of it."""
        result, rows = self._in_flight[0]
        with _group_errors():
            report = result.result()
        self._in_flight.popleft()
        number = self._done = self._done + 1
        loss, skipped = float(report["loss"]), not bool(report["good"])
        if number <= self._reported:
            return
        self._reported, self._losses = number, 0
        self._history.losses.append(loss)
        self._history.rows += rows.counted
        epoch = rows.after.epoch - (rows.after.batch == 0)
        shares = self._group.shares if self._group is not None else {}
        step = StepReport(
            number, epoch, loss, float(report["norm"]), skipped, rows.counted, self._workers, self._sent_bytes(rows),
            shares,
        )  # fmt: skip
        for callback in self._options.callbacks:
            callback.on_step(step)
        self._epoch_losses.append(loss)
        if rows.after.batch == 0:
            losses, self._epoch_losses = self._epoch_losses, []
            for callback in self._options.callbacks:
                callback.on_epoch(epoch, losses)
        self._judge(number, skipped, report)

    def _judge(self, number: int, skipped: bool, report: Any) -> None:
        """End the run after three skipped steps in a row; those that a smaller loss scale would mend do not count."""
        if not skipped:
            self._vetoes.clear()
            return
        self._history.skipped.append(number)
        if "scale" in report and float(report["scale"]) > 1:
            return
        self._vetoes.append([rank for rank, good in enumerate(np.asarray(report["flags"])) if not good])
        if len(self._vetoes) < VETOES_MAX:
            return
        always = set(self._vetoes[0]).intersection(*self._vetoes[1:])
        names = ", ".join(self._name_of(rank) for rank in sorted(always))
        raise ExecuteFailed(
            f"NaN or Inf in the gradients of {VETOES_MAX} steps in a row, up to step {number}; they changed nothing",
            node=names,
            next_step="Look at the data and the learning rate; if only one worker has it, do without that worker",
        )

    def _settle(self) -> None:
        """Wait for all steps in flight, and have the state after them."""
        while self._in_flight:
            self._take()
        if self._group is not None and self._done != self.number:
            begun_s = time.monotonic()
            with _group_errors():
                self._fetch(self._group)
            self._fetched_s = time.monotonic()
            self._fetch_s = self._fetched_s - begun_s

    def _fetch(self, group: WorkerGroup) -> None:
        """Fetch the state after all steps that were begun; the state counts them itself, whenever Ctrl-C came."""
        state = without_ranks(group.state())
        done = int(state["step"]) - int(self.state["step"])
        if done:
            self.state, self.cursor, self.number = state, self._fed[done - 1], self.number + done
        self._fed.clear()

    def _due(self, in_flight: int) -> bool:
        store = self._options.store
        return store is not None and (self._done + in_flight) % self._options.every == 0

    def _save(self) -> None:
        store = self._options.store
        if store is None:
            return
        path = store.save(self.number, self.cursor, self.state, {"seed": self._feed.recipe.seed})
        for callback in self._options.callbacks:
            callback.on_checkpoint(self.number, path)

    def _end(self) -> None:
        """Keep what is done, and free what the workers hold, however the run ended."""
        group, self._group = self._group, None
        if group is None:
            return
        self._profile.take(group)
        try:
            if self._fed:
                with contextlib.suppress(MeshError):  # the run ended in an error already, which says more
                    self._fetch(group)
        finally:
            group.close()

    # -- workers

    def _live(self) -> int:
        if self._mesh is None:
            return 0
        self._looked_s = time.monotonic()
        return live_workers(self._mesh)

    def _ensure_group(self, rows: Rows) -> None:
        """Make sure that a group computes, with as many workers as there are."""
        if self._group is not None and (self._mesh is None or time.monotonic() - self._looked_s < self._look_s):
            return
        live, most = self._live(), self._options.max_nodes
        if self._mesh is not None and live < self._options.min_nodes:
            live = self._wait()
        workers = min(live, most or live)
        choice = choose(self._feed.recipe, self._options.strategy, max(live, 1), most, begun=self._begun)
        if self._group is not None and (choice == self._choice or (self._group.elastic and choice.elastic)):
            self._changed(choice, max(workers, 1))
            return
        self._settle()
        self._disband()
        self._choice, self._workers, self._counted, self._begun = choice, max(workers, 1), live, True
        with _group_errors():
            self._group = form_group(
                self._mesh if live else None, self._feed, choice, self.state, rows,
                self._options.copies, min(self._options.every, 10),
            )  # fmt: skip
        self._profile.watch(self._group)
        for callback in self._options.callbacks:
            callback.on_workers(self._workers)

    def _changed(self, choice: Choice, workers: int) -> None:
        """The group goes on by itself, and callbacks hear of another number of workers."""
        self._choice, before, self._workers = choice, self._workers, workers
        if workers != before:
            for callback in self._options.callbacks:
                callback.on_workers(workers)

    def _disband(self) -> None:
        if self._group is not None:
            self._profile.take(self._group)
            self._group.close()
            self._group = None

    def _wait(self) -> int:
        """Save the state, and wait until there are enough workers."""
        self._settle()
        self._save()
        self._disband()
        for callback in self._options.callbacks:
            callback.on_workers(0)
        while (live := self._live()) < self._options.min_nodes:
            _rest(self._mesh)
        return live

    def _name_of(self, rank: int) -> str:
        """The name of a rank's worker; "" where a step is split in another way, or the plan is not known."""
        plan = self._group.plan if self._group is not None else None
        if plan is None:
            return ""
        nodes = {part.node for part in plan.parts}
        if not nodes or (self._choice.ranks == 1 and len(nodes) > 1):
            return ""
        node = plan.parts[plan.gangs[0].parts[rank]].node if plan.gangs else nodes.pop()
        return str(next((worker.name for worker in plan.workers if worker.node == node), node))

    def _sent_bytes(self, rows: Rows) -> int:
        plan = self._group.plan if self._group is not None else None
        if plan is not None and len({part.node for part in plan.parts}) > 1 and not plan.gangs:
            return int(plan.cut_bytes)
        return (sum(gang.sent_bytes for gang in plan.gangs) if plan is not None else 0) + bytes_of(rows)


def _rest(mesh: Mesh | None) -> None:
    """Sleep for a moment, in simulated time on a simulated mesh."""
    assert mesh is not None
    if _is_simulated(mesh):
        mesh.simulation.wait(WAIT_S)
    else:
        time.sleep(WAIT_S)


def _is_simulated(mesh: Mesh) -> bool:
    try:
        return mesh.simulation is not None
    except ConfigError:
        return False
