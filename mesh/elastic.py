"""Elastic: one state, and a step function of it for every number of workers.

Where a program has its number of workers in it, as that of ranks, a session of it goes on with another one when workers
come or go: of the same state, under the same names.  It is traced when it is first wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError

from .backend import Work
from .stepping import Stepping


class Elastic:
    """`make(workers)` traces the step for so many, up to `most`; the first is for `workers`."""

    def __init__(self, make: Callable[[int], Stepping], workers: int, most: int) -> None:
        self.most = most
        self.first = make(workers)
        self._make = make
        self._made = {workers: self.first}
        self._making = threading.Lock()

    def of(self, workers: int) -> Stepping:
        """The step for so many workers; InputError where its state is not that of the first."""
        with self._making:
            if workers not in self._made:
                self._made[workers] = self._checked(self._make(workers))
            return self._made[workers]

    def work(self, workers: int) -> Work:
        """The same for a backend."""
        return self.of(workers).work

    def feeds(self, args: Callable[[int], Sequence[Any]], nbytes: int) -> Feeds:
        """The arguments of a step, which `args` gives for any number of workers; about so much is held for them."""
        return Feeds(self, args, nbytes)

    def _checked(self, made: Stepping) -> Stepping:
        if (made.carries, made.told) != (self.first.carries, self.first.told):
            raise InputError("with another number of workers a step has another state")
        return made


@dataclass(slots=True)
class Feeds:
    """The inputs of one step, for any number of workers; those that were asked for last are kept."""

    elastic: Elastic
    args: Callable[[int], Sequence[Any]]
    nbytes: int
    _last: tuple[int, Mapping[str, NDArray[Any]]] | None = field(default=None, init=False)

    def of(self, workers: int) -> Mapping[str, NDArray[Any]]:
        if self._last is None or self._last[0] != workers:
            self._last = workers, self.elastic.of(workers).bind(self.args(workers))
        return self._last[1]
