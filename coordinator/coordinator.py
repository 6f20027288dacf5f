"""Coordinator: what programs and `mesh-coord serve` call of a coordinator, whose parts `coordinator_parts.py` joins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from wire.errors import NodeLost
from wire.link.link import Link
from wire.protocol.messages import (
    NodeReport,
    PairReport,
    Pause,
    Revocations,
)

from .calls import events as ev
from .config import CoordinatorConfig
from .coordinator_parts import CoordinatorParts
from .planning.model.profiles import CLIENT
from .planning.model.program import Program, Trial
from .runtime.direct_path import DirectPath
from .workers import worker_names
from .workers.call_report import CallReport
from .workers.records import Enrolled


class Coordinator(CoordinatorParts):
    """The coordinator runs programs on the workers that it is connected to.  It belongs to one event loop; `close` it.

    coordinator = Coordinator(CoordinatorConfig("home", "me"), identity, shared=None)
    await coordinator.connect("127.0.0.1", 7100)
    outputs, report = await coordinator.call(program, {"x": array})
    """

    async def connect(self, host: str, port: int) -> NodeReport:
        """Join the worker at an address and stay joined: a lost link is dialled again until `close`.

        Raises ConnectFailed, VersionMismatch, WrongMesh or Busy if the first attempt fails.
        """
        return await self.adopt(await self.endpoint.dial(host, port), host, port)

    async def adopt(self, link: Link, host: str, port: int) -> NodeReport:
        """Join the worker at the other end of a link dialled at this address, and stay joined."""
        return await self._registry.adopt(link, host, port)

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs of all coordinators that this one goes on from, and its own; none without a standby."""
        return self._registry.epochs

    def descends(self, epochs: tuple[int, ...]) -> None:
        """Say to workers that join from now on which epochs this coordinator goes on from."""
        self._registry.epochs = epochs

    def names_come_from(self, enrolled: Callable[[str], Enrolled | None]) -> None:
        """Call workers that join from now on as the mesh's authority does, and trust them as far; it is asked in a
        thread."""
        self._registry.enrolled = enrolled

    def forget(self, host: str, port: int) -> None:
        """Stop dialling an address; an open link is kept."""
        self._registry.forget(host, port)

    def revoke(self, revocations: Revocations, node_ids: Collection[str]) -> None:
        """End the links of revoked nodes, and send the list to all others, now and when they connect."""
        self._router.revoke(revocations, node_ids, self.endpoint.links.values())

    def nodes(self) -> list[NodeReport]:
        """Every worker that joined since the start, with its present state, by name."""
        return self._registry.nodes()

    def pairs(self) -> list[PairReport]:
        """The reports on the links between the connected workers and this process, by names."""
        names = {node: member.profile.name for node, member in self._members.items()} | {CLIENT: self.identity.name}
        return self.prober.reports(names)

    async def pause(self, name: str, on: bool) -> None:
        """Pause a worker, or end its pause; InputError if there is no such worker, Busy if its own machine paused it.

        `name` is its name, its id or the first characters of that.
        """
        answer_s = self.config.timeouts.pause_answer_s
        await worker_names.member_called(self._members, name).link.request(Pause(on), timeout_s=answer_s)

    def submit(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        patient: bool = False,
        trial: Trial | None = None,
        owner: str = "",
        held: object = None,
    ) -> tuple[int, asyncio.Future[list[NDArray[Any]]], CallReport]:
        """Start a call: its number, a future of the outputs (C-contiguous arrays in graph order) and its report.

        `inputs` are C-contiguous arrays of exactly the graph's types, by name.  A patient call waits for a worker as
        long as it takes.  With an `owner` it keeps away from workers that another owner's part has held for long.
        What is `held` lives until the call is over, such as the handles of its params.
        """
        call = self._runner.submit(program, inputs, patient, trial, owner, held)
        self.health.report_waiting()
        return call

    def direct_path(self, program: Program) -> DirectPath | None:
        """The path by which any thread of this process may call a program, if there is one now."""
        return self._runner.direct.path(program)

    def forget_program(self, program: Program) -> None:
        """Drop the plans of a program that is not called any more, and the weights that no other program uses."""
        self._guards.forget(program)
        self._runner.feed(ev.JobForgotten(program))

    async def call(
        self, program: Program, inputs: Mapping[str, NDArray[Any]], patient: bool = False
    ) -> tuple[list[NDArray[Any]], CallReport]:
        """Evaluate a program; cancelling the awaiting task cancels the call on the workers."""
        number, future, report = self.submit(program, inputs, patient)
        try:
            return await future, report
        except asyncio.CancelledError:
            self.cancel(number)
            raise

    @property
    def idle(self) -> bool:
        """Whether no call is in progress."""
        return self._state.idle

    @property
    def live(self) -> bool:
        """Whether any worker is connected."""
        return bool(self._members)

    @property
    def no_worker_reason(self) -> str:
        """Why no worker can be given work now, for people; "" if one can."""
        return worker_names.no_worker_reason(self._members.values(), self._state.nodes)

    def cancel(self, call: int) -> None:
        """Stop a call; its future gets Cancelled.  A finished call is left alone."""
        self._runner.feed(ev.CallCancelled(call))

    @property
    def quarantined(self) -> set[str]:
        """The node ids of workers that were wrong too often."""
        return self._runner.quarantined

    def begin_above(self, generation: int) -> None:
        """Give no plan a number up to this one, before any worker joins."""
        self._state.begin_above(generation)

    async def close(self, returns: bool = False) -> None:
        """Drop every link and end every wait.  Where a coordinator `returns` that goes on with its sessions, workers
        and clients keep what they have for it."""
        self._router.closing = True
        self.sessions.close()
        self._runner.close()
        self._tasks.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.endpoint.close(NodeLost("the coordinator was stopped") if returns else None)
        if self._shared is not None:
            self._shared.close()


__all__ = ["Coordinator", "CoordinatorConfig"]
