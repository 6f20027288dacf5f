"""Client contents: which content a client may fetch from the coordinator, and which it need not send again.

Content is requested by its address, so a client that knows an address could ask for the content of others.  So a client
gets what belongs to its own jobs and sessions, and is asked to send what it has not sent before, even if another has:
all else is not there for it.  An admin, who may read the results of all clients, gets those.  Workers may fetch all
that the coordinator holds, since plans name it to them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from wire.bounds import CONTENTS_SENT
from wire.errors import BlobMissing
from wire.link.link import Link
from wire.protocol.messages import FetchBlob, Message
from wire.roles import ADMIN, ASKING, may, member_id

from ..coordinator import Coordinator

SENT_MAX = CONTENTS_SENT.most
Find = Callable[[bytes, int], Awaitable[memoryview | None]]


class ClientContents:
    """The contents of clients of one coordinator; it answers FetchBlob in that one's place."""

    def __init__(self, coordinator: Coordinator, sent_max: int = SENT_MAX) -> None:
        self._coordinator, self._sent_max = coordinator, sent_max
        self._held: dict[str, Counter[bytes]] = {}  # by owner
        self._sent: OrderedDict[tuple[str, bytes], None] = OrderedDict()  # the most recent last
        self._serve = coordinator.requests[FetchBlob]
        coordinator.requests[FetchBlob] = self._fetched

    def hold(self, owner: str, address: bytes, array: NDArray[Any]) -> None:
        """Hold content for a member, until `release`."""
        self._coordinator.hold(address, array)
        self._held.setdefault(owner, Counter())[address] += 1

    def release(self, owner: str, addresses: Iterable[bytes]) -> None:
        """Undo one `hold` each."""
        mine = self._held.get(owner, Counter[bytes]())
        for address in addresses:
            mine[address] -= 1
            if mine[address] <= 0:
                del mine[address]
            self._coordinator.release(address)
        if not mine:
            self._held.pop(owner, None)

    def sent(self, owner: str, addresses: Iterable[bytes]) -> None:
        """A member has sent content, so that it need not do so again while the coordinator has it."""
        for address in addresses:
            self._sent[owner, address] = None
            self._sent.move_to_end((owner, address))
        while len(self._sent) > self._sent_max:
            self._sent.popitem(last=False)

    def keep(self, find: Find) -> None:
        """Have content that is found there not sent again."""

        async def kept(link: Link, address: bytes, size_bytes: int) -> memoryview | None:
            if link.peer.role in ASKING and (member_id(link.peer.node_id), address) not in self._sent:
                return None
            return await find(address, size_bytes)

        self._coordinator.blobs.kept = kept

    async def _fetched(self, link: Link, body: FetchBlob) -> Message:
        role, mine = link.peer.role, self._held.get(member_id(link.peer.node_id), ())
        if role in ASKING and not may(role, ADMIN) and body.blob not in mine:
            raise BlobMissing(f"blob {body.blob.hex()[:16]} is not held here")
        return await self._serve(link, body)
