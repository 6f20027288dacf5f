"""Plan watch: looks whether a session has a better plan, and has plans made for deaths before they come.

The session goes on without either: a fault here is logged, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wire.errors import MeshError
from wire.protocol.messages import Ran
from wire.system.steady_log import steady_logger
from wire.system.tasks import unheard

from ..planning.model.plan import Plan
from . import events as ev
from .plan_maker import PlanMaker
from .session_context import SessionContext

log = steady_logger("graph_mesh.coordinator")

PACE_CHECKED_AFTER = frozenset({12, 48, 192, 768})  # steps of a plan after which its workers' pace is checked


class PlanWatch:
    """The watch over one session's plan.  `now` is the plan that steps run by, None while there is none or the session
    is over; `moves` is called with a plan that is worth the move."""

    def __init__(
        self,
        context: SessionContext,
        maker: PlanMaker,
        now: Callable[[], Plan | None],
        moves: Callable[[Plan], None],
    ) -> None:
        self._usable, self._judged, self._tasks = context.usable, context.ran, context.plans.tasks
        self._maker, self._now, self._moves = maker, now, moves
        self._verdicts = 0  # on the pace of devices, as of the last look
        self._looking: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None

    def ran(self, action: ev.SendRun, plan: Plan, answer: Ran, took_s: float) -> None:
        """Look where some device is known to be slower than it was, or well again."""
        verdicts = self._judged((action.generation, action.step), action.node, plan, answer, took_s)
        if verdicts != self._verdicts and self._looking is None:
            self._verdicts = verdicts
            self.look()
        self.look(self._maker.by_speed and action.step in PACE_CHECKED_AFTER)

    def deployed(self) -> None:
        """All workers of a plan are ready: look for one by speed, since that one was wanted soon."""
        self.look(self._maker.by_speed)

    def look(self, wanted: bool = True) -> None:
        """Look for a better plan, unless a search is in progress."""
        if wanted and self._looking is None:
            self._looking = self._tasks.run("looking for a better plan", self._look_for_better(), unheard)

    async def _look_for_better(self) -> None:
        """Look whether another plan would be faster, after workers came or their pace changed."""
        try:
            nodes = frozenset[str]()
            while self._usable() - nodes:
                await asyncio.sleep(self._maker.settle_s)
                nodes, now = self._usable(), self._now()
                other = None if now is None else await self._maker.better_than(now, nodes)
                if other is not None and self._now() is now:
                    self._moves(other)
        except MeshError as error:
            log.debug("no better plan: %s", error)
        finally:
            self._looking = None

    def look_ahead(self, nodes: frozenset[str], wanted: Callable[[], bool]) -> None:
        """Have plans made for the death of each of these nodes, as long as they are `wanted`."""
        if self._maker.looks_ahead and self._ahead is None:
            self._ahead = self._tasks.run("planning ahead", self._maker.look_ahead(nodes, wanted), unheard)
            self._ahead.add_done_callback(self._looked_ahead)

    def _looked_ahead(self, _: object) -> None:
        self._ahead = None
