"""Two nodes with a link, of which one has contents."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from wire.bounds import UNTAKEN_FILES
from wire.errors import MeshError
from wire.ir.codec import hash_bytes
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import BlobStream, FetchBlob, Message
from wire.system.shared_memory import SharedDir
from wire.system.shared_memory_handoff import HandoffFiles
from wire.transfer.content_exchange import BlobExchange

from .links import Recorder, node


class Exchanging(Recorder):
    """A node that gives what it has, and notes the buffers in which content arrives."""

    def __init__(self, *contents: bytes, shared: SharedDir | None = None) -> None:
        super().__init__()
        held = {hash_bytes(content): memoryview(content) for content in contents}
        self.exchange = BlobExchange(shared, held.get)
        self.buffers: list[PacedBuffer] = []

    async def on_request(self, link: Link, body: Message) -> Message:
        return await self.exchange.serve(link, body) if isinstance(body, FetchBlob) else body

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        assert isinstance(header, BlobStream)
        buffer = self.exchange.open_stream(link, header, size_bytes)
        if isinstance(buffer, PacedBuffer):
            self.buffers.append(buffer)
        return buffer

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        assert isinstance(header, BlobStream)
        self.exchange.stream_done(link, header, buffer, error)


@contextlib.asynccontextmanager
async def linked(
    *contents: bytes, folder: Path | None = None, untaken_bytes_max: int = UNTAKEN_FILES.most
) -> AsyncIterator[tuple[Link, Exchanging]]:
    """A link to a node that has these contents, and the end that asks; they share memory in a folder."""
    dirs = [SharedDir.create(folder) if folder else None for _ in range(2)]
    paths = [str(each.path) if each else "" for each in dirs]
    asks = Exchanging(shared=dirs[0])
    here = Endpoint(node("asks", shared_memory=paths[0]), asks)
    there = Endpoint(node("has", shared_memory=paths[1]), Exchanging(*contents, shared=dirs[1]))
    there.handed = HandoffFiles(untaken_bytes_max=untaken_bytes_max)
    try:
        yield await here.dial("127.0.0.1", await there.listen("127.0.0.1", 0, 0)), asks
    finally:
        await here.close()
        await there.close()
        for each in dirs:
            if each is not None:
                each.close()
