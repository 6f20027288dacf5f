"""Two nodes in one process that link, ask and send; what came of it, whatever was made to fail meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
from dataclasses import dataclass, field

from wire.errors import MeshError
from wire.joining.credentials import Credentials
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import BlobStream, TailLog

from ..machines.links import Recorder, node

ENDS_S = 120.0  # real seconds; what a node waits for at most before a link stands is far less
CONTENT = bytes(range(256)) * 1200  # in several frames


@dataclass
class Talk:
    """Who listens, who dials, and what came of it."""

    host: str = "127.0.0.1"  # as the dialling one calls it
    cards: tuple[Credentials, Credentials] | None = None  # of members, who talk over TLS
    errors: list[MeshError] = field(default_factory=list)
    answered: bool = False
    arrived: bytes = b""

    async def run(self) -> None:
        server, client = Recorder(), Recorder()
        a, b = self._endpoint("a", server, 0), self._endpoint("b", client, 1)
        try:
            port = await a.listen("127.0.0.1", 0)
            link = await b.dial(self.host, port, timeout_s=ENDS_S / 2)
            self.answered = await link.request(TailLog(7), timeout_s=ENDS_S / 4) == TailLog(7)
            sending = asyncio.ensure_future(link.send_stream(BlobStream(bytes(32), 1), memoryview(CONTENT)))
            self.arrived = await self.stream_of(server)
            await sending
        except MeshError as error:
            self.errors.append(error)
        finally:
            await b.close()
            await a.close()

    async def stream_of(self, server: Recorder) -> bytes:
        """What the other side got; nothing where its link ended first, and then it says so."""
        stream = asyncio.ensure_future(server.streams.get())
        ended = asyncio.ensure_future(server.unlinked.get())
        try:
            await asyncio.wait((stream, ended), return_when=asyncio.FIRST_COMPLETED)
            if not stream.done():
                assert ended.result()[1] is not None, "a link that ended in order, and what was sent did not arrive"
                self.errors.append(ended.result()[1])
                return b""
            _, buffer, error = stream.result()
            if error is not None:
                self.errors.append(error)
                return b""
            return bytes(buffer)
        finally:
            stream.cancel()
            ended.cancel()

    def _endpoint(self, name: str, handler: Recorder, which: int) -> Endpoint:
        if self.cards is None:
            return Endpoint(node(name), handler)
        card = self.cards[which]
        said = {"node_id": card.node_id, "role": card.member.role, "mesh": card.mesh}
        return Endpoint(node(name, **said), handler, credentials=card)

    @property
    def well(self) -> bool:
        return not self.errors and self.answered and self.arrived == CONTENT


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
