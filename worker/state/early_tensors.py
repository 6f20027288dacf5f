"""Early tensors: tensors that other workers sent before the Run of their step came.  Bounded and pure.

What a sender has for the first such step is as much as the plan says, and has to be here when the step begins.  For
later steps every sender has a budget, and all have one together.  Where that is full, the sender with the most gives
way: the tensors of its latest step go, and that step is refused.  So no sender can take the room of others.  What a
sender left here goes with its link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from wire.bounds import EARLY_REFUSED
from wire.errors import MeshError, NodeLost, QueueFull
from wire.protocol.messages import PlanKey
from wire.units import size_text

from .carried_state import Slot
from .events import Action, Release, Tensor, size_bytes_of

Key = tuple[PlanKey, int]  # of a step


@dataclass(slots=True)
class _Held:
    node: str
    tensor: Tensor
    size_bytes: int


@dataclass(slots=True)
class _Steps:
    """The steps of one plan that a sender was refused room for, or that lost what it left."""

    errors: dict[int, MeshError] = field(default_factory=dict)
    last: MeshError | None = None  # too many to tell apart: it holds for every step from `first` to `until`
    first: int = 0
    until: int = 0


class EarlyTensors:
    """The early tensors of a worker by plan and step.  Beside those of its first step no sender has more than
    `bytes_of_one_max` of `bytes_max`."""

    def __init__(self, bytes_max: int, tensors_max: int, bytes_of_one_max: int) -> None:
        self._bytes_max = bytes_max
        self._tensors_max = tensors_max
        self._bytes_of_one_max = bytes_of_one_max
        self._steps: dict[Key, dict[Slot, _Held]] = {}
        self._refused: dict[PlanKey, _Steps] = {}
        self._bytes: dict[str, dict[Key, int]] = {}  # by sender and step, in the order in which its steps came
        self._tensors: Counter[str] = Counter()
        self._total_tensors = 0

    def has(self, plan: PlanKey, step: int, slot: Slot) -> bool:
        """Whether a tensor for a slot is here already."""
        return slot in self._steps.get((plan, step), ())

    def room(self, node: str, key: Key, coming: Mapping[Key, int] = MappingProxyType({})) -> int | None:
        """How many more bytes a sender may have here for a step, beside those that are coming; None for all that the
        step takes."""
        held = self._bytes.get(node, {})
        first = next(iter(held or coming), key)
        if key == first:
            return None
        beyond = [size for steps in (held, coming) for each, size in steps.items() if each != first]
        return self._bytes_of_one_max - sum(beyond)

    def add(self, plan: PlanKey, step: int, slot: Slot, node: str, tensor: Tensor) -> list[Action]:
        """Hold a tensor, or free it where there is no room: the step's Run is then refused, or it would wait for ever.
        Returns what frees tensors."""
        size_bytes, key = size_bytes_of(tensor), (plan, step)
        room = self.room(node, key)
        if (room is not None and size_bytes > room) or self.refusal(plan, step) is not None:
            return [Release(tensor), *self._refuse(key, self._no_room(node))]
        actions: list[Action] = []
        while (full := self._full(0 if room is None else size_bytes)) is not None:
            used, more = full
            heaviest = max(used, key=lambda other: used[other])
            if used[heaviest] <= used[node] + more:
                return [*actions, Release(tensor), *self._refuse(key, self._no_room(node))]
            actions += self._refuse(next(reversed(self._bytes[heaviest])), self._no_room(heaviest))
        self._steps.setdefault(key, {})[slot] = _Held(node, tensor, size_bytes)
        by_step = self._bytes.setdefault(node, {})
        by_step[key] = by_step.get(key, 0) + size_bytes
        self._tensors[node] += 1
        self._total_tensors += 1
        return actions

    def _full(self, size_bytes: int) -> tuple[Counter[str], int] | None:
        """What there is no room for, with the use of each sender, and how much more is wanted; None if there is."""
        if self._total_tensors >= self._tensors_max:
            return self._tensors, 1
        beyond = Counter({node: _beyond(by_step) for node, by_step in self._bytes.items()}) if size_bytes else None
        return (beyond, size_bytes) if beyond and beyond.total() + size_bytes > self._bytes_max else None

    def _no_room(self, node: str) -> MeshError:
        return QueueFull(
            f"more came for steps that are to begin later than there is room for: {size_text(self._bytes_of_one_max)} "
            f"of one worker, {size_text(self._bytes_max)} of all",
            node=node,
            next_step="Run fewer steps at once",
        )

    def _refuse(self, key: Key, error: MeshError) -> list[Action]:
        """A step cannot run: free what is here of it."""
        plan, step = key
        actions = self._release(key)
        refused = self._refused.setdefault(plan, _Steps())
        if len(refused.errors) < EARLY_REFUSED.most:
            refused.errors[step] = error
        else:
            refused.first = min(step, refused.first) if refused.last else step
            refused.until = max(step, refused.until)
            refused.last = error
        return actions

    def refusal(self, plan: PlanKey, step: int) -> MeshError | None:
        """Why a step cannot run: there was no room for a tensor that came for it, or the sender of one is gone."""
        refused = self._refused.get(plan)
        if refused is None:
            return None
        known = refused.errors.get(step)
        if known is None and refused.last is not None and refused.first <= step <= refused.until:
            known = refused.last
        return None if known is None else known.copy()

    def take(self, plan: PlanKey, step: int) -> list[tuple[Slot, Tensor]]:
        """Hand over the step's tensors; they are no longer held here."""
        refused = self._refused.get(plan)
        if refused is not None:
            refused.errors.pop(step, None)
        return [(slot, held.tensor) for slot, held in self._take((plan, step)).items()]

    def _take(self, key: Key) -> dict[Slot, _Held]:
        held = self._steps.pop(key, {})
        for node, count in Counter(each.node for each in held.values()).items():
            self._tensors[node] -= count
            self._total_tensors -= count
            del self._bytes[node][key]
            if not self._bytes[node]:
                del self._bytes[node], self._tensors[node]
        return held

    def _release(self, key: Key) -> list[Action]:
        return [Release(held.tensor) for held in self._take(key).values()]

    def release(self, plan: PlanKey, step: int) -> list[Action]:
        """Free the step's tensors: nobody will read them."""
        return [Release(tensor) for _, tensor in self.take(plan, step)]

    def release_all(self, condition: Callable[[PlanKey], bool]) -> list[Action]:
        """Free the tensors of all steps of the plans for which `condition` holds: they are over."""
        for plan in [plan for plan in self._refused if condition(plan)]:
            del self._refused[plan]
        return [action for key in list(self._steps) if condition(key[0]) for action in self._release(key)]

    def release_of(self, node: str) -> list[Action]:
        """Free what a node has sent, whose link ended.  The steps that it was for cannot run."""
        error = NodeLost("the link to a worker of the plan ended before the step", node=node)
        return [action for key in list(self._bytes.get(node, ())) for action in self._refuse(key, error.copy())]

    def validate(self) -> None:
        if not self._steps and not self._refused:  # most of the time, and machines are checked after each event
            assert not self._tensors and not self._bytes and not self._total_tensors
            return
        sizes: dict[str, Counter[Key]] = {}
        for key, tensors in self._steps.items():
            for each in tensors.values():
                sizes.setdefault(each.node, Counter())[key] += each.size_bytes
        beyond = [_beyond(by_step) for by_step in self._bytes.values()]
        held = [each for tensors in self._steps.values() for each in tensors.values()]
        assert self._bytes == sizes
        assert sum(beyond) <= self._bytes_max
        assert max(beyond, default=0) <= self._bytes_of_one_max
        assert self._tensors == Counter(each.node for each in held)
        assert self._total_tensors == len(held) <= self._tensors_max
        assert all(len(refused.errors) <= EARLY_REFUSED.most for refused in self._refused.values())


def _beyond(by_step: Mapping[Key, int]) -> int:
    """Bytes of one sender for all steps but its first one here."""
    return sum(by_step.values()) - next(iter(by_step.values()))
