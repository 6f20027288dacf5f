"""Elastic programs: the programs of a session for different numbers of workers, and for shares of a batch by speed.

A program of ranks has their number in it, and what each of them has of a batch, so with other workers another one is
needed, with the same state and with its own inputs of the same step.  The program that opened the session makes them
when they are wanted, and all programs carry the same tensors under the same names.  It does not know what a program is
about.

Even shares are planned first.  Where workers are so unlike that other ones may pay, those that
`coordinator/planning/spmd/load_balance.py` has are planned too, and the plan that is predicted to be done first is
taken: an even one unless that costs more than a tenth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from wire.errors import PlacementError
from wire.passes.simplify import simplify
from wire.policy.batch_shares import Portions, ends_of

from ..plan_service.migration_cost import SHARES_MOVE
from ..planning.model.plan import Plan
from ..planning.model.profiles import Profiles
from ..planning.model.program import Program
from ..planning.model.timeline import seconds_at_present_speed
from ..planning.spmd.load_balance import Proposal, proposals, uneven_speeds

PLANS_MAX = 128  # that are remembered: those for the death of each of 16 workers, by speed too, and some
Arrays = Mapping[str, NDArray[Any]]


class Feeds(Protocol):
    """The inputs of one step, for any portions of its batch among workers."""

    @property
    def nbytes(self) -> int:
        """The bytes that are held for them."""
        ...

    def of(self, portions: Portions) -> Arrays: ...


StepInputs = Arrays | Feeds


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, its program, and the portions of the batch that it is for; 0 where there is only one program."""

    portions: Portions
    program: Program
    plan: Plan


Planner = Callable[[Program, Profiles], Awaitable[Plan]]


@dataclass(frozen=True, slots=True)
class Elastic:
    """Programs by portions, for up to `most` workers; `make` makes one, and what takes long is done `aside`.

    A batch has `pieces` pieces to be split by speed, 0 where shares are even; `everybody` has some of them.
    """

    most: int
    make: Callable[[Portions], Awaitable[Program]]
    aside: Callable[[Callable[[], Any]], Awaitable[Any]]
    pieces: int = 0
    everybody: bool = False
    _made: dict[Portions, Program] = field(default_factory=dict)
    _plans: dict[Hashable, tuple[object, Planned]] = field(default_factory=dict)

    async def planned(self, profiles: Profiles, plan: Planner, soon: bool = False) -> Planned:
        """The best plan for these workers, the same as before while nothing of them has changed; PlacementError if
        there is none.  One that is wanted `soon` is the best of the known plans, or else the plan of even shares."""
        even = await self._even(profiles, plan)
        if not self.pieces or not even.plan.gangs or (soon and 1 not in self._made):
            return even
        tried = []
        for proposal in await self._proposals(even.plan, profiles):
            among = proposal.among(profiles)
            candidate = self._known(proposal.units, among)
            if candidate is None and not soon:
                candidate = await self._of(proposal, among, plan)
            tried += [candidate] if candidate is not None else []
        seconds = [seconds_at_present_speed(planned.plan, profiles) for planned in (even, *tried)]
        best = min(seconds)
        return tried[seconds.index(best) - 1] if SHARES_MOVE.pays(seconds[0], best) else even

    async def _proposals(self, even: Plan, profiles: Profiles) -> tuple[Proposal, ...]:
        """Other shares than even ones that may be worth it."""
        ranks = even.gangs[0].parts
        graph = even.parts[ranks[0]].graph
        if not await self.aside(lambda: uneven_speeds(graph, profiles)):
            return ()
        unsplit = (await self._program(1)).graph
        question = graph, len(ranks), profiles, self.pieces, self.everybody
        uneven = await self.aside(lambda: proposals(simplify(unsplit), *question))
        return tuple(proposal for proposal in uneven if proposal.portions != len(ranks))

    async def _even(self, profiles: Profiles, plan: Planner) -> Planned:
        """The program for most of these workers that has a plan."""
        nodes = frozenset(worker.node_id for worker in profiles.workers)

        known = self._known(nodes, profiles)
        if known is not None:
            return known
        failure = PlacementError("there is no worker to plan for", next_step="Start mesh-worker")
        for workers in range(min(len(nodes), self.most), 0, -1):
            program = await self._program(workers)
            try:
                planned = Planned(workers, program, await plan(program, profiles))
            except PlacementError as error:
                failure = error
            else:
                return self._remember(nodes, profiles, planned)
        raise failure

    async def _of(self, proposal: Proposal, among: Profiles, plan: Planner) -> Planned | None:
        """Plan a proposal; None if there is no plan."""
        program = await self._program(proposal.portions)
        try:
            planned = await plan(program, among)
        except PlacementError:
            return None
        planned = replace(planned, reasons=(*planned.reasons, self._shares_text(planned, proposal)))
        return self._remember(proposal.units, among, Planned(proposal.portions, program, planned))

    def _known(self, key: Hashable, profiles: Profiles) -> Planned | None:
        """The plan that was made for a key, unless something of the workers has changed."""
        remembered = self._plans.pop(key, None)
        if remembered is None or remembered[0] != _likeness(profiles):
            return None
        self._plans[key] = remembered  # the last one that was asked for is forgotten last
        return remembered[1]

    def _remember(self, key: Hashable, profiles: Profiles, planned: Planned) -> Planned:
        self._plans[key] = _likeness(profiles), planned
        while len(self._plans) > PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        return planned

    async def _program(self, portions: Portions) -> Program:
        if portions not in self._made:
            self._made[portions] = await self.make(portions)
        return self._made[portions]

    def _shares_text(self, plan: Plan, proposal: Proposal) -> str:
        """The workers' shares as text."""
        units = tuple(count for _, count in proposal.units)
        ends = ends_of(units, self.pieces)
        names = {worker.node: worker.name for worker in plan.workers}
        nodes = [plan.parts[part].node for part in plan.gangs[0].parts] if plan.gangs else [plan.parts[0].node]
        counts = (end - begin for begin, end in zip([0, *ends], ends, strict=False))
        shares = ", ".join(f"{names[node]} {count}" for node, count in zip(nodes, counts, strict=True))
        return f"shares of the batch by speed: {shares} of {self.pieces}"


def _likeness(profiles: Profiles) -> object:
    """What a remembered plan depends on.  The speed of devices and links is left out: a change is not worth a new
    plan."""
    cut = frozenset(way for way, link in profiles.links.items() if link.relayed)
    devices = {
        worker.node_id: tuple((device.index, device.adapter, device.memory_bytes) for device in worker.devices)
        for worker in profiles.workers
    }
    return devices, {worker.node_id: (worker.memory_bytes, worker.ops) for worker in profiles.workers}, cut


def arrays_of(inputs: StepInputs, portions: Portions) -> Arrays:
    """A step's inputs for these portions."""
    return inputs if isinstance(inputs, Mapping) else inputs.of(portions)


def bytes_of(inputs: StepInputs) -> int:
    """The bytes that are held of a step's inputs."""
    return sum(array.nbytes for array in inputs.values()) if isinstance(inputs, Mapping) else inputs.nbytes
