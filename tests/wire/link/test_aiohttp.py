"""What of aiohttp is used that it does not document: that it is there, and that pyproject.toml bounds the versions.

With the newest aiohttp that pip can install: `script/test --newest`.
"""

from __future__ import annotations

import asyncio
import re
import tomllib

import pytest
from support.source import ROOT

from wire.errors import ConnectFailed
from wire.limits import DEFAULT
from wire.link.endpoint import Socket
from wire.link.websocket_carrier import WebSockets

# aiohttp's own fields: of a WebSocket the queue of what was read, and of the queue the messages nobody took.
UNDOCUMENTED = {"_reader", "_buffer"}
OF_ASYNCIO = {"_asyncio_future_blocking"}


def test_versions_of_aiohttp_are_bounded_while_fields_are_read_that_it_does_not_document() -> None:
    source = (ROOT / "wire/link/websocket_carrier.py").read_text()
    assert set(re.findall(r"(?<!self)\.(_[a-z]\w*)", source)) == UNDOCUMENTED | OF_ASYNCIO, "bound or unbound anew"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (row,) = [row for row in project["dependencies"] if row.startswith("aiohttp")]
    bounds = re.fullmatch(r"aiohttp>=(\d+)\.(\d+)[.\d]*,<(\d+)\.(\d+)", row)
    assert bounds is not None, row
    least, below = (tuple(map(int, bounds.groups()[at : at + 2])) for at in (0, 2))
    assert below == (least[0], least[1] + 1), "a minor version at a time"


async def test_both_ends_of_a_websocket_move_their_messages_past_aiohttp() -> None:
    accepted: asyncio.Queue[Socket] = asyncio.Queue()

    async def accept(socket: Socket) -> None:
        accepted.put_nowait(socket)
        socket.settled()
        while (frame := await socket.receive()) is not None:
            await socket.send(frame[::-1])

    server, client = WebSockets(DEFAULT), WebSockets(DEFAULT)
    try:
        address, port = await server.listen("127.0.0.1", 0, 0, accept)
        socket = await client.connect(address, port)
        for size in (1, 200, 1 << 17):
            await socket.send(bytes(size - 1) + b"x")
            assert await socket.receive() == b"x" + bytes(size - 1)
        for end in (socket, await accepted.get()):
            assert end._binary is not None and not end._binary.handed_over  # type: ignore[attr-defined]
            reader = end._websocket._reader  # type: ignore[attr-defined]
            assert not reader._buffer and reader.exception() is None, "aiohttp has read nothing of it"
        await socket.close()
    finally:
        await client.close()
        await server.close()


async def test_what_was_closed_dials_nobody_and_opens_no_session() -> None:
    server, client, unused = WebSockets(DEFAULT), WebSockets(DEFAULT), WebSockets(DEFAULT)
    try:
        address, port = await server.listen("127.0.0.1", 0, 0, lambda socket: socket.close())
        await (await client.connect(address, port)).close()
        for closed in (client, unused):
            await closed.close()
            with pytest.raises(ConnectFailed, match="closed its links"):
                await closed.connect(address, port)
        assert unused._session is None, "nobody would close it"
    finally:
        await server.close()
