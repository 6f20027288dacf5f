"""LRU cache: values by key, of which those that were asked for last are kept.

It holds for all threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Latest(Generic[Key, Value]):
    """A cache with bounds on the number of its values and on their bytes; the newest is kept whatever its size."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.RLock()  # what is freed within may ask for something

    def __len__(self) -> int:
        return len(self._kept)

    def items(self) -> list[tuple[Key, Value]]:
        """All that is kept, the one asked for last at the end."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._kept.items()]

    def get(self, key: Key) -> Value | None:
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            return entry[0]

    def keep(self, key: Key, value: Value, size_bytes: int) -> Value:
        """The value of this key from now on: the one that is kept already, if another thread was quicker."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value, size_bytes
                self._bytes += size_bytes
            self._kept.move_to_end(key)
            present, _ = self._kept[key]
            while len(self._kept) > 1 and (len(self._kept) > self._count_max or self._bytes > self._bytes_max):
                _, (_, freed_bytes) = self._kept.popitem(last=False)
                self._bytes -= freed_bytes
        return present
