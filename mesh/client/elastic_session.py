"""Elastic session: one state, and a step function of it for every number of workers, and for unlike shares of what they
do.

Where a program has its workers in it, as that of ranks, a session of it goes on with another one when workers come or
go, or become slower: of the same state, under the same names.  It is traced when it is first wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError
from wire.policy.batch_shares import Portions

from ..core.backend import Work
from ..functions.step_trace import Stepping
from ..util.user_code import called


class Elastic:
    """`make(portions)` traces the step for them, for up to `most` workers; the first is for `workers` workers.

    A batch can be cut into `pieces` at most, 0 where workers have even shares of it whatever their speed is.  With
    `everybody` no worker is left out because it is slow.
    """

    def __init__(
        self,
        make: Callable[[Portions], Stepping],
        workers: int,
        most: int,
        pieces: int = 0,
        everybody: bool = False,
    ) -> None:
        self.most = most
        self.pieces, self.everybody = pieces, everybody
        self.first = make(workers)
        self._make = make
        self._made: dict[Portions, Stepping] = {workers: self.first}
        self._making = threading.Lock()

    def of(self, portions: Portions) -> Stepping:
        """The step of these portions; it raises InputError if its state is not that of the first step."""
        if portions not in self._made:  # looked at first: steps wait for this, and must not for one that is being made
            with self._making:
                if portions not in self._made:
                    self._made[portions] = self._checked(called(self._make, portions))
        return self._made[portions]

    def work(self, portions: Portions) -> Work:
        """The work of these portions, for a backend."""
        return self.of(portions).work

    def feeds(self, args: Callable[[Portions], Sequence[Any]], nbytes: int) -> Feeds:
        """The arguments of a step, which `args` gives for any portions; about so much is held for them."""
        return Feeds(self, args, nbytes)

    def _checked(self, stepping: Stepping) -> Stepping:
        if (stepping.carries, stepping.returned_count) != (self.first.carries, self.first.returned_count):
            raise InputError("with another number of workers a step has another state")
        return stepping


@dataclass(slots=True)
class Feeds:
    """The inputs of one step, for any portions; those that were asked for last are kept."""

    elastic: Elastic
    args: Callable[[Portions], Sequence[Any]]
    nbytes: int
    _last: tuple[Portions, Mapping[str, NDArray[Any]]] | None = field(default=None, init=False)

    def of(self, portions: Portions) -> Mapping[str, NDArray[Any]]:
        if self._last is None or self._last[0] != portions:
            self._last = portions, self.elastic.of(portions).bind(self.args(portions))
        return self._last[1]
