"""A program: what all calls of one compiled function share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wire.cached_property import cached_property
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.policy.strategies import DeviceMap, strategy_of

ProgramKey = tuple[bytes, tuple[tuple[str, bytes], ...], str, str, int]
"""The graph's hash, the params' addresses, the strategy, the copies, and the number of one that is forced."""


@dataclass(frozen=True, eq=False)
class Program:
    """A graph, the content its params are bound to (name -> address and type), how to place it, and which `copies` of
    the params are kept (`wire/policy/redundancy.py`).  One that is `forced` has a number of its own, and its parts are
    compiled anew, whatever workers have in their caches.

    Programs are equal, and share plans and deployments, when their `key` is.
    """

    graph: WireGraph
    bindings: Mapping[str, tuple[bytes, TensorType]]
    strategy: str = "auto"
    copies: str = "checkpoint"
    forced: int = 0

    @cached_property
    def key(self) -> ProgramKey:
        bound = tuple(sorted((name, address) for name, (address, _) in self.bindings.items()))
        return (self.graph.hash, bound, self.strategy, self.copies, self.forced)

    @property
    def likeness(self) -> tuple[WireGraph, str, str]:
        """What a plan is made for, whatever the params are bound to."""
        return self.graph, self.strategy, self.copies

    @cached_property
    def by_hand(self) -> bool:
        """Whether the user says which workers have what, so that nobody else may have it."""
        parsed = strategy_of(self.strategy)
        return isinstance(parsed, DeviceMap) or bool(parsed.workers)

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Program) and self.key == other.key)

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Sampled:
    """A program one of whose parts is computed again elsewhere; `variant` says which and where
    (`coordinator/planning/audit/result_audit.py`).  With `untrusted` it is a part of a worker that is not trusted."""

    program: Program
    variant: int
    untrusted: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A program that one device computes, to see how fast it is
    (`coordinator/plan_service/straggler_mitigation.py`)."""

    program: Program
    node: str
    device: int


def program_of(job: object) -> Program:
    """What the machine's job computes."""
    assert isinstance(job, Program | Sampled | Trial)
    return job if isinstance(job, Program) else job.program
