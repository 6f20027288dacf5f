"""Recent set: addresses, of which those that were named longest ago are forgotten where there are too many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet


class RecentSet(AbstractSet[bytes]):
    """A set of at most `most` addresses."""

    __slots__ = ("_items", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: dict[bytes, None] = {}  # the most recent last

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def update(self, items: Iterable[bytes]) -> None:
        """Add these, the most recent last."""
        for item in items:
            self._items.pop(item, None)
            self._items[item] = None
        while len(self._items) > self._most:
            del self._items[next(iter(self._items))]

    def difference_update(self, items: Iterable[bytes]) -> None:
        """Remove these, as far as they are there."""
        for item in items:
            self._items.pop(item, None)
