"""Slices: which dispatches are submitted together, so that a submission takes about `SLICE_S`.  Pure.

A device that shows a screen draws it between two submissions, and a run can be stopped there.  What a dispatch takes is
learned from earlier submissions.  A single dispatch is never divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
SLICE_S = 0.03
UNKNOWN_S = SLICE_S / 4  # of a dispatch that was never measured
_LEAST_S = 1e-7


class Costs:
    """The seconds of each dispatch of a program, as far as they are known."""

    __slots__ = ("seconds", "total_s")

    def __init__(self, count: int) -> None:
        self.seconds = [UNKNOWN_S] * count
        self.total_s = sum(self.seconds)

    def scale(self, start: int, stop: int, factor: float) -> None:
        """The dispatches from `start` to before `stop` took `factor` times what was expected."""
        took = [seconds * factor for seconds in self.seconds[start:stop]]
        self.seconds[start:stop] = [seconds if seconds > _LEAST_S else _LEAST_S for seconds in took]
        self.total_s = sum(self.seconds)


@dataclass(eq=False, slots=True)
class Pass:
    """Dispatches in a row, checked and ready to encode."""

    steps: Sequence[Any]  # as device.py has them
    calls: Sequence[tuple[Any, Any, int, int, int]]  # of each: pipeline and bind group, for the C library, and the grid
    costs: Costs
    fresh: bool = True  # it was never encoded


@dataclass(frozen=True, slots=True)
class Piece:
    """The dispatches of a pass from `start` to before `stop`."""

    whole: Pass
    start: int
    stop: int

    @property
    def expected_s(self) -> float:
        return sum(self.whole.costs.seconds[self.start : self.stop])


def sliced(commands: Iterable[Pass | T]) -> list[list[Piece | T]]:
    """The commands of each slice in order; at least one slice.  What is no pass stays in its place, and takes no
    time."""
    slices: list[list[Piece | T]] = [[]]
    room_s = SLICE_S
    for command in commands:
        if not isinstance(command, Pass):
            slices[-1].append(command)
            continue
        costs, start, count = command.costs, 0, len(command.calls)
        if not count:
            continue
        if costs.total_s > room_s:
            for at, seconds in enumerate(costs.seconds):
                if seconds > room_s and (at > start or slices[-1]):
                    if at > start:
                        slices[-1].append(Piece(command, start, at))
                    slices.append([])
                    start, room_s = at, SLICE_S
                room_s -= seconds
        else:
            room_s -= costs.total_s
        slices[-1].append(Piece(command, start, count))
    return slices


def learn(commands: Iterable[object], took_s: float) -> None:
    """A submission of these took so long.  Where a piece is in it more than once, each took its share."""
    pieces = [command for command in commands if isinstance(command, Piece)]
    expected_s = sum(piece.expected_s for piece in pieces)
    distinct = {(id(piece.whole.costs), piece.start, piece.stop): piece for piece in pieces}
    for piece in distinct.values():
        piece.whole.costs.scale(piece.start, piece.stop, took_s / expected_s)
