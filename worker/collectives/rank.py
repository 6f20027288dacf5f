"""One rank of a gang as an engine sees it: it starts the collectives of a part, by op and attributes.

It turns the attributes into groups of the gang's grid, and into calls of these groups.  To add a collective op, add a
row to `_OPERATIONS`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from wire.errors import InputError, MeshError
from wire.ir.grids import Axes, Sizes, groups
from wire.ir.types import Attrs, HostArray, TensorType

from .algorithms import shares
from .channels import Channels
from .group import Group
from .progress import Pending, Progress
from .ring_buffer import BRIDGED_SLEEP_S_MIN, SPINS_MIN, SpinWait


class RankCollectives:
    """The Collectives (worker/engine/protocol.py) of rank `rank` of a grid.  `channels` has the other ranks by number.

    `bytes_per_s` is what each rank can send, if that differs.  Parts that run one after the other may share a
    `progress`.  One step at a time: `begin`, then what the engine starts, then `end` or `fail`.
    """

    def __init__(
        self,
        channels: Channels,
        axes: Axes,
        sizes: Sizes,
        rank: int,
        bytes_per_s: Sequence[float] = (),
        progress: Progress | None = None,
        oversubscribed: bool = False,
    ) -> None:
        self.oversubscribed = oversubscribed
        self._channels = channels
        self._axes = axes
        self._sizes = sizes
        self._rank = rank
        self._bytes_per_s = bytes_per_s
        self._groups: dict[Axes, Group] = {}
        self._progress = progress or Progress()
        bridged = any(channel.bridged for channel in channels.peers.values())
        self._background_wait = SpinWait(0, BRIDGED_SLEEP_S_MIN) if bridged else SpinWait(SPINS_MIN)
        self._foreground_wait = self._background_wait if bridged else SpinWait()
        self._failed = False
        self._error: Exception | None = None

    def begin(self, tag: int, stopped: Callable[[], bool]) -> None:
        """Begin a step.  Tags grow, from 1.  Operations fail with Cancelled soon after `stopped()`."""
        self._failed, self._error = False, None
        self._progress.waited_s = 0.0
        self._channels.begin(tag, lambda: self._failed or stopped())

    @property
    def costs(self) -> tuple[float, float, int]:
        """What this step has cost so far: the seconds for which the part waited for collectives, the part of them in
        which it copied what it sent, and the bytes that it sent."""
        return self._progress.waited_s, self._channels.copy_s, self._channels.sent_bytes

    def allocate(self, kind: TensorType) -> HostArray | None:
        """Implement Collectives.allocate."""
        return self._channels.arena.allocate(kind) if self._channels.arena is not None else None

    def mapped(self) -> list[tuple[int, str]]:
        """The ranks whose shared arenas are mapped here, and the names of the arenas' files."""
        peers = self._channels.peers.items()
        return [(rank, name) for rank, channel in peers if (name := channel.reader.file_name)]

    def start(self, op: str, attrs: Attrs, operand: HostArray | None, meanwhile: bool = True) -> Pending:
        """Implement Collectives.start."""

        def work(waited_for: bool) -> HostArray:
            if self._error is not None:
                raise self._error
            self._channels.spin_wait = self._foreground_wait if waited_for else self._background_wait
            copy_s = self._channels.copy_s
            try:
                return _OPERATIONS[op](self._group(attrs["axes"]), attrs, operand)
            except Exception as error:  # also a MemoryError: the other ranks wait for what was not sent
                if isinstance(error, MeshError):
                    error.op = error.op or op
                self._error = error
                raise
            finally:
                if not waited_for:
                    self._channels.copy_s = copy_s  # the part computed meanwhile

        return self._progress.start(work, meanwhile)

    def end(self) -> None:
        """The part is computed.  Perform the operations that it started and did not need, since other ranks may need
        them."""
        self._progress.finish()
        if self._error is not None:
            raise self._error
        self._channels.end()

    def fail(self, error: MeshError) -> None:
        """The part failed: stop its operations, and send all other ranks the error."""
        self._failed = True
        self._progress.drop()
        self._channels.fail(error)
        self._channels.end()
        self._error = None  # its traceback leads back here

    def _group(self, axes: Axes) -> Group:
        group = self._groups.get(axes)
        if group is None:
            members = next(ranks for ranks in groups(self._axes, self._sizes, axes) if self._rank in ranks)
            number = zlib.crc32("+".join(axes).encode())
            group = Group(self._channels, members, members.index(self._rank), number)
            if self._bytes_per_s:
                group.shares = shares([self._bytes_per_s[member] for member in members])
            self._groups[axes] = group
        return group


def _checked(operand: HostArray | None) -> HostArray:
    if operand is None:
        raise InputError("a collective without an operand")
    return operand


_OPERATIONS: dict[str, Callable[[Group, Attrs, HostArray | None], HostArray]] = {
    "all_reduce": lambda group, attrs, x: group.all_reduce(_checked(x), attrs["reduction"]),
    "all_gather": lambda group, attrs, x: group.all_gather(_checked(x), attrs["axis"]),
    "reduce_scatter": lambda group, attrs, x: group.reduce_scatter(_checked(x), attrs["axis"], attrs["reduction"]),
    "all_to_all": lambda group, attrs, x: group.all_to_all(_checked(x), attrs["split_axis"], attrs["concat_axis"]),
    "permute": lambda group, attrs, x: group.permute(
        _checked(x), tuple(zip(attrs["pairs"][::2], attrs["pairs"][1::2], strict=True))
    ),
    "broadcast_from": lambda group, attrs, x: group.broadcast_from(_checked(x), attrs["root"]),
    "axis_index": lambda group, attrs, x: np.asarray(group.rank, np.int32),
}
