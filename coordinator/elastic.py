"""Elastic programs: what a session computes with so many workers.

A program of ranks has their number in it, so with another number of workers another one is needed, with the same state
and with its own inputs of the same step.  Whoever opened the session makes both when they are wanted, and all programs
carry the same tensors under the same names.  It does not know what a program is about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from wire.errors import PlacementError

from .plan import Plan
from .profile import Profiles
from .program import Program

PLANS_MAX = 64  # that are remembered: those for the death of each of 16 workers, and some
Arrays = Mapping[str, NDArray[Any]]


class Feeds(Protocol):
    """The inputs of one step, for any number of workers."""

    @property
    def nbytes(self) -> int:
        """How much is held for them."""
        ...

    def of(self, workers: int) -> Arrays: ...


Given = Arrays | Feeds


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, its program, and for how many workers that is: 0 where it is the only one."""

    workers: int
    program: Program
    plan: Plan


@dataclass(frozen=True, slots=True)
class Elastic:
    """Programs by the number of workers, up to `most`; `make` makes one."""

    most: int
    make: Callable[[int], Awaitable[Program]]
    _made: dict[int, Program] = field(default_factory=dict)
    _plans: dict[frozenset[str], tuple[object, Planned]] = field(default_factory=dict)

    async def planned(self, profiles: Profiles, plan: Callable[[Program], Awaitable[Plan]]) -> Planned:
        """A plan for these workers, of the program for most of them that has one: the same again while nothing of them
        has changed.  PlacementError if none has."""
        nodes, likeness = frozenset(each.node_id for each in profiles.workers), _likeness(profiles)
        known = self._plans.pop(nodes, None)
        if known is None or known[0] != likeness:
            known = likeness, await self._anew(len(nodes), plan)
        self._plans[nodes] = known  # the last one that was asked for is forgotten last
        while len(self._plans) > PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        return known[1]

    async def _anew(self, most: int, plan: Callable[[Program], Awaitable[Plan]]) -> Planned:
        failure = PlacementError("there is no worker to plan for", next_step="Start mesh-worker")
        for workers in range(min(most, self.most), 0, -1):
            if workers not in self._made:
                self._made[workers] = await self.make(workers)
            try:
                return Planned(workers, self._made[workers], await plan(self._made[workers]))
            except PlacementError as error:
                failure = error
        raise failure


def _likeness(profiles: Profiles) -> object:
    """What a plan that was made once depends on: how fast devices and links are is not worth another."""
    cut = frozenset(way for way, link in profiles.links.items() if link.relayed)
    devices = {
        each.node_id: tuple((device.index, device.adapter, device.memory_bytes) for device in each.devices)
        for each in profiles.workers
    }
    return devices, {each.node_id: (each.memory_bytes, each.ops) for each in profiles.workers}, cut


def arrays_of(given: Given, workers: int) -> Arrays:
    """A step's inputs for so many workers."""
    return given if isinstance(given, Mapping) else given.of(workers)


def bytes_of(given: Given) -> int:
    """What is held of a step's inputs."""
    return sum(array.nbytes for array in given.values()) if isinstance(given, Mapping) else given.nbytes
