"""Carried state: what the parts of a plan leave on their devices for its next step.  Pure.

A carried output of step n fills its slots at step n + 1; at step 0 they have the blobs that the Deploy names.  A value
stays for as long as the coordinator may go back to it: what every worker of the plan has done is committed, and of that
only the last is kept.  So a worker holds as many values as there are steps under way, and one.

What a step is about to make is promised, so that a host can be told of the next step while it does this one: it does
what it is told in order, and if the first of them fails, so does the other, for want of it.

A step that ends early breaks the chain: nothing follows it in this plan.  Host and plan take the values with them; who
else has them is the coordinator's business (`coordinator/sessions/state.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wire.errors import InputError, MeshError, StaleGeneration
from wire.protocol.messages import PartSpec

from .events import Kept, Tensor

Output = tuple[int, int]  # (part, its output)
Slot = tuple[int, int]  # (part, input position)


class Carries:
    """Those of one plan on one worker.  `targets`: which slots a carried output fills; `slots`: those of every part."""

    def __init__(self, parts: Iterable[PartSpec] = ()) -> None:
        targets: dict[Output, list[Slot]] = {}
        for spec in parts:
            for carry in spec.carries:
                targets.setdefault((spec.part, carry.output), []).append((carry.part, carry.slot))
        self.targets: Mapping[Output, tuple[Slot, ...]] = {output: tuple(slots) for output, slots in targets.items()}
        self.slots: dict[int, frozenset[int]] = {}
        for part, slot in (slot for slots in targets.values() for slot in slots):
            self.slots[part] = self.slots.get(part, frozenset()) | {slot}
        self._values: dict[int, dict[Output, Kept]] = {}  # by the step that made them
        self._promised: dict[int, dict[Output, Kept]] = {}  # that a host will make before what it is told after it
        self._committed = 0
        self._broken: int | None = None  # the first step that will not be done
        self._over = False
        self.blobs: set[bytes] = set()  # made of values: what nobody has pinned goes with the plan

    def __bool__(self) -> bool:
        return bool(self.targets)

    def fed(self, part: int, step: int) -> frozenset[int]:
        """The slots of a part that wait for the step before."""
        return self.slots.get(part, frozenset()) if step else frozenset()

    def add(self, step: int, output: Output, tensor: Kept) -> bool:
        """A carried output was made; whether it was promised, so that the next step, if it is here, has it already."""
        self._values.setdefault(step, {})[output] = tensor
        promised = self._promised.get(step, {})
        was_promised = promised.pop(output, None) is not None
        if not promised:
            self._promised.pop(step, None)
        return was_promised

    def promise(self, step: int, output: Output, device: int, number: int) -> Kept | None:
        """A device is told to make a carried output, under this number.  What comes of it is as it was at an earlier
        step; None: there was none."""
        for values in (*self._values.values(), *self._promised.values()):
            if output in values:
                promised = Kept(values[output].dtype, values[output].shape, device, number)
                self._promised.setdefault(step, {})[output] = promised
                return promised
        return None

    def owes(self, step: int, tensors: Iterable[Tensor]) -> bool:
        """Whether any of these, which a step is given, is promised and not made yet."""
        promised = self._promised.get(step - 1, {}).values()
        return any(tensor in promised for tensor in tensors)

    def before(self, step: int) -> list[tuple[Output, Kept]]:
        """What the step before has made so far, or promised."""
        return list({**self._promised.get(step - 1, {}), **self._values.get(step - 1, {})}.items())

    def after(self, step: int) -> Mapping[Output, Kept] | None:
        """All that came out of a step, None if that is not here: not yet, or not any more."""
        found = self._values.get(step, {})
        return found if len(found) == len(self.targets) else None

    def refusal(self, step: int) -> MeshError | None:
        """Why a step cannot be done any more."""
        if self._broken is None or step < self._broken:
            return None
        return StaleGeneration(f"step {self._broken} of this plan was not done, and none can be after it")

    def commit(self, steps: int) -> tuple[list[Kept], bool]:
        """So many steps are committed: what is to be freed, and whether the first values are needed no more."""
        first = bool(self) and not self._committed and steps > 0
        self._committed = max(self._committed, steps)
        outgrown = [step for step in self._values if step < self._committed - 1]
        return [tensor for step in outgrown for tensor in self._values.pop(step).values()], first

    def give_up(self, step: int) -> list[Kept]:
        """This step will not be done, nor any after it: what is to be freed."""
        self._broken = step if self._broken is None else min(step, self._broken)
        self._promised = {number: each for number, each in self._promised.items() if number < step}
        return [
            tensor for later in [n for n in self._values if n >= step] for tensor in self._values.pop(later).values()
        ]

    @property
    def over(self) -> bool:
        """Whether the plan is."""
        return self._over

    def end(self) -> list[Kept]:
        """The plan is over: what is to be freed."""
        self._over = True
        return self.give_up(0)

    def on(self, device: int) -> bool:
        """Whether a device holds any."""
        return any(tensor.device == device for values in self._values.values() for tensor in values.values())


def wrong_with(spec: PartSpec, parts: Mapping[int, PartSpec], taken: set[Slot]) -> MeshError | None:
    """What is impossible about the carries of a part; the slots they fill are added to those `taken`."""
    for carry in spec.carries:
        target, slot = parts.get(carry.part), (carry.part, carry.slot)
        if target is None or target.device != spec.device:
            return InputError(f"part {spec.part} carries to part {carry.part}, which is not on its device")
        if carry.output >= len(spec.targets):
            return InputError(f"part {spec.part} carries output {carry.output}, and has {len(spec.targets)}")
        if carry.slot >= len(target.sources) or target.sources[carry.slot].kind != "param":
            return InputError(f"part {spec.part} carries to input {carry.slot} of part {carry.part}, which is no param")
        if slot in taken:
            return InputError(f"two outputs are carried to input {carry.slot} of part {carry.part}")
        taken.add(slot)
    return None
