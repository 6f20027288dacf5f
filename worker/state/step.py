"""A step of a plan on one worker: what its parts wait for, what they have read, and what came out.  Pure data.

When anything happens to a step is decided in `steps.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wire.bounds import CLOSED_STEPS
from wire.protocol.messages import Explain, PartRun, PlanKey

from .carried_state import Slot
from .events import DeviceTensor, ReplyRan, RunInput, Tensor

CLOSED_STEPS_MAX = CLOSED_STEPS.most


@dataclass(slots=True)
class InputTensor:
    """A tensor and how many inputs still have to read it.  A borrowed one is not freed after the last read."""

    tensor: Tensor
    uses: int
    borrowed: bool = False


@dataclass(slots=True)
class Step:
    """A step; with a `question` it is none that computes, but one part is explained in its place."""

    request: int
    started_s: float
    waiting: dict[int, set[int]]  # part -> input positions whose tensors have not come yet
    inputs: dict[Slot, InputTensor] = field(default_factory=dict)
    wait_s: dict[int, float] = field(default_factory=dict)
    began: bool = False
    done: list[PartRun] = field(default_factory=list)
    outputs: list[tuple[int, Tensor]] = field(default_factory=list)
    pushes: set[int] = field(default_factory=set)
    bytes_in: int = 0
    bytes_out: int = 0
    question: Explain | None = None

    def fill(self, slots: Iterable[Slot], tensor: Tensor, borrowed: bool = False) -> list[int] | None:
        """Give a tensor to those of `slots` that wait for one.  Returns the parts that now have all inputs, or None if
        no slot waited."""
        vacant = [(part, slot) for part, slot in slots if slot in self.waiting.get(part, ())]
        entry = InputTensor(tensor, len(vacant), borrowed)
        for part, slot in vacant:
            self.inputs[part, slot] = entry
            self.waiting[part].discard(slot)
        filled = dict.fromkeys(part for part, _ in vacant)
        return [part for part in filled if not self.waiting[part]] if vacant else None

    def has(self, part: int, slot: int) -> bool:
        """Whether an input came already."""
        return slot not in self.waiting.get(part, ())

    def take(self, part: int, slots: Iterable[int]) -> tuple[RunInput, ...]:
        """Hand over the inputs of a part that begins."""
        uses = []
        for slot in sorted(slots):
            entry = self.inputs.pop((part, slot))
            entry.uses -= 1
            uses.append(RunInput(slot, entry.tensor, entry.uses == 0 and not entry.borrowed))
        return tuple(uses)

    def unread(self) -> list[Tensor]:
        """The tensors that must be freed if the step ends now: unread inputs and outputs, but nothing borrowed."""
        unread = {id(entry): entry.tensor for entry in self.inputs.values() if not entry.borrowed}
        return [*unread.values(), *(tensor for _, tensor in self.outputs)]

    def needs(self, device: int) -> bool:
        """Whether an input of the step exists only in the memory of that device's engine host."""
        kept = (entry.tensor for entry in self.inputs.values() if isinstance(entry.tensor, DeviceTensor))
        return any(tensor.device == device for tensor in kept)

    def answer(self, node: str, plan: PlanKey, number: int) -> ReplyRan:
        """The reply to the coordinator `node` once every part is done."""
        outputs, parts = tuple(self.outputs), tuple(self.done)
        return ReplyRan(self.request, node, plan, number, outputs, parts, self.bytes_in, self.bytes_out)

    def validate(self) -> None:
        """Assert that the uses of every tensor are counted right."""
        entries = list(self.inputs.values())
        assert all(entry.uses == sum(other is entry for other in entries) for entry in entries)


@dataclass(slots=True)
class ClosedSteps:
    """The numbers of the steps of a plan that are over: all below `floor`, and those in `above`."""

    floor: int = 0
    above: set[int] = field(default_factory=set)

    def __contains__(self, step: int) -> bool:
        return step < self.floor or step in self.above

    def add(self, step: int) -> None:
        if step < self.floor:
            return
        self.above.add(step)
        while self.floor in self.above or len(self.above) > CLOSED_STEPS_MAX:
            self.floor = min(self.above)
            self.above.discard(self.floor)
            self.floor += 1
