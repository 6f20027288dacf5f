"""Donation: a tensor that a run may write over, and how to get its old value back.

An update of a few rows of a large tensor copies all of it, only so that the old value is still there.  A lent tensor is
written over instead, and what stood there is remembered: so the old value is one `take_back` away, at the cost of the
rows (Baker, 1991, "Shallow binding makes functional arrays fast").

`Versions` are tensors under numbers, of which several may live in the same memory: the newest has it, those before it
are what to undo.  It knows no engine and no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wire.ir.types import HostArray


@dataclass(frozen=True, slots=True)
class Undo:
    """What stood at `index` of a tensor seen in this shape, `axis` being moved to the front, before it was written."""

    shape: tuple[int, ...]
    axis: int
    index: Any
    old: HostArray


@dataclass(slots=True)
class Lent:
    """An input of a run (worker/engine/protocol.py).  After it `output` is the place of the output that has its memory,
    and
    `undo` what was written, in order; None: the array is as it was."""

    array: HostArray
    undo: list[Undo] = field(default_factory=list)
    output: int | None = None

    def take_back(self) -> None:
        """Have the old value again; whatever has the memory now changes with it."""
        take_back(self.array, self.undo)
        self.undo, self.output = [], None


def take_back(array: HostArray, undo: Sequence[Undo]) -> None:
    """Undo what was written, the last first; `array` is contiguous."""
    for update in reversed(undo):
        np.moveaxis(array.reshape(update.shape), update.axis, 0)[update.index] = update.old


@dataclass(frozen=True, slots=True)
class _Outgrown:
    later: int  # the value that has the memory, or is outgrown itself
    undo: tuple[Undo, ...]
    shape: tuple[int, ...]


class Versions:
    """Tensors under numbers."""

    def __init__(self) -> None:
        self._whole: dict[int, HostArray] = {}
        self._outgrown: dict[int, _Outgrown] = {}
        self._earlier: dict[int, int] = {}  # of a number, whose memory it has

    def __contains__(self, number: int) -> bool:
        return number in self._whole or number in self._outgrown

    def __iter__(self) -> Iterator[int]:
        yield from (*self._whole, *self._outgrown)

    def __len__(self) -> int:
        return len(self._whole) + len(self._outgrown)

    @property
    def size_bytes(self) -> int:
        """The host's memory of tensors that have any."""
        return sum(getattr(array, "nbytes", 0) for array in self._whole.values())

    def add(self, number: int, array: HostArray) -> None:
        """A tensor, which nobody else writes to."""
        self._whole[number] = array

    def get(self, number: int) -> HostArray:
        """A value to be read until something else is done here; KeyError if it is not here."""
        return self._copy(number) if number in self._outgrown else self._whole[number]

    def lend(self, number: int) -> Lent | HostArray:
        """A value for a run that may write over it; one that is outgrown is copied.  Whoever asks says what became of
        it: `gave`, or that it was taken back."""
        return self._copy(number) if number in self._outgrown else Lent(self._whole[number])

    def gave(self, number: int, lent: Lent, later: int) -> None:
        """A run made `later`, which was added, in the memory of what was lent to it."""
        self._outgrown[number] = _Outgrown(later, tuple(lent.undo), self._whole.pop(number).shape)
        self._earlier[later] = number

    def take(self, number: int) -> HostArray:
        """A value, which is not here any more; KeyError if it is not here."""
        array = self.get(number)
        if number in self._earlier:
            array = array.copy()  # its memory goes back to the one before
        self.drop(number)
        return array

    def drop(self, number: int) -> None:
        """Forget a value, if it is here; the one before it has its memory again if nothing came after."""
        earlier = self._earlier.pop(number, None)
        outgrown = self._outgrown.pop(number, None)
        if outgrown is not None:
            del self._earlier[outgrown.later]
        array = self._whole.pop(number, None)
        if earlier is None:
            return
        before = self._outgrown.pop(earlier)
        if outgrown is not None:
            self._outgrown[earlier] = _Outgrown(outgrown.later, (*before.undo, *outgrown.undo), before.shape)
            self._earlier[outgrown.later] = earlier
        else:
            assert array is not None, "a value that has the memory of another is here"
            take_back(array, before.undo)
            self._whole[earlier] = array.reshape(before.shape)

    def _copy(self, number: int) -> HostArray:
        outgrown = self._outgrown[number]
        array = self._copy(outgrown.later) if outgrown.later in self._outgrown else self._whole[outgrown.later].copy()
        take_back(array, outgrown.undo)
        return array.reshape(outgrown.shape)
