"""Carried state: what the parts of a plan leave on their devices for the plan's next step.  Pure.

A carried output of step n fills its input slots at step n + 1.  At step 0 these slots have the blobs that the Deploy
names.  A value stays for as long as the coordinator may return to it: a step is committed once every worker of the plan
has done it, and of the committed steps only the last one's values are kept.  So a worker holds one set of values per
step in flight, and one more.

A value is promised before it is made, so that a host can be given the next step while it computes this one.  A host
runs what it is given in order, so if the first of the two fails, the second fails too, for want of its input.

A step that ends early breaks the chain: no step follows it in this plan.  If the host or the plan goes, the values go
with it.  Only the coordinator knows which other workers have them (`coordinator/sessions/state.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wire.errors import InputError, MeshError, StaleGeneration
from wire.protocol.messages import PartSpec, SourceKind

from .events import DeviceTensor, Tensor

Output = tuple[int, int]  # (part, its output)
Slot = tuple[int, int]  # (part, input position)


class CarriedState:
    """The carried values of one plan on one worker.  `targets` are the slots that each carried output fills, and
    `slots` the input positions of each part that are filled so."""

    def __init__(self, parts: Iterable[PartSpec] = ()) -> None:
        targets: dict[Output, list[Slot]] = {}
        for spec in parts:
            for carry in spec.carries:
                targets.setdefault((spec.part, carry.output), []).append((carry.part, carry.slot))
        self.targets: Mapping[Output, tuple[Slot, ...]] = {output: tuple(slots) for output, slots in targets.items()}
        self.slots: dict[int, frozenset[int]] = {}
        for part, slot in (slot for slots in targets.values() for slot in slots):
            self.slots[part] = self.slots.get(part, frozenset()) | {slot}
        self._values: dict[int, dict[Output, DeviceTensor]] = {}  # by the step that made them
        self._promised: dict[int, dict[Output, DeviceTensor]] = {}  # by the step that will make them
        self._committed = 0
        self._broken: int | None = None  # the first step that will not be done
        self._ended = False
        self.blobs: set[bytes] = set()  # made of values; those that nobody has pinned go with the plan

    def __bool__(self) -> bool:
        return bool(self.targets)

    def filled(self, part: int, step: int) -> frozenset[int]:
        """The input positions of a part that are filled by the step before."""
        return self.slots.get(part, frozenset()) if step else frozenset()

    def add(self, step: int, output: Output, tensor: DeviceTensor) -> bool:
        """Add a carried output that was made.  Returns whether it had been promised: then the next step, if it is here,
        has it already."""
        self._values.setdefault(step, {})[output] = tensor
        promised = self._promised.get(step, {})
        was_promised = promised.pop(output, None) is not None
        if not promised:
            self._promised.pop(step, None)
        return was_promised

    def promise(self, step: int, output: Output, device: int, number: int) -> DeviceTensor | None:
        """Promise a carried output that a device has to make under `number`.  Its dtype and shape are those of an
        earlier step; None if there was no earlier step."""
        for values in (*self._values.values(), *self._promised.values()):
            if output in values:
                promised = DeviceTensor(values[output].dtype, values[output].shape, device, number)
                self._promised.setdefault(step, {})[output] = promised
                return promised
        return None

    def any_promised(self, step: int, tensors: Iterable[Tensor]) -> bool:
        """Whether one of these inputs of a step is promised and not made yet."""
        promised = self._promised.get(step - 1, {}).values()
        return any(tensor in promised for tensor in tensors)

    def inputs_of(self, step: int) -> list[tuple[Output, DeviceTensor]]:
        """The values that the step before has made so far, or promised."""
        return list({**self._promised.get(step - 1, {}), **self._values.get(step - 1, {})}.items())

    def values_of(self, step: int) -> Mapping[Output, DeviceTensor] | None:
        """All values that a step made; None if they are not all here: not yet, or not any more."""
        values = self._values.get(step, {})
        return values if len(values) == len(self.targets) else None

    @property
    def made(self) -> int:
        """How many steps were done here, of the last of which all values are here."""
        return max((step + 1 for step in self._values if self.values_of(step) is not None), default=0)

    def refusal(self, step: int) -> MeshError | None:
        """Why a step cannot be done any more."""
        if self._broken is None or step < self._broken:
            return None
        return StaleGeneration(f"step {self._broken} of this plan was not done, and none can be after it")

    def commit(self, steps: int) -> tuple[list[DeviceTensor], bool]:
        """Commit the first `steps` steps.  Returns the values to free, and whether the blobs of step 0 are needed no
        more."""
        first = bool(self) and not self._committed and steps > 0
        self._committed = max(self._committed, steps)
        outgrown = [step for step in self._values if step < self._committed - 1]
        return [tensor for step in outgrown for tensor in self._values.pop(step).values()], first

    def give_up(self, step: int) -> list[DeviceTensor]:
        """Break the chain at a step, which will not be done.  Returns the values to free."""
        self._broken = step if self._broken is None else min(step, self._broken)
        self._promised = {number: values for number, values in self._promised.items() if number < step}
        later = [number for number in self._values if number >= step]
        return [tensor for number in later for tensor in self._values.pop(number).values()]

    @property
    def ended(self) -> bool:
        """Whether the plan is over."""
        return self._ended

    def end(self) -> list[DeviceTensor]:
        """End with the plan.  Returns the values to free."""
        self._ended = True
        return self.give_up(0)

    def any_on(self, device: int) -> bool:
        """Whether a device holds a value."""
        return any(tensor.device == device for values in self._values.values() for tensor in values.values())


def refusal_of_carries(spec: PartSpec, parts: Mapping[int, PartSpec], taken: set[Slot]) -> MeshError | None:
    """Why the carried outputs of a part are impossible.  The slots that they fill are added to `taken`."""
    for carry in spec.carries:
        target, slot = parts.get(carry.part), (carry.part, carry.slot)
        if target is None or target.device != spec.device:
            return InputError(f"part {spec.part} carries to part {carry.part}, which is not on its device")
        if carry.output >= len(spec.targets):
            return InputError(f"part {spec.part} carries output {carry.output}, and has {len(spec.targets)}")
        if carry.slot >= len(target.sources) or target.sources[carry.slot].kind is not SourceKind.PARAM:
            return InputError(f"part {spec.part} carries to input {carry.slot} of part {carry.part}, which is no param")
        if slot in taken:
            return InputError(f"two outputs are carried to input {carry.slot} of part {carry.part}")
        taken.add(slot)
    return None
