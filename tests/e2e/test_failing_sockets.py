"""Two nodes in one process whose Nth call on a socket fails, for every N: a named error or a right answer, in time."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from dataclasses import dataclass, field

import pytest
from support.failing_calls import SOCKET_ERRORS, each_call, sockets_refuse
from support.faulty_disk import Fuse
from support.links import Recorder, node

from wire.errors import MeshError
from wire.messages import BlobStream, TailLog
from wire.transport import Endpoint

ENDS_S = 120.0  # real seconds; what a node waits for at most before a link stands is far less
CONTENT = bytes(range(256)) * 1200  # in several frames


@dataclass
class Talk:
    """Who listens, who dials, and what came of it."""

    errors: list[MeshError] = field(default_factory=list)
    answered: bool = False
    arrived: bytes = b""

    async def run(self) -> None:
        server, client = Recorder(), Recorder()
        a, b = Endpoint(node("a"), server), Endpoint(node("b"), client)
        try:
            port = await a.listen("127.0.0.1", 0)
            link = await b.dial("127.0.0.1", port, timeout_s=ENDS_S / 2)
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

    @property
    def well(self) -> bool:
        return not self.errors and self.answered and self.arrived == CONTENT


async def talk(fuse: Fuse, number: int) -> Talk:
    told = Talk()
    with sockets_refuse(fuse, number):
        async with asyncio.timeout(ENDS_S):
            await told.run()
    return told


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.mark.parametrize("number", SOCKET_ERRORS, ids=errno.errorcode.get)
async def test_whatever_call_on_a_socket_fails_nothing_hangs_and_nothing_is_wrong(number: int) -> None:
    tasks, before, failed = len(asyncio.all_tasks()), descriptors(), 0
    for fuse in each_call():
        told = await talk(fuse, number)
        assert told.arrived in (b"", CONTENT), "wrong bytes"
        assert told.well or told.errors, f"call {fuse.fails_at} failed and nobody said so"
        failed += bool(told.errors)
        await asyncio.sleep(0)
    assert failed >= 5
    assert (await talk(Fuse(), 0)).well
    assert len(asyncio.all_tasks()) == tasks
    assert descriptors() <= before
