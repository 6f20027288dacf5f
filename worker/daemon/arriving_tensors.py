"""Arriving tensors: those whose bytes are on their way here, as a stream or in relayed pieces.

There is room for what a step of a plan expects, from the sender and of the size that the plan says, once.  What comes
for a step that has not begun counts against its sender (`worker/state/early_tensors.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from wire.errors import QueueFull, StaleGeneration
from wire.protocol.messages import PlanKey, Push
from wire.units import size_text

from ..state import events as ev
from .machine_shell import MachineShell
from .tensor_refs import arriving, check_size

Key = tuple[PlanKey, int, int, int]  # plan, step, part, slot


class ArrivingTensors:
    """`blame` counts something against the node of an id."""

    def __init__(self, shell: MachineShell, blame: Callable[[str, str], None]) -> None:
        self._shell = shell
        self._blame = blame
        self._in_flight: dict[Key, tuple[str, int]] = {}  # its sender, and the bytes that count as early
        self._early_bytes: dict[str, Counter[tuple[PlanKey, int]]] = {}  # by sender and step

    def check(self, push: Push, node: str, size_bytes: int) -> None:
        """Raise unless the machine wants a tensor of `size_bytes` bytes, its zeros among them, from this node:
        StaleGeneration for what is not wanted, ProtocolError for another size than the tensor has, QueueFull where
        the sender has no more room."""
        machine, tensor = self._shell.machine, arriving(node, push)
        if machine is None:
            raise StaleGeneration("this worker is ending")
        unwanted = machine.unwanted(tensor)
        if unwanted is not None:
            if unwanted.blame:
                self._blame(node, unwanted.why)
            raise StaleGeneration(unwanted.why)
        check_size(push.value, size_bytes)
        if _key(push) in self._in_flight:
            self._blame(node, "a tensor that is on its way already")
            raise StaleGeneration("this tensor is on its way already")
        if not machine.is_early(tensor):
            return
        room = machine.early_room(tensor, self._early_bytes.get(node, {}))
        if room is not None and size_bytes > room:
            error = QueueFull(
                f"{size_text(size_bytes)} for a step that is to begin later, and there is room for "
                f"{size_text(max(room, 0))} of this worker",
                next_step="Run fewer steps at once",
            )
            self._shell.feed(ev.TensorLost(push.plan, push.step, error))
            raise error

    def begin(self, push: Push, node: str, size_bytes: int) -> None:
        """Note that the bytes come from now on."""
        machine = self._shell.machine
        early = size_bytes > 0 and machine is not None and machine.is_early(arriving(node, push))
        self._in_flight[_key(push)] = node, size_bytes if early else 0
        if early:
            self._early_bytes.setdefault(node, Counter())[push.plan, push.step] += size_bytes

    def end(self, push: Push) -> None:
        """Note that all have come, or that no more do."""
        node, early_bytes = self._in_flight.pop(_key(push))
        if not early_bytes:
            return
        coming, step = self._early_bytes[node], (push.plan, push.step)
        coming[step] -= early_bytes
        if not coming[step]:
            del coming[step]
        if not coming:
            del self._early_bytes[node]


def _key(push: Push) -> Key:
    return push.plan, push.step, push.part, push.slot
