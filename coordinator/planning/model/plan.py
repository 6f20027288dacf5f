"""Plan: where every part of a graph runs, as data.

The same value is printed by `mesh-coord plan`, executed by the runtime, and replaced after a failure.  It is always
made from the graph and the machines, never from an older plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wire.ir.graph import WireGraph
from wire.ir.grids import coordinates, groups

REASONS_MAX = 8  # sentences that a plan says of itself


@dataclass(frozen=True, slots=True)
class Window:
    """A box of a tensor: where it begins and how large it is, per axis.  What of it is behind the tensor is zeros."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """The box of an array: a view, or padded with zeros where the box goes beyond the array."""
        inside = array[self.index]
        if inside.shape == self.sizes:
            return inside
        padded = np.zeros(self.sizes, array.dtype)
        padded[tuple(map(slice, inside.shape))] = inside
        return padded

    @property
    def index(self) -> tuple[slice, ...]:
        """The box as a numpy index."""
        return tuple(slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True))


@dataclass(frozen=True, slots=True)
class FromInput:
    """A tensor given with every call, or a window of it."""

    name: str
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class FromParam:
    """A tensor that lives on the workers, or a window of it."""

    name: str
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class FromState:
    """What a part of the step before left on this device, or a window of the whole; at the first step, given as a param
    is.  So many `values` of it are held while steps are in flight."""

    name: str
    window: Window | None = None
    values: int = 2


@dataclass(frozen=True, slots=True)
class FromPart:
    """Output `slot` of another part."""

    part: int
    slot: int


@dataclass(frozen=True, slots=True)
class FromConst:
    """A constant of the graph, by node index."""

    node: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """A tensor that is nowhere whole: where each piece comes from, and what window of the tensor it is."""

    pieces: tuple[tuple[FromPart, Window], ...]


Source = FromInput | FromParam | FromState | FromPart
Output = Source | FromConst | Pieces
S = TypeVar("S", FromInput, FromParam, FromState, FromPart)


@dataclass(frozen=True, slots=True)
class Part:
    """A subgraph on one device of one worker.

    `graph` has one input per entry of `sources`, named by its position, so equal pieces of work in different places are
    equal graphs.  It runs when all its inputs are there.
    """

    index: int
    node: str
    device: int
    engine: str
    graph: WireGraph
    sources: tuple[Source, ...]
    seconds: float = 0.0  # predicted
    slower: float = 1.0  # than measured its device was known to be: `seconds` is of that

    def sizes(self, kind: type[S]) -> dict[S, int]:
        """Bytes of what it needs of one kind of source, each once."""
        read = zip(self.sources, self.graph.inputs, strict=True)
        return {source: self.graph.types[index].size_bytes for source, index in read if isinstance(source, kind)}


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor going from one part to another."""

    source: FromPart
    part: int
    slot: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Gang:
    """Parts that run at the same time, one per rank of a grid, `parts` by rank.  Seconds are those that
    its collectives are predicted to take, bytes what all ranks send each other; `bytes_per_s` is what each of them can
    send, if that is not alike, and `slower` how many times as long as priced these workers were known to take."""

    parts: tuple[int, ...]
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    seconds: float
    sent_bytes: int
    bytes_per_s: tuple[float, ...] = ()
    slower: float = 1.0


@dataclass(frozen=True, slots=True)
class Carry:
    """An output that is `state` at the next step, for every part on its device that takes that."""

    state: FromState
    source: FromPart


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker is predicted to do per call.  Bytes and seconds; those that it keeps for others are held besides
    those it needs."""

    node: str
    name: str
    parts: int
    busy_s: float
    memory_bytes: int
    budget_bytes: int
    bytes_in: int
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ParamPlace:
    """The homes of a param, and which nodes can restore it: `copy` is a worker's node id, or "" for the client that put
    it."""

    name: str
    homes: tuple[str, ...]
    copy: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Audit:
    """A part that is computed again: by which auditors, whose counts of differences are the plan's last outputs."""

    part: int
    node: str
    auditors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that was thought of: what it is called, its predicted seconds, how many workers have work, and why it was
    not made if it was not; `seconds` are None then."""

    name: str
    seconds: float | None
    workers: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """`graph` is what is carried out, simplified; `outputs` says for each of its outputs where the value comes from,
    and then for the counts of an audit."""

    strategy: str
    graph: WireGraph
    parts: tuple[Part, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[Output, ...]
    params: tuple[ParamPlace, ...]
    workers: tuple[WorkerShare, ...]
    seconds: float
    cut_bytes: int
    reasons: tuple[str, ...]
    audit: Audit | None = None
    ordered: bool = False  # whether a device runs its parts as they stand here, and its steps in turn
    carries: tuple[Carry, ...] = ()  # a session's; its last outputs, which nobody is sent, are not among `outputs`

    @property
    def owners(self) -> dict[FromState, frozenset[str]]:
        """The workers that make each piece of the state."""
        owners: dict[FromState, frozenset[str]] = {}
        for carry in self.carries:
            owners[carry.state] = owners.get(carry.state, frozenset()) | {self.parts[carry.source.part].node}
        return owners

    gangs: tuple[Gang, ...] = ()
    lying: tuple[tuple[tuple[FromPart, Window | None], ...], ...] = ()  # of outputs made by ranks, what each rank has
    how: str = ""  # the strategy that `auto` chose
    candidates: tuple[Candidate, ...] = ()  # what it chose among, the best first
    unkept: tuple[str, str] | None = None  # why the copies wanted are not all kept, for lack of memory; and what to do
    candidate: str = ""  # which of the candidates it is
    measured: tuple[tuple[str, float], ...] = ()  # what calls took by some of them, as it was chosen

    @property
    def ranks(self) -> dict[int, Gang]:
        """The parts that are ranks, and of which gang."""
        return {part: gang for gang in self.gangs for part in gang.parts}

    @property
    def arrivals(self) -> dict[int, FromPart]:
        """What comes back from workers, under the numbers by which they send it: of what is in pieces, the first has
        the output's position as others have, and the others come after all outputs."""
        arrivals: dict[int, FromPart] = {}
        later = []
        for position, source in enumerate(self.outputs):
            if isinstance(source, FromPart):
                arrivals[position] = source
            elif isinstance(source, Pieces):
                (arrivals[position], _), *more = source.pieces
                later += [piece for piece, _ in more]
        return arrivals | dict(enumerate(later, len(self.outputs)))

    def describe(self) -> dict[str, Any]:
        """The plan as plain data for tables and JSON; graphs by their size and hash."""
        names = {worker.node: worker.name for worker in self.workers}
        return {
            "strategy": self.strategy,
            "seconds": self.seconds,
            "cut_bytes": self.cut_bytes,
            "reasons": list(self.reasons),
            "workers": [{name: getattr(worker, name) for name in WorkerShare.__slots__} for worker in self.workers],
            "parts": [self._describe_part(part, names) for part in self.parts],
            "edges": [
                {"from": edge.source.part, "to": edge.part, "slot": edge.slot, "size_bytes": edge.size_bytes}
                for edge in self.edges
            ],
            "params": [
                {
                    "name": place.name,
                    "homes": [names[home] for home in place.homes],
                    "copy": names.get(place.copy, "client"),
                    "size_bytes": place.size_bytes,
                }
                for place in self.params
            ],
            "gangs": [self._describe_gang(gang, names) for gang in self.gangs],
            "how": self.how,
            "candidates": [
                {name: getattr(candidate, name) for name in Candidate.__slots__} for candidate in self.candidates
            ],
        }

    def _describe_gang(self, gang: Gang, names: dict[str, str]) -> dict[str, Any]:
        """The ranks of a gang with their workers, and the groups over each axis."""
        places = coordinates(gang.sizes)
        return {
            "axes": dict(zip(gang.axes, gang.sizes, strict=True)),
            "ranks": [
                {
                    "part": part,
                    "worker": names[self.parts[part].node],
                    "device": self.parts[part].device,
                    "at": list(at),
                }
                for part, at in zip(gang.parts, places, strict=True)
            ],
            "groups": {axis: [list(group) for group in groups(gang.axes, gang.sizes, (axis,))] for axis in gang.axes},
            "seconds": gang.seconds,
            "sent_bytes": gang.sent_bytes,
        }

    def _describe_part(self, part: Part, names: dict[str, str]) -> dict[str, Any]:
        return {
            "part": part.index,
            "worker": names[part.node],
            "node": part.node,
            "device": part.device,
            "engine": part.engine,
            "nodes": len(part.graph),
            "flops": part.graph.flops,
            "weight_bytes": sum(part.sizes(FromParam).values()),
            "state_bytes": sum(part.sizes(FromState).values()),
            "graph": part.graph.hash.hex()[:16],
        }
