"""Blob sources: content by address from whoever has it, over a link, within the time that its bytes may take.

It does not know what the content is for, nor whom to ask next if one does not have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from wire.errors import NodeLost
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import INLINE_BYTES_MAX
from wire.transfer.content_exchange import BlobExchange

FETCH_S_MIN = 10.0  # a holder that is alive answers within a round trip; this is for one that is not
FETCH_BYTES_PER_S_MIN = 5_000_000  # slower than this and another holder is tried


class Holders:
    """`owner` is the coordinator's node id, who is meant by the holder ""; `dial` links to a node."""

    def __init__(
        self,
        endpoint: Endpoint,
        exchange: BlobExchange,
        owner: Callable[[], str],
        dial: Callable[[str, Sequence[str]], Awaitable[Link]],
    ) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._owner = owner
        self._dial = dial

    async def fetch(
        self, holder: str, blob: bytes, size_bytes: int, addresses: Sequence[str]
    ) -> tuple[memoryview, bool]:
        """The content, and whether it came through shared memory; a MeshError where it did not come."""
        node = holder or self._owner()
        time_s = FETCH_S_MIN + size_bytes / FETCH_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(time_s):
                link = self._endpoint.links.get(node)
                if link is None and addresses:
                    link = await self._dial(node, addresses)
                if link is None:
                    raise NodeLost("no link to this holder", node=node)
                data = await self._exchange.fetch(link, blob, size_bytes)
        except TimeoutError:
            raise NodeLost(f"the holder did not send the blob within {time_s:.0f} s", node=node) from None
        return data, link.same_host and size_bytes > INLINE_BYTES_MAX
