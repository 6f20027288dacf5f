"""One rank of a gang as an engine sees it: it starts the collectives of a part, by op and attributes.

It turns attributes into groups of the gang's grid and calls of these.  It does not know where mailboxes come from.  To
add a collective op, add a row to `_OPERATIONS`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError, MeshError
from wire.ir.grids import Axes, Sizes, groups
from wire.ir.types import Attrs, TensorType

from .algorithms import shares
from .channels import Wires
from .group import Group
from .progress import Pending, Progress
from .ring_buffer import CARRIED_SLEEP_S_MIN, SPINS_MIN, Patience

Array = NDArray[Any]


class Ranks:
    """Collectives (worker/engine/protocol.py) of rank `rank` of a grid; `wires` has the other ranks by number.
    `bytes_per_s` is what each rank can send, where that differs.  Parts that run one after the other may share a
    `progress`.

    `crowded` is as Collectives (worker/engine/protocol.py) has it.

    One step at a time: `begin`, what the engine starts, then `end` or `fail`.
    """

    def __init__(
        self,
        wires: Wires,
        axes: Axes,
        sizes: Sizes,
        rank: int,
        bytes_per_s: Sequence[float] = (),
        progress: Progress | None = None,
        crowded: bool = False,
    ) -> None:
        self.crowded = crowded
        self._wires = wires
        self._axes = axes
        self._sizes = sizes
        self._rank = rank
        self._bytes_per_s = bytes_per_s
        self._groups: dict[Axes, Group] = {}
        self._progress = progress or Progress()
        carried = any(wire.bridged for wire in wires.wires.values())
        self._polite = Patience(0, CARRIED_SLEEP_S_MIN) if carried else Patience(SPINS_MIN)
        self._eager = self._polite if carried else Patience()
        self._given_up = False
        self._error: MeshError | None = None

    def begin(self, tag: int, stopped: Callable[[], bool]) -> None:
        """A new step: tags grow, from 1; waits end soon after `stopped()`."""
        self._given_up, self._error = False, None
        self._progress.waited_s = 0.0
        self._wires.begin(tag, lambda: self._given_up or stopped())

    @property
    def costs(self) -> tuple[float, float, int]:
        """How long the part has waited in this step, for others or for what they send; for how much of that it copied
        what it sent itself; and how many bytes it sent."""
        return self._progress.waited_s, self._wires.packed_s, self._wires.sent_bytes

    def room(self, kind: TensorType) -> Array | None:
        """As Collectives.room (worker/engine/protocol.py) has it."""
        return self._wires.shelf.room(kind) if self._wires.shelf is not None else None

    def mapped(self) -> list[tuple[int, str]]:
        """The ranks of which a shelf is mapped here, and the files' names."""
        return [(rank, name) for rank, wire in self._wires.wires.items() if (name := wire.inbox.file_name)]

    def start(self, op: str, attrs: Attrs, operand: Array | None, meanwhile: bool = True) -> Pending:
        """As Collectives.start (worker/engine/protocol.py) has it."""

        def work(waited_for: bool) -> Array:
            if self._error is not None:
                raise self._error
            self._wires.patience = self._eager if waited_for else self._polite
            packed_s = self._wires.packed_s
            try:
                return _OPERATIONS[op](self._group(attrs["axes"]), attrs, operand)
            except MeshError as error:
                error.op = error.op or op
                self._error = error
                raise
            finally:
                if not waited_for:
                    self._wires.packed_s = packed_s  # the part computed meanwhile

        return self._progress.start(work, meanwhile)

    def end(self) -> None:
        """The part is computed: what it started and did not need is done as well, since others may."""
        self._progress.finish()
        if self._error is not None:
            raise self._error
        self._wires.end()

    def fail(self, error: MeshError) -> None:
        """The part failed: all others hear why, and nothing of it goes on."""
        self._given_up = True
        self._progress.drop()
        self._wires.fail(error)
        self._wires.end()
        self._error = None  # its traceback leads back here

    def _group(self, axes: Axes) -> Group:
        found = self._groups.get(axes)
        if found is None:
            members = next(each for each in groups(self._axes, self._sizes, axes) if self._rank in each)
            number = zlib.crc32("+".join(axes).encode())
            found = Group(self._wires, members, members.index(self._rank), number)
            if self._bytes_per_s:
                found.shares = shares([self._bytes_per_s[member] for member in members])
            self._groups[axes] = found
        return found


def _given(operand: Array | None) -> Array:
    if operand is None:
        raise InputError("a collective without an operand")
    return operand


_OPERATIONS: dict[str, Callable[[Group, Attrs, Array | None], Array]] = {
    "all_reduce": lambda group, attrs, x: group.all_reduce(_given(x), attrs["reduction"]),
    "all_gather": lambda group, attrs, x: group.all_gather(_given(x), attrs["axis"]),
    "reduce_scatter": lambda group, attrs, x: group.reduce_scatter(_given(x), attrs["axis"], attrs["reduction"]),
    "all_to_all": lambda group, attrs, x: group.all_to_all(_given(x), attrs["split_axis"], attrs["concat_axis"]),
    "permute": lambda group, attrs, x: group.permute(
        _given(x), tuple(zip(attrs["pairs"][::2], attrs["pairs"][1::2], strict=True))
    ),
    "broadcast_from": lambda group, attrs, x: group.broadcast_from(_given(x), attrs["root"]),
    "axis_index": lambda group, attrs, x: np.asarray(group.rank, np.int32),
}
