"""KV pages: which page of a pool belongs to which texts, and which pages hold the beginnings of texts that were read.

A page has the keys and values of PAGE tokens.  A text takes pages as it grows.  A page whose tokens are all known is
published under a digest of these tokens and of all before them; a text that begins with the same tokens holds the same
page.  Nobody writes to a published page again, so nothing is ever copied.  Pages that nobody holds stay published until
they are needed: then the one that was used longest ago is forgotten.  Pure.

Kwon et al., 2023, "Efficient memory management for large language model serving with PagedAttention".
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

PAGE = 16  # tokens
NOBODYS = 0  # a page that is never written: what a table names where a text has no page


def pages_for(tokens: int) -> int:
    """How many pages hold so many tokens."""
    return -(-tokens // PAGE)


def prefix_keys(tokens: Sequence[int], before: bytes = b"") -> Iterator[bytes]:
    """The key of every whole page of `tokens`, where `before` is that of the page before them."""
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        page = np.asarray(tokens[start : start + PAGE], np.int64).tobytes()
        before = hashlib.blake2b(page, digest_size=32, key=before).digest()
        yield before


class KvPages:
    """The pages of one pool, of which the first one is nobody's."""

    def __init__(self, count: int) -> None:
        self.count = 1
        self._unused: list[int] = []  # the lowest last
        self._holders: dict[int, int] = {}  # how many texts hold a page
        self._idle: OrderedDict[int, None] = OrderedDict()  # published, held by nobody; used longest ago first
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self.grow(count)

    @property
    def held(self) -> int:
        """Pages that texts hold."""
        return len(self._holders)

    @property
    def unused(self) -> int:
        """Pages with nothing in them that anybody could want."""
        return len(self._unused)

    @property
    def idle(self) -> int:
        """Published pages that nobody holds."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """Pages that can be had."""
        return self.unused + self.idle

    def grow(self, count: int) -> None:
        """The pool has `count` pages now."""
        assert count >= self.count
        self._unused = [*range(count - 1, self.count - 1, -1), *self._unused]
        self.count = count

    def found(self, keys: Iterable[bytes]) -> list[int]:
        """The published pages of the first of these keys, up to one that is not there."""
        pages = []
        for key in keys:
            if key not in self._page_of:
                break
            pages.append(self._page_of[key])
        return pages

    def cost(self, found: Sequence[int]) -> int:
        """How many fewer pages can be had once these are held."""
        return sum(page in self._idle for page in found)

    def hold(self, pages: Sequence[int]) -> None:
        """Hold these published pages for another text."""
        for page in pages:
            self._idle.pop(page, None)
            self._holders[page] = self._holders.get(page, 0) + 1

    def take(self) -> int | None:
        """A page for one text alone; None if there is none."""
        if not self._unused and self._idle:
            page, _ = self._idle.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
            self._unused.append(page)
        if not self._unused:
            return None
        page = self._unused.pop()
        self._holders[page] = 1
        return page

    def publish(self, page: int, key: bytes) -> None:
        """A page that is held is written to its end; a page of the same tokens that is published already stays so."""
        assert self._holders[page] == 1 and page not in self._key_of
        if key not in self._page_of:
            self._page_of[key], self._key_of[page] = page, key

    def release(self, pages: Sequence[int]) -> None:
        """A text holds these no more.  Of a text's pages the last one is forgotten first: no other is of use then."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._unused.append(page)
