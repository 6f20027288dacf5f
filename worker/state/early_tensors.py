"""Early tensors: tensors that other workers sent before the Run of their step came.  Bounded and pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wire.errors import LimitExceeded
from wire.protocol.messages import PlanKey
from wire.units import size_text

from .events import Action, Release, Tensor, size_bytes_of


@dataclass(slots=True)
class _StepTensors:
    tensors: list[tuple[int, int, Tensor]] = field(default_factory=list)
    size_bytes: int = 0
    overflowed: bool = False


class EarlyTensors:
    """The early tensors of a worker by (plan, step), each as (part, input position, tensor)."""

    def __init__(self, bytes_max: int, tensors_max: int) -> None:
        self._bytes_max = bytes_max
        self._tensors_max = tensors_max
        self._steps: dict[tuple[PlanKey, int], _StepTensors] = {}
        self._bytes = 0
        self._tensors = 0

    def add(self, plan: PlanKey, step: int, part: int, slot: int, tensor: Tensor) -> bool:
        """Hold a tensor.  False if there is no room: the step's Run must then be refused, or it would wait for ever."""
        waiting = self._steps.setdefault((plan, step), _StepTensors())
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
        """Why a step cannot run: there was no room for a tensor that came for it."""
        waiting = self._steps.get((plan, step))
        if waiting is None or not waiting.overflowed:
            return None
        return LimitExceeded(
            f"more than {size_text(self._bytes_max)} came for steps that had not begun",
            next_step="Run fewer steps at once",
        )

    def take(self, plan: PlanKey, step: int) -> list[tuple[int, int, Tensor]]:
        """Hand over the step's tensors; they are no longer held here."""
        waiting = self._steps.pop((plan, step), None)
        if waiting is None:
            return []
        self._bytes -= waiting.size_bytes
        self._tensors -= len(waiting.tensors)
        return waiting.tensors

    def release(self, plan: PlanKey, step: int) -> list[Action]:
        """Free the step's tensors: nobody will read them."""
        return [Release(tensor) for _, _, tensor in self.take(plan, step)]

    def release_all(self, condition: Callable[[PlanKey], bool]) -> list[Action]:
        """Free the tensors of all steps of the plans for which `condition` holds."""
        keys = [key for key in self._steps if condition(key[0])]
        return [action for key in keys for action in self.release(*key)]

    def validate(self) -> None:
        assert self._bytes == sum(waiting.size_bytes for waiting in self._steps.values())
        assert self._tensors == sum(len(waiting.tensors) for waiting in self._steps.values())
        assert self._bytes <= self._bytes_max
        assert self._tensors <= self._tensors_max
