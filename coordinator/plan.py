"""Plan: where every part of a graph runs, as data.

The same value is printed by `mesh-coord plan`, executed by the runtime, and replaced after a failure.  It is always
made from the graph and the machines, never from an older plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wire.graph import WireGraph


@dataclass(frozen=True, slots=True)
class FromInput:
    """A tensor given with every call."""

    name: str


@dataclass(frozen=True, slots=True)
class FromParam:
    """A tensor that lives on the workers."""

    name: str


@dataclass(frozen=True, slots=True)
class FromPart:
    """Output `slot` of another part."""

    part: int
    slot: int


@dataclass(frozen=True, slots=True)
class FromConst:
    """A constant of the graph, by node index."""

    node: int


Source = FromInput | FromParam | FromPart


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


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor going from one part to another."""

    source: FromPart
    part: int
    slot: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker is predicted to do per call.  Bytes and seconds."""

    node: str
    name: str
    parts: int
    busy_s: float
    memory_bytes: int
    budget_bytes: int
    bytes_in: int


@dataclass(frozen=True, slots=True)
class ParamPlace:
    """Where a param lives, and who can restore it: `copy` is a worker's node id, or "" for the client that put it."""

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
class Plan:
    """`graph` is what is carried out, simplified; `outputs` says for each of its outputs where the value comes from,
    and then for the counts of an audit."""

    strategy: str
    graph: WireGraph
    parts: tuple[Part, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[Source | FromConst, ...]
    params: tuple[ParamPlace, ...]
    workers: tuple[WorkerShare, ...]
    seconds: float
    cut_bytes: int
    reasons: tuple[str, ...]
    audit: Audit | None = None

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
        }

    def _describe_part(self, part: Part, names: dict[str, str]) -> dict[str, Any]:
        sizes = {place.name: place.size_bytes for place in self.params}
        weights = {source.name for source in part.sources if isinstance(source, FromParam)}
        return {
            "part": part.index,
            "worker": names[part.node],
            "node": part.node,
            "device": part.device,
            "engine": part.engine,
            "nodes": len(part.graph),
            "flops": part.graph.flops,
            "weight_bytes": sum(sizes[name] for name in weights),
            "graph": part.graph.hash.hex()[:16],
        }
