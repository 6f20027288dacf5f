"""Bits that flip on the way, over TLS: the link ends before the record they are in is believed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
from support.machines.links import Recorder, node
from support.processes.fault_proxy import DOWN, UP, FaultProxy
from support.tls import MESH, authority, credentials

from wire.errors import MeshError, NodeLost
from wire.joining.credentials import Credentials
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import BlobStream, Done, Message

WITHIN_S = 120.0
CONTROL, BULK = 0, 1
DATA = np.random.default_rng(0).bytes(600_000)


def endpoint(name: str, card: Credentials) -> Endpoint:
    said = node(name, node_id=card.node_id, mesh=MESH, role=card.member.role)
    return Endpoint(said, Recorder(), credentials=card)


async def arrived(receiver: Endpoint) -> tuple[Message, memoryview, MeshError | None]:
    """The stream that comes next, or NodeLost where the link ends before it began."""
    assert isinstance(receiver.handler, Recorder)
    stream = asyncio.ensure_future(receiver.handler.streams.get())
    ended = asyncio.ensure_future(receiver.handler.unlinked.get())
    await asyncio.wait((stream, ended), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not stream.done():
        stream.cancel()
        raise NodeLost("the link ended")
    return stream.result()


async def session(folder: Path, proxy_fields: dict[tuple[str, int], int], bit: int) -> tuple[str, dict[str, int]]:
    """Link, ask, and stream both ways with a bit flipped; what became of it, and the bytes moved by way."""
    by = authority()
    here, there = (
        endpoint("here", credentials(folder / "here", by)),
        endpoint("there", credentials(folder / "there", by)),
    )
    port = await there.listen(port=0)
    with FaultProxy(("127.0.0.1", port)) as proxy:
        for (way, connection), place in proxy_fields.items():
            proxy.change(way, connection, flip_at=place, flip_mask=1 << bit)
        try:
            link = await here.dial(proxy.host, proxy.port)
            back = await there.handler.linked.get()  # type: ignore[attr-defined]
            for sender, receiver in ((link, there), (back, here)):
                assert await sender.request(Done()) == Done()
                await sender.send_stream(BlobStream(bytes(32), 1), memoryview(DATA))
                _, buffer, error = await arrived(receiver)
                if error is not None:
                    raise error
                assert bytes(buffer) == DATA, "a wrong byte was taken for a right one"
            became = "right"
        except MeshError as error:
            became = error.code
        finally:
            await here.close()
            await there.close()
        moved = {
            f"{way} {each}": proxy.passed(way, each) for way in (UP, DOWN) for each in range(len(proxy.connections))
        }
    return became, moved


@pytest.mark.parametrize("connection", [CONTROL, BULK])
@pytest.mark.parametrize("way", [UP, DOWN])
async def test_a_flipped_bit_anywhere_ends_the_link_and_is_never_believed(
    tmp_path: Path, way: str, connection: int
) -> None:
    async with asyncio.timeout(WITHIN_S):
        became, moved = await session(tmp_path / "good", {}, 0)
    assert became == "right"
    total = moved[f"{way} {connection}"]
    rng = random.Random(f"{way} {connection}")
    for number in range(8):
        place = rng.randrange(total - 300)  # the last bytes are goodbyes, which nobody misses
        async with asyncio.timeout(WITHIN_S):
            became, moved = await session(tmp_path / str(number), {(way, connection): place}, rng.randrange(8))
        ended = became in ("connect_failed", "not_trusted", "node_lost", "protocol_error")
        dialled_again = became == "right" and f"{UP} 2" in moved  # after a handshake that failed
        assert ended or dialled_again, (place, became)
