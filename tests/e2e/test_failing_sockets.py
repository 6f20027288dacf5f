"""Two nodes in one process whose Nth call on a socket fails, for every N: a named error or a right answer, in time."""

from __future__ import annotations

import asyncio
import errno

import pytest
from support.hostile.failing_calls import SOCKET_ERRORS, each_call, sockets_refuse
from support.hostile.faulty_disk import Fuse
from support.processes.talking import CONTENT, ENDS_S, Talk, descriptors
from support.waiting import until


async def talk(fuse: Fuse, number: int) -> Talk:
    call = Talk()
    with sockets_refuse(fuse, number):
        async with asyncio.timeout(ENDS_S):
            await call.run()
    return call


@pytest.mark.parametrize("number", SOCKET_ERRORS, ids=errno.errorcode.get)
async def test_whatever_call_on_a_socket_fails_nothing_hangs_and_nothing_is_wrong(number: int) -> None:
    tasks, before, failed = len(asyncio.all_tasks()), descriptors(), 0
    for fuse in each_call():
        call = await talk(fuse, number)
        assert call.arrived in (b"", CONTENT), "wrong bytes"
        assert call.well or call.errors, f"call {fuse.fails_at} failed and nobody said so"
        failed += bool(call.errors)
        await asyncio.sleep(0)
    assert failed >= 5
    assert (await talk(Fuse(), 0)).well
    await until(lambda: len(asyncio.all_tasks()) == tasks, ENDS_S)
    await until(lambda: descriptors() <= before, ENDS_S)
