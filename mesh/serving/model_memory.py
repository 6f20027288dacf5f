"""Model memory: which idle models are unloaded where another one, which is asked for, has no room beside them.

`leaving` decides, and is pure: the models that were used longest ago go, as many as are needed, but never one that
answers a request or was asked to stay.  `ModelMemory` performs it.  What a model needs is what the plan of its step
says; what the others hold are their weights and the keys and values that they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from wire.errors import NodeLost, PlacementError
from wire.system.steady_log import steady_logger
from wire.units import need_text, room_text, size_text

from ..client.plan_preview import PlanPreview
from .residence import Residence

log = steady_logger("graph_mesh.serving")


@dataclass(frozen=True, slots=True)
class Share:
    """A worker's share of a model: the bytes that a step needs there, of those that the worker may use."""

    worker: str
    need_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A model that holds so many bytes on workers, by their ids; `stays` says why it cannot go, "" if it can."""

    name: str
    held_bytes: Mapping[str, int]
    used_s: float
    stays: str = ""


async def shares_of(planning: Awaitable[Sequence[PlanPreview]]) -> dict[str, Share]:
    """The shares of a model by the ids of workers, by the plan of a step of each of its replicas; none while no worker
    is there, for which a load waits."""
    shares: dict[str, Share] = {}
    try:
        previews = await planning
    except NodeLost:
        return shares
    for row in (row for preview in previews for row in preview.data["workers"] if row["memory_bytes"]):
        before = shares[row["node"]].need_bytes if row["node"] in shares else 0
        shares[row["node"]] = Share(row["name"], before + row["memory_bytes"], row["budget_bytes"])
    return shares


def held_by(shares: Mapping[str, Share], held_bytes: int) -> dict[str, int]:
    """The bytes that a model holds on each worker, divided as its needs are."""
    whole = sum(share.need_bytes for share in shares.values())
    return {node: held_bytes * share.need_bytes // whole for node, share in shares.items()}


def leaving(name: str, shares: Mapping[str, Share], holders: Sequence[Holder]) -> list[int]:
    """The places of the holders that have to go, so that a model of these shares has room.

    PlacementError where it has none although all that can go are gone: it names the worker, what is needed there, what
    it has, and which models hold it.
    """
    going: list[int] = []
    by_age = sorted((place for place, holder in enumerate(holders) if not holder.stays), key=_used(holders))
    for node, share in shares.items():
        for place in by_age:
            if _short(node, share, holders, going) <= 0:
                break
            if place not in going and holders[place].held_bytes.get(node):
                going.append(place)
        if _short(node, share, holders, going) > 0:
            held = [holder for place, holder in enumerate(holders) if place not in going]
            holding = ", ".join(
                f"{holder.name!r} ({holder.stays}) holds {size_text(holder.held_bytes[node])}"
                for holder in held
                if holder.held_bytes.get(node)
            )
            raise PlacementError(
                f"there is no room for {name!r} beside other models: {share.worker} needs "
                f"{need_text(share.need_bytes)} for it and has {room_text(share.budget_bytes)}"
                f"{f', of which {holding}' if holding else ''}",
                next_step="Try again when they are idle, raise --max-memory, or add a worker",
            )
    return going


def _used(holders: Sequence[Holder]) -> Callable[[int], float]:
    return lambda place: holders[place].used_s


def _short(node: str, share: Share, holders: Sequence[Holder], going: Sequence[int]) -> int:
    """The bytes that a worker lacks once these are gone."""
    held = sum(holder.held_bytes.get(node, 0) for place, holder in enumerate(holders) if place not in going)
    return held + share.need_bytes - share.budget_bytes


@dataclass(frozen=True, slots=True)
class _Held:
    shares: Mapping[str, Share]
    held_bytes: Callable[[], int]


class ModelMemory:
    """The models of a server that are on workers, or on their way there; used on one loop."""

    def __init__(self) -> None:
        self._models: dict[Residence, _Held] = {}
        self._deciding = asyncio.Lock()

    @asynccontextmanager
    async def room_for(
        self, model: Residence, shares: Mapping[str, Share], held_bytes: Callable[[], int]
    ) -> AsyncIterator[None]:
        """Make room for a model, which is loaded within, and count it from now on unless that fails; PlacementError as
        `leaving` has it."""
        await self._take(model, shares, held_bytes)
        try:
            yield
        except BaseException:
            self.release(model)
            raise

    async def _take(self, model: Residence, shares: Mapping[str, Share], held_bytes: Callable[[], int]) -> None:
        async with self._deciding:
            while True:
                others = [other for other in self._models if other is not model]
                going = leaving(model.name, shares, [self._holder(other) for other in others])
                if not going:
                    break
                for place in going:
                    log.info("%s makes way for %s", others[place].name, model.name)
                    await others[place].make_way()
            self._models[model] = _Held(shares, held_bytes)

    def release(self, model: Residence) -> None:
        """Note that a model is on no worker any more."""
        self._models.pop(model, None)

    def _holder(self, model: Residence) -> Holder:
        its = self._models[model]
        return Holder(model.name, held_by(its.shares, its.held_bytes()), model.used_s, model.stays)
