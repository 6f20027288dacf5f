"""Runtime: a session as its caller uses it; `session_shell.py` performs what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from wire.errors import Cancelled, MeshError
from wire.limits import MIB
from wire.policy.batch_shares import Portions

from ..planning.model.plan import Plan
from ..workers.records import Deployment, StateStart
from . import events as ev
from .elastic import StepInputs
from .manifest import SessionRecord
from .session_shell import SessionShell
from .state import SessionState

AHEAD_MIN, AHEAD_MAX, AHEAD_BYTES = 2, 8, 64 * MIB
StepFeeds = Mapping[int, StepInputs]


class Session(SessionShell):
    """One session.  All its methods run on the coordinator's loop."""

    def begin(self) -> None:
        self._do(self._machine.begin(self._loop.time()))

    def restore(
        self,
        record: SessionRecord,
        answered: int | None,
        feeds: StepFeeds,
        since: int,
        back: Mapping[str, Mapping[int, int]],
    ) -> None:
        """Take over what another process had, before `begin`; `answered` is None where its client is gone, too.  Some
        workers are `back`, with what they have kept and how many steps of each plan they have done."""
        args = self._policy, self._nodes, self._context.generation, self._context.timeouts
        self._machine = SessionState.restored(record.manifest, answered, *args, since, back)
        self._feeds.begin = self._machine.held_from
        if self._writer is not None:
            self._writer.begin(self._machine.recorded)
        for number, inputs in feeds.items():
            self._feeds.add(number, inputs)
        usable = record.manifest if answered is None else record.manifest.before(answered, since)
        self._copies.take_over(usable)
        if usable.plan is not None:
            state = StateStart(None, {}, record.pieces)
            self.deployments[usable.plan.generation] = Deployment(self._program, state=state)

    def heard(self, steps: int) -> None:
        """The client has the answers of the first `steps` steps."""
        if not self._machine.over:
            self.feed(ev.AnswersHeard(steps))

    def client_went(self, away: bool) -> None:
        """The client that drives the session is away, or back."""
        if not self._machine.over:
            self.feed(ev.ClientWent(away))

    def claim(self) -> asyncio.Future[int]:
        """Have another client drive it: a future of how many steps are done, once that is stored."""
        if self._machine.over:
            return self._callers.refused(self._why_over)
        future = self._callers.claim()
        self.feed(ev.ClaimRequested())
        return future

    def step(self, inputs: StepInputs) -> asyncio.Future[list[NDArray[Any]]]:
        """Do one more step: a future of its outputs, in graph order.  `inputs` are as those of a call, and held."""
        if self._machine.over:
            return self._callers.refused(self._why_over)
        number = self._machine.next_number
        future = self._callers.step(number)
        self._feeds.add(number, inputs)
        self.feed(ev.StepRequested())
        if self._feeds.size_bytes > self._replay_bytes_max:
            self.make_room()
        return future

    def make_room(self) -> None:
        """Hold fewer feeds, as soon as there is a copy of the state without them."""
        if not self._machine.over:
            self.feed(ev.ReplayLimitExceeded())

    def state(self) -> asyncio.Future[dict[str, NDArray[Any]]]:
        """A future of the state after all steps that were asked for before, by the params' names."""
        if self._machine.over:
            return self._callers.refused(self._why_over)
        request, future = self._callers.read()
        self.feed(ev.StateRequested(request))
        return future

    async def close(self) -> None:
        """End it, and return once its workers have let everything go, as far as they are there."""
        self.feed(ev.CloseRequested())
        await asyncio.shield(self.ended)
        if self._drops:
            await asyncio.wait(self._drops)

    def leave(self) -> None:
        """Do nothing more: another process goes on with what the workers and the journal have by now."""
        self._left = True
        self._tick_at(None)

    @property
    def _why_over(self) -> MeshError:
        return self._error or Cancelled("the session is closed")

    @property
    def held_bytes(self) -> int:
        """The bytes of the feeds that are held here, as they may be needed again."""
        return self._feeds.size_bytes

    @property
    def feeds_from(self) -> int:
        """The first step whose feed may be needed again."""
        return self._feeds.begin

    def portions(self, plan: Plan) -> Portions:
        """The portions in which a current plan splits a batch among its ranks, in an elastic session; else 0."""
        return next((deployment.portions for deployment in [*self.deployments.values()] if deployment.plan is plan), 0)

    @property
    def committed(self) -> int:
        """How many steps are done for good."""
        return self._machine.committed

    @property
    def workers(self) -> frozenset[str]:
        """The workers that have some of its state."""
        return frozenset(node for _, node in self._machine.manifest.places)

    @property
    def next_number(self) -> int:
        """The number of the step that is asked for next."""
        return self._machine.next_number


def ahead_for(state_bytes: int) -> int:
    """How many steps may be in flight; fewer of a large state, as each needs a value of its own."""
    return max(AHEAD_MIN, min(AHEAD_MAX, AHEAD_BYTES // max(state_bytes, 1)))
