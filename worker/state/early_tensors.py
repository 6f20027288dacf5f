"""Early tensors: tensors that came before the Run of their step, and graph encodings kept for the next plan.

Both are what others may make this worker hold, so both are bounded.  Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from wire.byte_sizes import size_text
from wire.errors import LimitExceeded
from wire.limits import MIB
from wire.protocol.messages import Deploy, PlanKey

from .events import Action, Release, Tensor, size_bytes_of


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the worker holds for others at most."""

    early_bytes_max: int = 1024 * MIB  # pushes that came before their Run: one step's activations, generously
    early_tensors_max: int = 65_536
    graphs_bytes_max: int = 64 * MIB  # graph encodings kept so that a new plan need not send them again
    fetches_max: int = 8  # enough to hide a LAN's round trips
    keep_orphans_s: float = 600.0  # what a coordinator deployed that fell silent, since it was last heard
    memory_bytes: int = 0  # for what is computed with, and what is kept for other workers; 0: as much as is wanted


@dataclass(slots=True)
class _Waiting:
    tensors: list[tuple[int, int, Tensor]] = field(default_factory=list)
    size_bytes: int = 0
    overflowed: bool = False


class EarlyTensors:
    """Tensors by (plan, step), as (part, slot, tensor)."""

    def __init__(self, bytes_max: int, tensors_max: int) -> None:
        self._bytes_max = bytes_max
        self._tensors_max = tensors_max
        self._steps: dict[tuple[PlanKey, int], _Waiting] = {}
        self._bytes = 0
        self._tensors = 0

    def add(self, plan: PlanKey, step: int, part: int, slot: int, tensor: Tensor) -> bool:
        """Hold one; False if there is no room, and then the step's Run must be refused: it would wait for ever."""
        waiting = self._steps.setdefault((plan, step), _Waiting())
        size_bytes = size_bytes_of(tensor)
        too_many = self._tensors >= self._tensors_max
        if too_many or self._bytes + size_bytes > self._bytes_max or waiting.overflowed:
            waiting.overflowed = True
            return False
        waiting.tensors.append((part, slot, tensor))
        waiting.size_bytes += size_bytes
        self._bytes += size_bytes
        self._tensors += 1
        return True

    def refusal(self, plan: PlanKey, step: int) -> LimitExceeded | None:
        """Why a step cannot run: what came for it was not held."""
        found = self._steps.get((plan, step))
        if found is None or not found.overflowed:
            return None
        return LimitExceeded(
            f"more than {size_text(self._bytes_max)} came for steps that had not begun",
            next_step="Run fewer steps at once",
        )

    def take(self, plan: PlanKey, step: int) -> list[tuple[int, int, Tensor]]:
        """The step's tensors; they are no longer held here."""
        found = self._steps.pop((plan, step), None)
        if found is None:
            return []
        self._bytes -= found.size_bytes
        self._tensors -= len(found.tensors)
        return found.tensors

    def release(self, plan: PlanKey, step: int) -> list[Action]:
        """Nobody wants the step's tensors any more."""
        return [Release(tensor) for _, _, tensor in self.take(plan, step)]

    def release_all(self, of: Callable[[PlanKey], bool]) -> list[Action]:
        """The same of all steps of such plans."""
        return [each for key in list(self._steps) if of(key[0]) for each in self.release(*key)]

    def validate(self) -> None:
        assert self._bytes == sum(waiting.size_bytes for waiting in self._steps.values())
        assert self._tensors == sum(len(waiting.tensors) for waiting in self._steps.values())
        assert self._bytes <= self._bytes_max
        assert self._tensors <= self._tensors_max


class KnownGraphs:
    """Graph encodings by hash, so that a new plan need not bring them again; the least recently used go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._graphs: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, address: bytes) -> bytes:
        return self._graphs[address]

    def learn(self, deploy: Deploy) -> tuple[bytes, ...]:
        """Keep the graphs that came along; the hashes of those that its parts name and nobody sent."""
        for address, encoded in deploy.graphs.items():
            if address not in self._graphs:
                self._graphs[address] = encoded
                self._bytes += len(encoded)
        wanted = dict.fromkeys(part.graph for part in deploy.parts)
        for address in wanted:
            if address in self._graphs:
                self._graphs.move_to_end(address)
        missing = tuple(address for address in wanted if address not in self._graphs)
        for address in list(self._graphs):
            if self._bytes <= self._bytes_max or address in wanted:
                break
            self.forget(address)
        return missing

    def forget(self, address: bytes) -> None:
        self._bytes -= len(self._graphs.pop(address, b""))

    def validate(self) -> None:
        assert self._bytes == sum(len(encoded) for encoded in self._graphs.values())
