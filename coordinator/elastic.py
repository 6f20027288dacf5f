"""Elastic programs: what a session computes with so many workers.

A program of ranks has their number in it, so with another number of workers another one is needed, with the same state
and with its own inputs of the same step.  Whoever opened the session makes both when they are wanted, and all programs
carry the same tensors under the same names.  It does not know what a program is about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from .program import Program

Arrays = Mapping[str, NDArray[Any]]


class Feeds(Protocol):
    """The inputs of one step, for any number of workers."""

    @property
    def nbytes(self) -> int:
        """How much is held for them."""
        ...

    def of(self, workers: int) -> Arrays: ...


Given = Arrays | Feeds


@dataclass(frozen=True, slots=True)
class Elastic:
    """Programs by the number of workers, up to `most`; `make` makes one."""

    most: int
    make: Callable[[int], Awaitable[Program]]
    _made: dict[int, Program] = field(default_factory=dict)

    def numbers(self, workers: int) -> Iterator[int]:
        """How many of so many workers to try, the most first."""
        yield from range(min(workers, self.most), 0, -1)

    async def program(self, workers: int) -> Program:
        """What so many compute."""
        if workers not in self._made:
            self._made[workers] = await self.make(workers)
        return self._made[workers]


def arrays_of(given: Given, workers: int) -> Arrays:
    """A step's inputs for so many workers."""
    return given if isinstance(given, Mapping) else given.of(workers)


def bytes_of(given: Given) -> int:
    """What is held of a step's inputs."""
    return sum(array.nbytes for array in given.values()) if isinstance(given, Mapping) else given.nbytes
