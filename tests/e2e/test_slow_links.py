"""One link over a line that is slower than its ends: every byte arrives, and control is not held up by bulk."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.machines.links import Recorder, node
from support.processes.fault_proxy import FaultProxy

from wire.limits import DEFAULT, MIB
from wire.link.endpoint import Socket
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint, WebSockets
from wire.protocol.messages import BlobStream, Done
from wire.security.user_secret import user_secret

WITHIN_S = 120.0
DATA = memoryview(bytes(range(256)) * (12 * MIB // 256))  # more than kernels buffer


@asynccontextmanager
async def linked(proxy_options: dict[str, float]) -> AsyncIterator[tuple[Link, Link, Recorder, Recorder, FaultProxy]]:
    """Both ends of a link through a proxy, what they record, and the proxy."""
    here, there = Recorder(), Recorder()
    dialling, accepting = Endpoint(node("here"), here), Endpoint(node("there"), there)
    port = await accepting.listen(port=0)
    try:
        with FaultProxy(("127.0.0.1", port), secret=user_secret()) as proxy:
            proxy.change(**proxy_options)
            link = await dialling.dial(proxy.host, proxy.port)
            yield link, await there.linked.get(), here, there, proxy
    finally:
        await dialling.close()
        await accepting.close()


@pytest.mark.parametrize("dialler_sends", [True, False])
async def test_a_stream_over_a_slow_line_arrives_without_any_other_traffic(
    dialler_sends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(WITHIN_S), linked({"bytes_per_s": 16e6}) as (link, back, here, there, _):
        sender, receiver = (link, there) if dialler_sends else (back, here)
        await sender.send_stream(BlobStream(bytes(32), 1), DATA)
        _, buffer, error = await receiver.streams.get()
        assert error is None and buffer == DATA
    assert not caplog.records


@pytest.mark.parametrize("dialler_sends", [True, False])
async def test_a_request_overtakes_bulk_on_a_slow_line(dialler_sends: bool) -> None:
    """So slow that whoever waits for the bulk waits 24 s; once the requests were answered it is fast."""
    data = memoryview(bytes(DATA) * 4)
    async with asyncio.timeout(WITHIN_S), linked({"bytes_per_s": 2e6}) as (link, back, here, there, proxy):
        sender, receiver = (link, there) if dialler_sends else (back, here)
        sending = asyncio.ensure_future(sender.send_stream(BlobStream(bytes(32), 1), data))
        for _ in range(5):
            assert await sender.request(Done()) == Done()
        assert not sending.done() and receiver.streams.empty()
        proxy.change(bytes_per_s=math.inf)
        await sending
        assert (await receiver.streams.get())[1] == data


async def test_a_socket_that_was_found_congested_can_be_waited_for() -> None:
    """Where a line is slow from its first frame on, `write` meets the congestion and `send` waits for its end."""
    may_read, frame, came = asyncio.Event(), bytes(DEFAULT.chunk_bytes_max), 0

    async def accept(socket: Socket) -> None:
        nonlocal came
        await may_read.wait()
        while await socket.receive():
            came += 1

    accepting, dialling = WebSockets(DEFAULT), WebSockets(DEFAULT)
    address, port = await accepting.listen("127.0.0.1", 0, 0, accept)
    try:
        async with asyncio.timeout(WITHIN_S):
            socket = await dialling.connect(address, port)
            written = 1
            while socket.write(frame):
                written += 1
            sending = [asyncio.ensure_future(socket.send(frame)) for _ in range(2)]
            await asyncio.sleep(0.05)
            may_read.set()
            await asyncio.gather(*sending)
            await socket.close()
            while came < written + len(sending):
                await asyncio.sleep(0.01)
            assert came == written + len(sending)
    finally:
        await dialling.close()
        await accepting.close()
