"""Tensors on the device, of which several may live in one buffer: an update writes over the tensor that it updates.

A holder of the tensor before the update still has it: what was written over is remembered on the device, and put back
into a copy once a reader needs that tensor, or in place if no holder of a later one is left (Baker, 1991, "Shallow
binding makes functional arrays fast").  So an update in place never changes a result, and needs no proof that nobody
reads the old tensor; it costs a copy only where somebody does, or where what is remembered, as by a loop over updates,
would take more memory than that copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from .device import Copy, Device, Mark, Memory


@dataclass(frozen=True, slots=True)
class Undo:
    """What puts back into a buffer what an update wrote over, which takes `size_bytes`.  At `mark`, that is saved; if
    the mark was dropped, the update was, too."""

    put_back: Callable[[Memory], None]
    mark: Mark
    size_bytes: int


class _Buffer:
    """Memory, and what was written over in it, of which the values that lie there have seen `first` and more."""

    __slots__ = ("__weakref__", "first", "latest", "memory", "owner", "undo", "values")

    def __init__(self, memory: Memory, owner: Device) -> None:
        self.memory, self.owner = memory, owner
        self.undo: list[Undo] = []
        self.first = 0
        self.values: weakref.WeakSet[Value] = weakref.WeakSet()
        weakref.finalize(self, owner.give, memory).atexit = False


class Value:
    """A tensor on the device, between two steps or two runs.  Its buffer goes back to the pool when nobody holds the
    value, or another one that lies there."""

    __slots__ = ("__weakref__", "_buffer", "_seen")

    def __init__(self, memory: Memory, owner: Device) -> None:
        self._lies_in(_Buffer(memory, owner), 0)

    def _lies_in(self, buffer: _Buffer, seen: int) -> None:
        self._buffer, self._seen = buffer, seen
        buffer.values.add(self)

    @property
    def outgrown(self) -> bool:
        """Whether its buffer has a later value."""
        return self._seen < self._buffer.first + len(self._buffer.undo)

    @property
    def size_bytes(self) -> int:
        """The device memory that it takes; 0 if a later value has it."""
        return self._buffer.memory.size_bytes if self._is_last else 0

    @property
    def memory(self) -> Memory:
        """The memory of the value.  One that is outgrown comes back first: the device copies it, unless it is the last.

        OutOfMemory if there is no room for the copy.
        """
        if self.outgrown:
            self._come_back()
        return self._buffer.memory

    def updated(self, undo: Undo) -> Value:
        """The value that lies there after an update that is recorded next.

        OutOfMemory if there is no room for copies of earlier values.
        """
        assert not self.outgrown, "its memory was asked for"
        buffer = self._buffer
        if sum(one.size_bytes for one in (*buffer.undo, undo)) > buffer.memory.size_bytes:
            self._leave_alone()
        buffer.undo.append(undo)
        later = Value.__new__(Value)
        later._lies_in(buffer, buffer.first + len(buffer.undo))
        oldest = min(value._seen for value in buffer.values)
        del buffer.undo[: oldest - buffer.first]
        buffer.first = oldest
        return later

    def _leave_alone(self) -> None:
        """Give the earlier values that lie here buffers of their own."""
        for value in list(self._buffer.values):
            if value.outgrown:
                value._come_back()

    @property
    def _is_last(self) -> bool:
        """Whether nobody holds a later value of the same buffer."""
        return not any(value._seen > self._seen for value in self._buffer.values)

    def _come_back(self) -> None:
        """Have the value again, where it lies if it is the last one: what brings earlier ones back is still there.  It
        is submitted at once: what is recorded may be dropped."""
        buffer, device, last = self._buffer, self._buffer.owner, self._is_last
        undo = [one for one in buffer.undo[self._seen - buffer.first :] if not one.mark.dropped]
        if last:
            home = buffer
        else:
            home = _Buffer(device.take(buffer.memory.size_bytes), device)
            device.record([Copy(buffer.memory, 0, home.memory, 0, buffer.memory.size_bytes)])
        for one in reversed(undo):
            one.put_back(home.memory)
        device.flush()
        if last:
            del buffer.undo[self._seen - buffer.first :]
        else:
            buffer.values.discard(self)
            self._lies_in(home, 0)
