"""Idle tuning: when a worker that has nothing to do measures its kernels, and which.  Pure.

It begins once there was no work for `after_s`, and ends at once when work comes.  A class of shapes is measured once in
a worker's life, unless work ended it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Measure:
    """Begin with these classes, on the device of that selection."""

    selection: str
    shape_classes: tuple[str, ...]


class Look(Enum):
    """What to do where there is nothing to begin."""

    GO_ON = auto()
    STOP = auto()


@dataclass(slots=True)
class IdleTuning:
    """`waiting` has the classes that parts have and nobody has measured, by the selection of their device, and `known`
    those that were met."""

    after_s: float  # 0: never
    waiting: dict[str, list[str]] = field(default_factory=dict)
    known: set[tuple[str, str]] = field(default_factory=set)
    measuring: str = ""  # the selection of the device
    idle_since_s: float | None = None

    def met(self, selection: str, shape_classes: Iterable[str]) -> None:
        """A part of that device has these classes."""
        for shape_class in shape_classes:
            if (selection, shape_class) not in self.known:
                self.known.add((selection, shape_class))
                self.waiting.setdefault(selection, []).append(shape_class)

    def look(self, busy: bool, now: float) -> Measure | Look:
        """What to do now; `busy` says whether there is work, or the worker is paused."""
        if busy:
            self.idle_since_s = None
            return Look.STOP if self.measuring else Look.GO_ON
        if self.idle_since_s is None:
            self.idle_since_s = now
        rested = self.after_s > 0 and now - self.idle_since_s >= self.after_s
        if self.measuring or not rested or not self.waiting:
            return Look.GO_ON
        self.measuring, classes = next(iter(self.waiting.items()))
        return Measure(self.measuring, tuple(classes))

    def class_done(self, shape_class: str) -> None:
        """A class is done with, whatever came of it."""
        classes = self.waiting.get(self.measuring, [])
        if shape_class in classes:
            classes.remove(shape_class)

    def ended(self, failed: bool = False) -> None:
        """Nothing is measured any more: all was, or work came.  What `failed` is not tried again."""
        if failed or not self.waiting.get(self.measuring):
            self.waiting.pop(self.measuring, None)
        self.measuring = ""
