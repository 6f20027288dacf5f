"""Steps: the kernels of a program, and which of them make regions.

Kernels that follow each other and compute by slices, as attention does head by head, are a region: a task computes one
slice of all their tensors, one kernel after the other.  What only the region uses is never there as a whole: its slices
lie in scratch memory of the thread, and so in the second cache.  Kernels, their tasks and so the bits are the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wire.ir.types import TensorType

from ..compiler.memory import assign_slots

if TYPE_CHECKING:
    from .weights import Layout

ALIGNED = 64
CACHE_BYTES = 1 << 20  # about a core's second cache: slices fit into it, and what fits as a whole needs no region
STEPS_MAX = 64  # of a region
PER_THREAD = 4  # slices from which on it matters little that some threads compute one more


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel of a program: its function, the numbers of the values that it reads, and of the one that it makes.

    It can be computed in `slices`: its tasks and its result are so many equal parts, one behind the other, and so are
    the values `sliced` of those that it reads.
    """

    function: int
    words: tuple[int, ...]  # arguments behind the tensors' addresses
    reads: tuple[int, ...]
    result: int
    tasks: int
    scratch_bytes: int
    matrix: Layout | None = None  # in the value `place` of `reads`: the first word is followed by where it lies
    place: int = 0
    slices: int = 1
    sliced: frozenset[int] = frozenset()

    @property
    def arguments(self) -> int:
        """How many words its arguments are."""
        return len(self.reads) + 1 + len(self.words)


@dataclass(frozen=True, slots=True)
class Region:
    """Steps that follow each other, in so many slices.  Of each value that only they use, a slice lies at an offset in
    a memory of so many bytes.  A step that is in no region is one by itself, and has no such value."""

    steps: tuple[Step, ...]
    slices: int = 1
    offsets: Mapping[int, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def uses(self) -> tuple[int, ...]:
        """The values that it reads or makes, but for those in its own memory."""
        every = [value for step in self.steps for value in (*step.reads, step.result)]
        return tuple([value for value in dict.fromkeys(every) if value not in self.offsets])

    @property
    def ahead(self) -> int:
        """The bytes of scratch memory before its own: a thread's copy of a step's arguments."""
        return aligned(8 * max(step.arguments for step in self.steps)) if self.offsets else 0

    @property
    def scratch_bytes(self) -> int:
        """The bytes of scratch memory that a thread needs."""
        return self.ahead + self.bytes + max(step.scratch_bytes for step in self.steps)


def regions_of(
    steps: Sequence[Step], types: Mapping[int, TensorType], needed: Collection[int], threads: int
) -> list[Region]:
    """The steps in their order, in regions.  `needed` are the values that others use."""
    planner = _Planner(steps, types, frozenset(needed), threads)
    return list(planner.regions())


class _Planner:
    def __init__(
        self, steps: Sequence[Step], types: Mapping[int, TensorType], needed: frozenset[int], threads: int
    ) -> None:
        self.steps, self.types, self.needed, self.threads = steps, types, needed, threads
        self.last = {
            value: place for place, step in enumerate(steps) for value in step.reads
        }  # the step that reads a value last

    def regions(self) -> Iterator[Region]:
        first = 0
        while first < len(self.steps):
            stop, slices = first + 1, self.steps[first].slices
            while stop < min(len(self.steps), first + STEPS_MAX) and (joint := self.joint(first, stop, slices)):
                stop, slices = stop + 1, joint
            region = self.region(first, stop, slices)
            if region.offsets and sum(self.types[value].size_bytes for value in region.offsets) > CACHE_BYTES:
                yield region
            else:
                yield from (Region((step,)) for step in region.steps)
            first = stop

    def joint(self, first: int, stop: int, slices: int) -> int:
        """The slices in which the steps can be computed with the one at `stop`; 0 if not together, or not well."""
        step = self.steps[stop]
        made = {one.result for one in self.steps[first:stop]}
        slices = math.gcd(slices, step.slices)
        even = slices % self.threads == 0 or slices >= PER_THREAD * self.threads
        if slices == 1 or not even or not made.intersection(step.reads) <= step.sliced:
            return 0
        return slices if self.region(first, stop + 1, slices).bytes <= CACHE_BYTES else 0

    def region(self, first: int, stop: int, slices: int) -> Region:
        steps = tuple(self.steps[first:stop])
        own = [step.result for step in steps if step.result not in self.needed and self.last.get(step.result, 0) < stop]
        sizes = {value: aligned(self.types[value].size_bytes // slices) for value in own}
        slots, rooms = assign_slots([(*step.reads, step.result) for step in steps], sizes, ())
        starts = np.cumsum([0, *rooms]).tolist()
        return Region(steps, slices, {value: starts[slot] for value, slot in slots.items()}, starts[-1])


def aligned(size: int) -> int:
    return size + -size % ALIGNED
