"""Warm up: what a recovery would send is sent before it is needed, while nobody calls.

A plan made ahead is deployed to its workers and dropped again.  What they keep of it, as of every plan that was
dropped, they keep as long as there is room and nothing that is in use has to give way: weights in their stores and on
their devices, compiled graphs, links to each other.  A recovery then finds it all there.

A call that comes ends a rehearsal at once.  It may find a device compiling one part.  It does not know which plans are
worth it (`coordinator/planning/contingency.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from wire.protocol.messages import PlanKey
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, as_error, unheard

from ..delivery.deployer import Deployer
from ..planning import plan_messages
from ..planning.contingency import ContingencyPlans
from ..planning.model.plan import Plan
from ..planning.model.program import Program
from ..planning.plan_codec import plan_from
from ..workers.records import Member

log = steady_logger("graph_mesh.coordinator")

QUIET_S = 0.3  # without a call, before a rehearsal begins


class WarmUp:
    """`key` names a plan that no call uses; `tasks` do what must be said also when a rehearsal is broken off; one moves
    no more than `bytes_max` of weights."""

    def __init__(
        self,
        ahead: ContingencyPlans,
        members: Mapping[str, Member],
        deployer: Deployer,
        key: Callable[[], PlanKey],
        tasks: Tasks,
        bytes_max: int,
    ) -> None:
        self.unseen: Callable[[float], bool] = lambda _: False  # whether calls that pass `calls` by were made so lately
        self._bytes_max = bytes_max
        self._ahead = ahead
        self._members = members
        self._deployer = deployer
        self._key = key
        self._tasks = tasks
        self._quiet = asyncio.Event()
        self._called = asyncio.Event()
        self._news = asyncio.Event()
        self._quiet.set()

    def calls(self, any_in_flight: bool) -> None:
        """Note whether a call waits for an answer now."""
        if any_in_flight:
            self._quiet.clear()
            self._called.set()
        else:
            self._called.clear()
            self._quiet.set()

    def changed(self) -> None:
        """Look again for something to rehearse."""
        self._news.set()

    async def run(self) -> None:
        """Rehearse what is not yet, one plan after another; never returns."""
        while True:
            await self._quiet.wait()
            await asyncio.sleep(QUIET_S)
            if self._called.is_set() or self.unseen(QUIET_S):
                continue
            self._news.clear()
            waiting = self._ahead.unrehearsed()
            await first_of(self._called.wait(), self._news.wait() if waiting is None else self._rehearse(*waiting))

    async def _rehearse(self, program: Program, question: Any) -> None:
        data = self._ahead.find(question)
        if data is None:  # workers came or went since it was chosen, and its plan was forgotten
            return
        try:
            plan = await asyncio.to_thread(plan_from, data, program.graph)
            if await self._moved_bytes(plan, program) <= self._bytes_max:
                await self._deploy_and_drop(plan, program)
        except Exception as fault:
            log.debug("not rehearsed: %s", as_error("rehearsing a plan", fault))
        self._ahead.rehearsed(program, question)

    async def _deploy_and_drop(self, plan: Plan, program: Program) -> None:
        key, nodes = self._key(), sorted(plan_messages.nodes(plan))
        deploys = (self._deployer.deploy(plan, node, key, program.bindings) for node in nodes)
        try:
            for node, outcome in zip(nodes, await asyncio.gather(*deploys, return_exceptions=True), strict=True):
                if isinstance(outcome, BaseException):
                    log.debug("rehearsing on %s: %s", node, outcome)
        finally:
            for node in nodes:
                self._tasks.run("dropping a plan", self._deployer.drop(node, key), unheard)

    async def _moved_bytes(self, plan: Plan, program: Program) -> int:
        """The bytes of weights that workers would have to fetch."""
        moved = 0
        for node in plan_messages.nodes(plan) & self._members.keys():
            wanted = dict((await self._deployer.params(plan, node, program.bindings)).values())
            there = self._members[node].blobs
            moved += sum(kind.size_bytes for address, kind in wanted.items() if address not in there)
        return moved


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them ends; the others are cancelled."""
    running = Tasks()
    tasks = [running.run("waiting", work, unheard) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
