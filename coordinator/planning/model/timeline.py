"""Timeline: when every part of a plan is predicted to run, and what travels when.  Pure.

It is read off the plan, so plans of every strategy are judged alike: cuts, ranks that wait for each other, sessions.  A
part starts when its device is free and all its tensors have arrived; what a part makes for one worker travels in one
transfer, as do a worker's inputs.  No transfer slows another, but for those between the client and workers of its own
machine, which one process copies one after the other.  Ranks of a gang end together, after the last of them has
computed and they have exchanged what they do.  It does not know how a plan came to be, nor what of a prediction is
wrong: a caller that knows better how long a part takes passes that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .plan import FromInput, FromPart, Gang, Part, Plan
from .profiles import CLIENT, Profiles


@dataclass(frozen=True, slots=True)
class Bar:
    """A part on its device; a rank exchanges during the last `exchange_s`, after it waited for the others."""

    part: int
    node: str
    device: int
    start_s: float
    computed_s: float
    end_s: float
    exchange_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrow:
    """A transfer from part to part; None is the client."""

    source: int | None
    target: int | None
    size_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """`seconds` are those of a call, from the client and back to it."""

    bars: tuple[Bar, ...]
    arrows: tuple[Arrow, ...]
    seconds: float


def timeline(
    plan: Plan,
    profiles: Profiles,
    part_s: Callable[[Part], float] = lambda part: part.seconds,
    gang_s: Callable[[Gang], float] = lambda gang: gang.seconds,
) -> Timeline:
    """The timeline of a call by this plan, from what its parts and its gangs take."""
    clock = _Clock(plan, profiles)
    ranks = plan.ranks
    for part in plan.parts:
        gang = ranks.get(part.index)
        clock.start(part, part_s(part))
        if gang is None:
            clock.end((part.index,), 0.0)
        elif part.index == gang.parts[-1]:
            clock.end(gang.parts, gang_s(gang))
    return clock.done()


def seconds_at_present_speed(plan: Plan, profiles: Profiles) -> float:
    """The seconds of a call by this plan on devices that are as slow as they are now."""
    slower = {(worker.node_id, device.index): device.slower for worker in profiles.workers for device in worker.devices}
    return timeline(
        plan, profiles, lambda part: part.seconds / part.slower * slower.get((part.node, part.device), part.slower)
    ).seconds


class _Clock:
    """The clock of a timeline: when each part that was placed so far ends, and when devices are free."""

    def __init__(self, plan: Plan, profiles: Profiles) -> None:
        self._plan, self._profiles = plan, profiles
        self._sends: dict[tuple[int, str], int] = {}  # part, node -> bytes
        sent: set[tuple[FromPart, str]] = set()
        for edge in plan.edges:
            node = plan.parts[edge.part].node
            if (edge.source, node) not in sent:
                sent.add((edge.source, node))
                way = edge.source.part, node
                self._sends[way] = self._sends.get(way, 0) + edge.size_bytes
        self._fed = _fed_bytes(plan)
        self._fed_near = sum(size for node, size in self._fed.items() if node in profiles.near)
        self._free_s: dict[tuple[str, int], float] = {}
        self._started: dict[int, tuple[float, float]] = {}  # part -> start, computed
        self._end_s: dict[int, float] = {}
        self._bars: list[Bar] = []
        self._arrows: list[Arrow] = []

    def start(self, part: Part, took_s: float) -> None:
        start_s = self._free_s.get((part.node, part.device), 0.0)
        mine = part.sizes(FromInput)
        if mine:
            near_by = part.node in self._profiles.near
            there_s = self._link_s(CLIENT, part.node, self._fed_near if near_by else self._fed[part.node])
            self._arrows.append(Arrow(None, part.index, sum(mine.values()), 0.0, there_s))
            start_s = max(start_s, there_s)
        for number in sorted({source.part for source in part.sources if isinstance(source, FromPart)}):
            other = self._plan.parts[number]
            size = self._sends[number, part.node]
            near = (other.node, other.device) == (part.node, part.device)
            there_s = self._end_s[number] + (0.0 if near else self._link_s(other.node, part.node, size))
            self._arrows.append(Arrow(number, part.index, size, self._end_s[number], there_s))
            start_s = max(start_s, there_s)
        self._started[part.index] = start_s, start_s + took_s

    def end(self, parts: tuple[int, ...], exchange_s: float) -> None:
        """End parts at the same time."""
        end_s = max(self._started[index][1] for index in parts) + exchange_s
        for index in parts:
            part = self._plan.parts[index]
            self._end_s[index] = self._free_s[part.node, part.device] = end_s
            self._bars.append(Bar(index, part.node, part.device, *self._started[index], end_s, exchange_s))

    def done(self) -> Timeline:
        back: dict[int, int] = {}
        for output in self._plan.arrivals.values():
            graph = self._plan.parts[output.part].graph
            size = graph.types[graph.outputs[output.slot]].size_bytes
            back[output.part] = back.get(output.part, 0) + size
        free_s = 0.0
        for part, size in sorted(back.items(), key=lambda returned: self._end_s[returned[0]]):
            end_s, node = self._end_s[part], self._plan.parts[part].node
            near_by = node in self._profiles.near
            there_s = max(end_s, free_s if near_by else 0.0) + self._link_s(node, CLIENT, size)
            free_s = there_s - self._profiles.link(node, CLIENT).latency_s if near_by else free_s
            self._arrows.append(Arrow(part, None, size, end_s, there_s))
        ends = [bar.end_s for bar in self._bars] + [arrow.end_s for arrow in self._arrows]
        return Timeline(tuple(self._bars), tuple(self._arrows), max(ends, default=0.0))

    def _link_s(self, source: str, target: str, size_bytes: int) -> float:
        return self._profiles.link(source, target).seconds(size_bytes)


def _fed_bytes(plan: Plan) -> Mapping[str, int]:
    """The bytes that the client sends each worker."""
    wanted: dict[str, dict[FromInput, int]] = {}
    for part in plan.parts:
        wanted.setdefault(part.node, {}).update(part.sizes(FromInput))
    return {node: sum(sizes.values()) for node, sizes in wanted.items()}


def describe(plan: Plan, profiles: Profiles) -> dict[str, Any]:
    """The timeline of a plan as plain data; parts by number, None for the client."""
    predicted = timeline(plan, profiles)
    return {
        "seconds": predicted.seconds,
        "parts": [
            {
                "part": bar.part,
                "start_s": bar.start_s,
                "computed_s": bar.computed_s,
                "end_s": bar.end_s,
                "exchange_s": bar.exchange_s,
            }
            for bar in predicted.bars
        ],
        "transfers": [
            {
                "from": arrow.source,
                "to": arrow.target,
                "size_bytes": arrow.size_bytes,
                "start_s": arrow.start_s,
                "end_s": arrow.end_s,
            }
            for arrow in predicted.arrows
        ],
    }
